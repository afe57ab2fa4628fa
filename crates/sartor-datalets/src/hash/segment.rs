//! A segment: the pairs whose hashes begin alike, as many as can be moved at once without a pause.
//!
//! Its lines are a hash table with open addressing: an entry lies in the line that its hash names, or in one of the next
//! where that is full. What is too large for a line lies outside, in memory of its own.

use super::line::{Entry, Line, tag_of};

/// Lines double until a split is better.
const LINES_MIN: usize = 1;
const LINES_MAX: usize = 64;
/// Entries for each line, at most: nearly nine tenths, so that few lie further on.
const LINE_LOAD: usize = 19;
/// Entries a segment, at most.
const ENTRIES_MAX: usize = LINES_MAX * LINE_LOAD;
/// What the allocator adds to lines, and to a pair outside, rounded up; and what the list of those takes.
const LINES_OVERHEAD: usize = 32;
const OUTSIDE_OVERHEAD: u64 = 20 + size_of::<Spot>() as u64;

/// A segment. Methods that take or give back memory count that in `bytes`.
pub struct Segment {
    /// How many first bits its hashes share.
    pub depth: u32,
    len: u32,
    /// A power of two, or none while there are no entries.
    lines: Box<[Line]>,
    /// Most segments have none, and should be small.
    outside: Option<Box<Outside>>,
}

/// Pairs that are too large for a line.
#[derive(Default)]
struct Outside {
    spots: Vec<Spot>,
    /// The first free one; the number of spots if none is.
    free: u32,
}

enum Spot {
    Taken(Pair),
    /// The next free one.
    Free(u32),
}

struct Pair {
    key_len: u32,
    bytes: Box<[u8]>,
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The key is new.
    Inserted,
    /// The key had another value.
    Replaced,
    /// Nothing was done: make room and ask again.
    Full,
}

/// Where an entry was found.
struct Hit<'a> {
    line: usize,
    entry: usize,
    what: Entry<'a>,
    value: &'a [u8],
}

/// Lines for at least so many entries.
fn lines_for(entries: usize) -> usize {
    entries.div_ceil(LINE_LOAD).next_power_of_two().clamp(LINES_MIN, LINES_MAX)
}

fn cost_of_lines(lines: usize) -> u64 {
    if lines == 0 { 0 } else { (lines * size_of::<Line>() + LINES_OVERHEAD) as u64 }
}

impl Segment {
    /// An empty one, which takes no memory.
    pub fn new(depth: u32) -> Segment {
        Segment { depth, len: 0, lines: Box::default(), outside: None }
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// What its lines and pairs take.
    pub fn bytes(&self) -> u64 {
        let chunks = self.lines.iter().map(Line::bytes).sum::<u64>();
        cost_of_lines(self.lines.len()) + chunks + self.outside.as_ref().map_or(0, |outside| outside.bytes())
    }

    /// Whether it may be joined with another one, and is far from being split again then.
    pub fn is_small(&self) -> bool {
        self.len() <= ENTRIES_MAX / 8
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, hash: u64, key: &[u8]) -> Option<&[u8]> {
        self.find(hash, key).map(|hit| hit.value)
    }

    /// Reads the line that [`Segment::get`] will read.
    #[inline]
    pub fn touch_line(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.home(hash)) {
            line.touch_itself();
        }
    }

