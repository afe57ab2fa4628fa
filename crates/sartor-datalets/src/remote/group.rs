//! What a group of operations knows of the store, so that the group costs few round trips.
//!
//! Keys are announced (`expect`), then come gets, puts and deletes in order, then the end. Puts and deletes wait; the first
//! get that cannot be answered from here sends them together with a get of every announced key. Only what was announced
//! is remembered: who announces nothing always asks the store itself.
//!
//! How a batch travels is not known here: `send` does its writes in order, then its gets, and answers at least the first
//! of these; what it leaves out is asked later.

use bytes::Bytes;
use std::collections::HashMap;

/// A change that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Set the key to the value.
    Put(Bytes, Bytes),
    /// Remove the key.
    Delete(Bytes),
}

/// Bounds of a group.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Announced keys; more are not remembered.
    pub keys_max: usize,
    /// Bytes of announced keys.
    pub key_bytes_max: usize,
    /// Changes that wait; then they are sent.
    pub writes_max: usize,
    /// Bytes of these.
    pub write_bytes_max: usize,
    /// Bytes of remembered values; then all is forgotten.
    pub value_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            keys_max: 4096,
            key_bytes_max: 1 << 20,
            writes_max: 4096,
            write_bytes_max: 1 << 20,
            value_bytes_max: 32 << 20,
        }
    }
}

/// Of an announced key.
enum State {
    /// Nobody asked the store yet.
    Wanted,
    /// Its value, if it has one.
    Known(Option<Bytes>),
}

/// Answers of the store to gets, in order.
pub type Values = Vec<Option<Bytes>>;

/// A group of operations, and what it knows.
#[derive(Default)]
pub struct Group {
    limits: Limits,
    keys: HashMap<Bytes, State>,
    key_bytes: usize,
    value_bytes: usize,
    /// Announced, and perhaps not asked yet.
    wanted: Vec<Bytes>,
    writes: Vec<Write>,
    write_bytes: usize,
}

impl Group {
    /// Announces a key.
    pub fn expect(&mut self, key: &[u8]) {
        let limits = &self.limits;
        let is_full = self.keys.len() >= limits.keys_max || self.key_bytes + key.len() > limits.key_bytes_max;
        if !is_full && !self.keys.contains_key(key) {
            let key = Bytes::copy_from_slice(key);
            self.key_bytes += key.len();
            self.wanted.push(key.clone());
            self.keys.insert(key, State::Wanted);
        }
    }

    /// Calls `found` with the value of `key`, from here or by `send`.
    pub fn get<E>(
        &mut self,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
        send: impl FnOnce(Vec<Write>, &[Bytes]) -> Result<Values, E>,
    ) -> Result<(), E> {
        if let Some(State::Known(value)) = self.keys.get(key) {
            value.iter().for_each(|value| found(value));
            return Ok(());
        }
        let mut gets = vec![Bytes::copy_from_slice(key)];
        let keys = &self.keys;
        gets.extend(
            self.wanted
                .drain(..)
                .filter(|other| other != key && matches!(keys.get(other), Some(State::Wanted))),
        );
        let values = send(self.take_writes(), &gets)?;
        let mut answered = values.into_iter();
        for (place, asked) in gets.into_iter().enumerate() {
            match answered.next() {
                Some(value) => {
                    if place == 0 {
                        value.iter().for_each(|value| found(value));
                    }
                    self.know(&asked, value);
                }
                None => self.wanted.push(asked),
            }
        }
        Ok(())
    }

    /// Sets a key; `send` is called where too much waits.
    pub fn put<E>(
        &mut self,
        key: &[u8],
        value: &[u8],
        send: impl FnOnce(Vec<Write>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        self.know(&key, Some(value.clone()));
        self.write_bytes += key.len() + value.len();
        self.write(Write::Put(key, value), send)
    }

    /// Removes a key; `send` is called where too much waits.
    pub fn delete<E>(&mut self, key: &[u8], send: impl FnOnce(Vec<Write>) -> Result<(), E>) -> Result<(), E> {
        let key = Bytes::copy_from_slice(key);
        self.know(&key, None);
        self.write_bytes += key.len();
        self.write(Write::Delete(key), send)
    }

    fn write<E>(&mut self, write: Write, send: impl FnOnce(Vec<Write>) -> Result<(), E>) -> Result<(), E> {
        self.writes.push(write);
        if self.writes.len() >= self.limits.writes_max || self.write_bytes >= self.limits.write_bytes_max {
            return send(self.take_writes());
        }
        Ok(())
    }

    /// What waits, for who sends it.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.write_bytes = 0;
        std::mem::take(&mut self.writes)
    }

    /// The group ends, or what it knew is not true any more. What waits, waits.
    pub fn forget(&mut self) {
        self.keys.clear();
        self.wanted.clear();
        (self.key_bytes, self.value_bytes) = (0, 0);
    }

