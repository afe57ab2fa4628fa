//! Numbers for large things: a world names the state of a node by a number, so that it is small to keep and cheap
//! to compare, and what a node does on an event is computed once however many worlds it happens in.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A number for a thing, the same for equal things.
pub type Id = u32;

/// Things by number.
pub struct Interner<T> {
    inner: RwLock<Inner<T>>,
}

struct Inner<T> {
    ids: HashMap<u128, Id>,
    things: Vec<Arc<T>>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { inner: RwLock::new(Inner { ids: HashMap::new(), things: Vec::new() }) }
    }
}

impl<T: Hash> Interner<T> {
    /// The number of a thing.
    pub fn put(&self, thing: T) -> Id {
        let print = print_of(&thing);
        if let Some(id) = self.inner.read().unwrap_or_else(PoisonError::into_inner).ids.get(&print) {
            return *id;
        }
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let next = inner.things.len() as Id;
        let id = *inner.ids.entry(print).or_insert(next);
        if id == next {
            inner.things.push(Arc::new(thing));
        }
        id
    }

    /// The thing of a number.
    pub fn get(&self, id: Id) -> Arc<T> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).things[id as usize].clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).things.len()
    }
}

/// 128 bits that tell things apart: of a billion pairs of different things none is likely to share them.
fn print_of<T: Hash>(thing: &T) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        thing.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

type Quick = BuildHasherDefault<Mixer>;

/// Numbers that nobody chose to collide: a multiplication each is enough.
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0.rotate_left(29) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }
}

/// What was computed before.
pub struct Memo<K, V> {
    shards: Vec<RwLock<HashMap<K, V, Quick>>>,
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo { shards: (0..64).map(|_| RwLock::default()).collect() }
    }
}

impl<K: Hash + Eq + Copy, V: Clone> Memo<K, V> {
    /// The value of a key, computed at the first time.
    pub fn get(&self, key: K, compute: impl FnOnce() -> V) -> V {
        let shard = &self.shards[(Quick::default().hash_one(key) >> 32) as usize % self.shards.len()];
        if let Some(value) = shard.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return value.clone();
        }
        let value = compute();
        shard.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(value).clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

/// What one thread at a time may look at.
pub struct Alone<T>(Mutex<T>);

impl<T: Clone> Alone<T> {
    /// Keeps it.
    pub fn new(thing: T) -> Self {
        Alone(Mutex::new(thing))
    }

    /// A copy of it.
    pub fn copy(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T: Hash> Hash for Alone<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hash(state);
    }
}