    /// Reads the entry that [`Segment::get`] will read, or something else.
    #[inline]
    pub fn touch_entry(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.home(hash)) {
            line.touch(tag_of(hash));
        }
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, bytes: &mut u64, hash: u64, key: &[u8], value: &[u8]) -> Put {
        if let Some(Hit { line, entry, what, value: old }) = self.find(hash, key) {
            let outside = number_of(what);
            if outside.is_none() && old.len() == value.len() {
                self.lines[line].overwrite(entry, key.len(), value);
                return Put::Replaced;
            }
            self.replace(bytes, line, entry, outside, key, value);
            return Put::Replaced;
        }
        if self.len() >= self.lines.len() * LINE_LOAD {
            return Put::Full;
        }
        let what = Entry::small(key, value)
            .unwrap_or_else(|| Entry::Outside(self.add_outside(bytes, Pair::new(key, value))));
        self.enter(bytes, hash, what);
        Put::Inserted
    }

    /// Removes `key`; whether it was there.
    pub fn delete(&mut self, bytes: &mut u64, hash: u64, key: &[u8]) -> bool {
        let Some(Hit { line, entry, what, .. }) = self.find(hash, key) else { return false };
        if let Some(number) = number_of(what) {
            self.free_outside(bytes, number);
        }
        self.lines[line].remove(bytes, entry);
        let mut passed = self.home(hash);
        while passed != line {
            self.lines[passed].forget_passed();
            passed = self.next(passed);
        }
        self.len -= 1;
        if self.len == 0 {
            *bytes -= self.bytes();
            *self = Segment::new(self.depth);
        }
        true
    }

    /// All pairs, in no order.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().flat_map(Line::entries).map(|what| self.pair(what))
    }

    /// Makes room without a split, if that is possible; whether it did.
    pub fn make_room(&mut self, bytes: &mut u64, hash_of: impl Fn(&[u8]) -> u64) -> bool {
        let grows = self.lines.len() < LINES_MAX;
        if grows {
            self.grow(bytes, self.len() + 1, &hash_of);
        }
        grows
    }

    /// Moves everything into other segments: what has `bit` in its hash into the second, the rest into the first.
    pub fn pour(
        &mut self,
        bytes: &mut u64,
        hash_of: impl Fn(&[u8]) -> u64,
        bit: u64,
        sides: &mut [&mut Segment],
    ) {
        let mut old = std::mem::replace(self, Segment::new(self.depth));
        *bytes -= old.bytes();
        for side in sides.iter_mut() {
            side.grow(bytes, side.len() + old.len(), &hash_of);
        }
        // Line by line, so that what is copied next was freed just before.
        for line in std::mem::take(&mut old.lines) {
            for what in line.entries() {
                let hash = hash_of(old.pair(what).0);
                let side = &mut *sides[usize::from(hash & bit != 0)];
                match number_of(what) {
                    None => side.enter(bytes, hash, what),
                    Some(number) => {
                        let number = side.add_outside(bytes, old.take_outside(number));
                        side.enter(bytes, hash, Entry::Outside(number));
                    }
                }
            }
        }
    }

    /// Has lines for so many entries.
    fn grow(&mut self, bytes: &mut u64, entries: usize, hash_of: &impl Fn(&[u8]) -> u64) {
        let wanted = lines_for(entries);
        if wanted <= self.lines.len() {
            return;
        }
        *bytes += cost_of_lines(wanted) - cost_of_lines(self.lines.len());
        let old = std::mem::replace(&mut self.lines, (0..wanted).map(|_| Line::new()).collect());
        self.len = 0;
        for line in old {
            *bytes -= line.bytes();
            for what in line.entries() {
                let hash = hash_of(self.pair(what).0);
                self.enter(bytes, hash, what);
            }
        }
    }

    // Inlined, so that what is found stays in registers.
    #[inline(always)]
    fn find(&self, hash: u64, key: &[u8]) -> Option<Hit<'_>> {
        let tag = tag_of(hash);
        let mut number = self.home(hash);
        let mut line = self.lines.get(number)?;
        let mut lines_left = self.lines.len();
        loop {
            for entry in line.find(tag) {
                let what = line.entry(entry);
                let pair = self.pair(what);
                if pair.0 == key {
                    return Some(Hit { line: number, entry, what, value: pair.1 });
                }
            }
            if !line.is_passed() {
                return None;
            }
            lines_left -= 1;
            if lines_left == 0 {
                return None;
            }
            number = self.next(number);
            line = &self.lines[number];
        }
    }

    fn replace(
        &mut self,
        bytes: &mut u64,
        line: usize,
        entry: usize,
        outside: Option<u32>,
        key: &[u8],
        value: &[u8],
    ) {
        let what = Entry::small(key, value);
        match (what, outside) {
            (None, Some(number)) => return self.replace_outside(bytes, number, key, value),
            (Some(_), Some(number)) => self.free_outside(bytes, number),
            (_, None) => {}
        }
        let what = what.unwrap_or_else(|| Entry::Outside(self.add_outside(bytes, Pair::new(key, value))));
        self.lines[line].replace(bytes, entry, what);
    }

    /// An entry gets its place.
    fn enter(&mut self, bytes: &mut u64, hash: u64, what: Entry) {
        let tag = tag_of(hash);
        let mut line = self.home(hash);
        while !self.lines[line].insert(bytes, tag, what) {
            line = self.next(line);
        }
        self.len += 1;
    }

    #[inline(always)]
    fn pair<'a>(&'a self, what: Entry<'a>) -> (&'a [u8], &'a [u8]) {
        match what {
            Entry::Small { key, value } => (key, value),
            Entry::Outside(number) => self.pair_outside(number),
        }
    }

    #[cold]
    fn pair_outside(&self, number: u32) -> (&[u8], &[u8]) {
        match &self.outside {
            Some(outside) => outside.pair(number),
            None => unreachable!("an entry leads to its pair"),
        }
    }

    fn add_outside(&mut self, bytes: &mut u64, pair: Pair) -> u32 {
        *bytes += pair.cost();
        self.outside.get_or_insert_default().add(pair)
    }

    fn take_outside(&mut self, number: u32) -> Pair {
        match &mut self.outside {
            Some(outside) => outside.take(number),
            None => unreachable!("an entry leads to its pair"),
        }
    }

    fn free_outside(&mut self, bytes: &mut u64, number: u32) {
        *bytes -= self.take_outside(number).cost();
    }

    fn replace_outside(&mut self, bytes: &mut u64, number: u32, key: &[u8], value: &[u8]) {
        let Some(Spot::Taken(pair)) =
            self.outside.as_mut().and_then(|outside| outside.spots.get_mut(number as usize))
        else {
            unreachable!("an entry leads to its pair")
        };
        if pair.bytes.len() == key.len() + value.len() {
            return pair.bytes[key.len()..].copy_from_slice(value);
        }
        *bytes -= pair.cost();
        *pair = Pair::new(key, value);
        *bytes += pair.cost();
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & self.lines.len().wrapping_sub(1)
    }

    fn next(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }
}