    fn know(&mut self, key: &[u8], value: Option<Bytes>) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        self.value_bytes += len(&value);
        if let State::Known(old) = state {
            self.value_bytes -= len(old);
        }
        *state = State::Known(value);
        if self.value_bytes > self.limits.value_bytes_max {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A store that counts its batches.
    #[derive(Default)]
    struct Store {
        pairs: BTreeMap<Bytes, Bytes>,
        batches: Vec<(usize, usize)>,
        /// How many gets of a batch it answers.
        answers_max: usize,
    }

    impl Store {
        fn send(&mut self, writes: Vec<Write>, gets: &[Bytes]) -> Result<Values, ()> {
            self.batches.push((writes.len(), gets.len()));
            for write in writes {
                match write {
                    Write::Put(key, value) => drop(self.pairs.insert(key, value)),
                    Write::Delete(key) => drop(self.pairs.remove(&key)),
                }
            }
            Ok(gets.iter().take(self.answers_max).map(|key| self.pairs.get(key).cloned()).collect())
        }
    }

    fn get(group: &mut Group, store: &mut Store, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        group
            .get(key, &mut |found| value = Some(found.to_vec()), |writes, gets| store.send(writes, gets))
            .unwrap();
        value
    }

    fn put(group: &mut Group, store: &mut Store, key: &[u8], value: &[u8]) {
        group.put(key, value, |writes| store.send(writes, &[]).map(drop)).unwrap();
    }

    fn store() -> Store {
        let pairs = (0..10u8).map(|i| (Bytes::from(vec![i]), Bytes::from(vec![i, i]))).collect();
        Store { pairs, answers_max: usize::MAX, ..Store::default() }
    }

    #[test]
    fn a_group_is_one_batch_and_sees_its_own_writes() {
        let (mut group, mut store) = (Group::default(), store());
        (0..20u8).for_each(|i| group.expect(&[i]));
        put(&mut group, &mut store, &[0], b"new");
        assert_eq!(get(&mut group, &mut store, &[0]), Some(b"new".to_vec()));
        assert_eq!(store.batches, [], "what the group wrote itself needs no store");
        for i in 1..20u8 {
            assert_eq!(get(&mut group, &mut store, &[i]), (i < 10).then(|| vec![i, i]));
        }
        group.delete(&[3], |_| Ok::<_, ()>(())).unwrap();
        assert_eq!(get(&mut group, &mut store, &[3]), None);
        assert_eq!(store.batches, [(1, 19)]);
        assert_eq!(group.take_writes(), [Write::Delete(Bytes::from_static(&[3]))]);
    }

    #[test]
    fn what_was_not_announced_or_was_forgotten_is_asked() {
        let (mut group, mut store) = (Group::default(), store());
        put(&mut group, &mut store, &[0], b"new");
        assert_eq!(get(&mut group, &mut store, &[0]), Some(b"new".to_vec()));
        group.expect(&[1]);
        assert_eq!(get(&mut group, &mut store, &[1]), Some(vec![1, 1]));
        group.forget();
        assert_eq!(get(&mut group, &mut store, &[1]), Some(vec![1, 1]));
        assert_eq!(store.batches, [(1, 1), (0, 1), (0, 1)]);
    }

    #[test]
    fn what_a_store_leaves_out_is_asked_later() {
        let (mut group, mut store) = (Group::default(), store());
        store.answers_max = 2;
        (0..5u8).for_each(|i| group.expect(&[i]));
        for i in [2, 0, 1, 3, 4] {
            assert_eq!(get(&mut group, &mut store, &[i]), Some(vec![i, i]));
        }
        assert_eq!(store.batches, [(0, 5), (0, 3), (0, 1)]);
    }

    #[test]
    fn everything_is_bounded() {
        let (mut group, mut store) = (Group::default(), store());
        let limits = Limits {
            keys_max: 4,
            key_bytes_max: 100,
            writes_max: 3,
            write_bytes_max: 50,
            value_bytes_max: 40,
        };
        group.limits = limits;
        (0..10u8).for_each(|i| group.expect(&[i]));
        group.forget();
        group.expect(&[0; 101]);
        assert!(group.keys.is_empty() && group.wanted.is_empty());
        (0..3).for_each(|_| put(&mut group, &mut store, b"k", b"v"));
        put(&mut group, &mut store, b"k", &[0; 60]);
        assert_eq!(store.batches, [(3, 0), (1, 0)]);
        group.expect(b"a");
        put(&mut group, &mut store, b"a", &[1; 41]);
        assert!(group.keys.is_empty(), "the value is too large to be remembered");
        assert_eq!(get(&mut group, &mut store, b"a"), Some(vec![1; 41]));
        assert_eq!(group.value_bytes, 0);
    }

    #[test]
    fn the_same_as_a_model() {
        let mut random = sartor_core::random::Random::new(7);
        let (mut group, mut store) = (Group::default(), Store { answers_max: 3, ..Store::default() });
        group.limits = Limits { keys_max: 6, writes_max: 5, value_bytes_max: 100, ..Limits::default() };
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for step in 0..20_000u32 {
            let key = vec![random.below(12) as u8];
            match random.below(20) {
                0..6 => group.expect(&key),
                6..11 => {
                    let value = vec![step as u8; random.below(40) as usize];
                    put(&mut group, &mut store, &key, &value);
                    model.insert(key, value);
                }
                11..13 => {
                    group.delete(&key, |writes| store.send(writes, &[]).map(drop)).unwrap();
                    model.remove(&key);
                }
                13 => group.forget(),
                _ => assert_eq!(get(&mut group, &mut store, &key), model.get(&key).cloned(), "step {step}"),
            }
        }
        store.send(group.take_writes(), &[]).unwrap();
        let left: BTreeMap<_, _> = store.pairs.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert_eq!(left, model);
    }
}