fn number_of(what: Entry) -> Option<u32> {
    match what {
        Entry::Small { .. } => None,
        Entry::Outside(number) => Some(number),
    }
}

impl Outside {
    fn pair(&self, number: u32) -> (&[u8], &[u8]) {
        match &self.spots[number as usize] {
            Spot::Taken(pair) => pair.bytes.split_at(pair.key_len as usize),
            Spot::Free(_) => unreachable!("an entry leads to its pair"),
        }
    }

    fn add(&mut self, pair: Pair) -> u32 {
        let number = self.free;
        match self.spots.get_mut(number as usize) {
            Some(spot) => {
                if let Spot::Free(next) = std::mem::replace(spot, Spot::Taken(pair)) {
                    self.free = next;
                }
            }
            None => {
                self.spots.push(Spot::Taken(pair));
                self.free += 1;
            }
        }
        number
    }

    fn take(&mut self, number: u32) -> Pair {
        let spot = std::mem::replace(&mut self.spots[number as usize], Spot::Free(self.free));
        self.free = number;
        match spot {
            Spot::Taken(pair) => pair,
            Spot::Free(_) => unreachable!("an entry leads to its pair"),
        }
    }

    fn bytes(&self) -> u64 {
        let taken = self.spots.iter().map(|spot| match spot {
            Spot::Taken(pair) => pair.cost(),
            Spot::Free(_) => 0,
        });
        taken.sum()
    }
}

impl Pair {
    fn new(key: &[u8], value: &[u8]) -> Pair {
        Pair { key_len: key.len() as u32, bytes: [key, value].concat().into() }
    }

    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + OUTSIDE_OVERHEAD
    }
}

#[cfg(test)]
impl Segment {
    /// Every pair is found, and nothing takes more than it should.
    pub fn check(&self, hash_of: impl Fn(&[u8]) -> u64) {
        self.lines.iter().for_each(Line::check);
        assert_eq!(self.pairs().count(), self.len());
        for (key, value) in self.pairs() {
            assert_eq!(self.get(hash_of(key), key), Some(value));
        }
        assert!(self.lines.is_empty() == (self.len == 0));
    }
}
