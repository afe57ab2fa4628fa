//! A line of a segment: a cache line that tells where up to 22 entries lie, and a chunk of memory that has them one after
//! the other, without a gap.
//!
//! ```text
//!  tags: 22 x u8 (0: empty) │ passed: u8 │ shift: u8 │ places: 22 x u8 │ used: u16 │ chunk ─▶ entry │ entry │ … room
//!  entry: key_len: u8 │ value_len: u8 │ key │ value │ up to a whole unit
//!         255: u8 │ number: u32                       the pair is too large and lies outside
//! ```
//!
//! A tag is eight bits of a key's hash, so that a search looks at hardly any wrong entry. *passed* counts the entries
//! which belong here and lie further on because this line was full: where it is 0, a search ends. A place counts units of
//! 8 bytes (`1 << shift`), or of 16 where that is not enough. Whatever is taken out, what lies behind moves up, so there is
//! never dead space; the chunk has less than 256 bytes to spare.

/// Entries a line.
pub const LINE_ENTRIES: usize = 22;
/// Key and value of a pair that lies in a chunk: with the header twelve small units.
pub const SMALL_BYTES_MAX: usize = 190;
/// Instead of the length of a key: the pair lies outside.
const OUTSIDE: u8 = 255;
const OUTSIDE_BYTES: usize = 5;
const HEADER_BYTES: usize = 2;

/// Where in `head` the count of passed entries and the shift are, behind the tags.
const PASSED: usize = 22;
const SHIFT: usize = 23;
/// A count that has come here stays: who passed is not known any more.
const PASSED_MAX: u8 = u8::MAX;
const SHIFT_MIN: u8 = 3;
/// As much as is asked of the allocator at once; it adds `CHUNK_HEADER`.
const CHUNK_STEP: usize = 128;
/// A chunk with so much to spare gives it back.
const CHUNK_SPARE: usize = 256;
const CHUNK_HEADER: usize = 8;

/// The tag of a key with this hash.
pub fn tag_of(hash: u64) -> u8 {
    ((hash >> 8) as u8).max(1)
}

/// A line.
#[repr(align(64))]
pub struct Line {
    head: [u8; 24],
    places: [u8; LINE_ENTRIES],
    used: u16,
    chunk: Box<[u8]>,
}

/// What lies at a place.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    /// A pair.
    Small {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// The number of a pair that is kept elsewhere.
    Outside(u32),
}

impl<'a> Entry<'a> {
    /// The entry for a pair, if it is small.
    pub fn small(key: &'a [u8], value: &'a [u8]) -> Option<Entry<'a>> {
        (key.len() + value.len() <= SMALL_BYTES_MAX).then_some(Entry::Small { key, value })
    }

    #[inline(always)]
    fn read(bytes: &'a [u8]) -> Entry<'a> {
        let (header, rest) = bytes.split_at(HEADER_BYTES);
        if header[0] == OUTSIDE {
            return Entry::Outside(u32::from_le_bytes([header[1], rest[0], rest[1], rest[2]]));
        }
        let (key, rest) = rest.split_at(header[0].into());
        Entry::Small { key, value: &rest[..header[1].into()] }
    }

    fn write(self, to: &mut [u8]) {
        let (header, rest) = to.split_at_mut(HEADER_BYTES);
        match self {
            Entry::Small { key, value } => {
                header.copy_from_slice(&[key.len() as u8, value.len() as u8]);
                rest[..key.len()].copy_from_slice(key);
                rest[key.len()..key.len() + value.len()].copy_from_slice(value);
            }
            Entry::Outside(number) => {
                let [first, others @ ..] = number.to_le_bytes();
                header.copy_from_slice(&[OUTSIDE, first]);
                rest[..3].copy_from_slice(&others);
            }
        }
    }

    fn size(self) -> usize {
        match self {
            Entry::Small { key, value } => HEADER_BYTES + key.len() + value.len(),
            Entry::Outside(_) => OUTSIDE_BYTES,
        }
    }
}

impl Line {
    /// One without entries, and without a chunk.
    pub fn new() -> Line {
        let mut head = [0; 24];
        head[SHIFT] = SHIFT_MIN;
        Line { head, places: [0; LINE_ENTRIES], used: 0, chunk: Box::default() }
    }

    /// Entries with this tag.
    #[inline]
    pub fn find(&self, tag: u8) -> impl Iterator<Item = usize> + use<'_> {
        Candidates(self.candidates(tag)).filter(move |&entry| self.head[entry] == tag)
    }

    /// Reads the line itself.
    #[inline]
    pub fn touch_itself(&self) {
        std::hint::black_box(self.head[0]);
    }

    /// Reads what lies at the first of what [`Line::find`] finds, or something else.
    #[inline]
    pub fn touch(&self, tag: u8) {
        let candidates = self.candidates(tag);
        if candidates == 0 {
            return;
        }
        let place = self.place(entry_of(candidates));
        let last = self.chunk.len().wrapping_sub(1);
        // An entry may begin in one cache line and end in the next.
        if let (Some(first), Some(second)) = (self.chunk.get(place), self.chunk.get((place + 56).min(last))) {
            std::hint::black_box(first ^ second);
        }
    }

    /// What an entry is.
    #[inline(always)]
    pub fn entry(&self, entry: usize) -> Entry<'_> {
        Entry::read(&self.chunk[self.place(entry)..])
    }

    /// Whether entries that belong here lie further on.
    #[inline]
    pub fn is_passed(&self) -> bool {
        self.head[PASSED] > 0
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..LINE_ENTRIES).filter(|&entry| self.head[entry] != 0).map(|entry| self.entry(entry))
    }

    /// What its chunk takes.
    pub fn bytes(&self) -> u64 {
        let len = self.chunk.len();
        if len == 0 { 0 } else { (len + CHUNK_HEADER) as u64 }
    }

    /// Puts an entry here; false if there is no room, which is counted.
    pub fn insert(&mut self, bytes: &mut u64, tag: u8, what: Entry) -> bool {
        let empty = self.candidates(0);
        if empty == 0 {
            self.head[PASSED] = self.head[PASSED].saturating_add(1);
            return false;
        }
        // The lowest is never a wrong one.
        let entry = entry_of(empty);
        self.append(bytes, entry, what);
        self.head[entry] = tag;
        true
    }

    /// Puts something else in the place of an entry.
    pub fn replace(&mut self, bytes: &mut u64, entry: usize, what: Entry) {
        if self.units(self.entry(entry)) == self.units(what) {
            let place = self.place(entry);
            return what.write(&mut self.chunk[place..]);
        }
        self.cut(entry);
        let tag = std::mem::replace(&mut self.head[entry], 0);
        self.append(bytes, entry, what);
        self.head[entry] = tag;
        self.shrink(bytes);
    }

    /// Gives the pair at an entry another value of the same length.
    pub fn overwrite(&mut self, entry: usize, key_len: usize, value: &[u8]) {
        let at = self.place(entry) + HEADER_BYTES + key_len;
        self.chunk[at..at + value.len()].copy_from_slice(value);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, bytes: &mut u64, entry: usize) {
        self.cut(entry);
        self.head[entry] = 0;
        self.shrink(bytes);
    }

    /// An entry that passed this line is gone.
    pub fn forget_passed(&mut self) {
        if self.head[PASSED] < PASSED_MAX {
            self.head[PASSED] -= 1;
        }
    }

    /// A bit for each entry with this tag, and now and then for one behind such an entry. The three words of tags are
    /// looked at side by side, so bit 8i + w is entry i + 8w.
    #[inline]
    fn candidates(&self, tag: u8) -> u64 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = ONES << 7;
        let wanted = ONES * u64::from(tag);
        let word = |at: usize| u64::from_le_bytes(self.head.as_chunks().0[at]) ^ wanted;
        let zeros = |word: u64, of: u64| word.wrapping_sub(ONES) & !word & of;
        // The last word has six tags.
        zeros(word(0), HIGH) >> 7 | zeros(word(1), HIGH) >> 6 | zeros(word(2), HIGH >> 16) >> 5
    }

    #[inline]
    fn place(&self, entry: usize) -> usize {
        usize::from(self.places[entry]) << self.head[SHIFT]
    }

    fn units(&self, what: Entry) -> usize {
        what.size().div_ceil(1 << self.head[SHIFT])
    }

    fn append(&mut self, bytes: &mut u64, entry: usize, what: Entry) {
        if usize::from(self.used) >> self.head[SHIFT] > u8::MAX.into() {
            self.use_larger_units(bytes);
        }
        let place = usize::from(self.used);
        let end = place + (self.units(what) << self.head[SHIFT]);
        if end > self.chunk.len() {
            self.resize(bytes, end);
        }
        self.places[entry] = (place >> self.head[SHIFT]) as u8;
        self.used = end as u16;
        what.write(&mut self.chunk[place..end]);
    }

    /// Closes the gap that an entry leaves.
    fn cut(&mut self, entry: usize) {
        let (place, units) = (self.place(entry), self.units(self.entry(entry)));
        let size = units << self.head[SHIFT];
        self.chunk.copy_within(place + size..self.used.into(), place);
        self.used -= size as u16;
        let from = self.places[entry];
        for place in &mut self.places {
            *place = place.wrapping_sub(if *place > from { units as u8 } else { 0 });
        }
    }

    /// Writes all entries anew, so that places reach further.
    fn use_larger_units(&mut self, bytes: &mut u64) {
        let old = std::mem::replace(self, Line::new());
        *bytes -= old.bytes();
        self.head = old.head;
        self.head[SHIFT] += 1;
        for entry in 0..LINE_ENTRIES {
            if old.head[entry] != 0 {
                self.append(bytes, entry, old.entry(entry));
            }
        }
    }

    fn shrink(&mut self, bytes: &mut u64) {
        if self.chunk.len() - usize::from(self.used) >= CHUNK_SPARE || self.used == 0 {
            self.resize(bytes, self.used.into());
        }
        if self.used == 0 {
            self.head[SHIFT] = SHIFT_MIN;
        }
    }

    /// Gives the chunk room for so many bytes and a little more.
    fn resize(&mut self, bytes: &mut u64, used: usize) {
        *bytes -= self.bytes();
        let mut chunk = std::mem::take(&mut self.chunk).into_vec();
        if used > 0 {
            let room = (used + CHUNK_HEADER).next_multiple_of(CHUNK_STEP) - CHUNK_HEADER;
            chunk.reserve_exact(room.saturating_sub(chunk.len()));
            chunk.resize(room, 0);
            self.chunk = chunk.into();
        }
        *bytes += self.bytes();
    }
}

struct Candidates(u64);

impl Iterator for Candidates {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bits = self.0;
        self.0 &= bits.wrapping_sub(1);
        (bits != 0).then(|| entry_of(bits))
    }
}

/// The entry of the lowest bit.
#[inline]
fn entry_of(bits: u64) -> usize {
    let bit = bits.trailing_zeros() as usize;
    bit / 8 + bit % 8 * 8
}

#[cfg(test)]
impl Line {
    /// Entries lie behind one another without a gap, and the chunk is not much larger.
    pub fn check(&self) {
        let mut parts: Vec<(usize, usize)> = (0..LINE_ENTRIES)
            .filter(|&entry| self.head[entry] != 0)
            .map(|entry| (self.place(entry), self.units(self.entry(entry)) << self.head[SHIFT]))
            .collect();
        parts.sort_unstable();
        let end = parts.iter().fold(0, |end, &(place, size)| {
            assert_eq!(place, end, "no gap");
            place + size
        });
        assert_eq!(end, usize::from(self.used));
        let spare = self.chunk.len() - end;
        assert!(spare < CHUNK_SPARE && (end > 0 || spare == 0), "{spare} bytes to spare");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(value: &[u8]) -> Entry<'_> {
        Entry::small(b"k", value).unwrap()
    }

    #[test]
    fn a_line_is_a_cache_line() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
    }

    #[test]
    fn a_tag_is_found_where_it_is_and_nowhere_else() {
        let (mut line, mut bytes) = (Line::new(), 0);
        for entry in 0..LINE_ENTRIES {
            assert!(line.insert(&mut bytes, 1 + (entry % 3) as u8 * 127, small(b"v")));
        }
        assert!(!line.insert(&mut bytes, 9, small(b"v")));
        assert!(line.is_passed());
        for tag in 1..=255u8 {
            let wanted: Vec<usize> = (0..LINE_ENTRIES).filter(|&entry| line.head[entry] == tag).collect();
            let mut found: Vec<usize> = line.find(tag).collect();
            found.sort_unstable();
            assert_eq!(found, wanted, "tag {tag}");
        }
        line.remove(&mut bytes, 7);
        line.forget_passed();
        assert!(!line.is_passed());
        assert!(line.insert(&mut bytes, 9, small(b"w")));
        assert_eq!(line.find(9).collect::<Vec<_>>(), [7]);
        line.check();
    }

    #[test]
    fn an_empty_entry_is_never_found_behind_one_that_is() {
        let (mut line, mut bytes) = (Line::new(), 0);
        for tag in [1, 2] {
            assert!(line.insert(&mut bytes, tag, small(b"v")));
        }
        assert_eq!(line.find(1).collect::<Vec<_>>(), [0]);
        assert_eq!(line.find(2).count(), 1);
        assert_eq!(line.entries().count(), 2);
    }

    #[test]
    fn a_full_count_of_passed_entries_stays() {
        let (mut line, mut bytes) = (Line::new(), 0);
        for _ in 0..LINE_ENTRIES + 300 {
            line.insert(&mut bytes, 1, small(b""));
        }
        for _ in 0..300 {
            line.forget_passed();
        }
        assert!(line.is_passed());
    }

    #[test]
    fn a_line_holds_what_it_should_whatever_its_entries_become() {
        let mut random = sartor_core::random::Random::new(3);
        let (mut line, mut bytes, mut model) = (Line::new(), 0, [const { None::<Vec<u8>> }; LINE_ENTRIES]);
        for step in 0..30_000u32 {
            let most = [SMALL_BYTES_MAX as u64, 20, 120][step as usize / 2500 % 3];
            let value = vec![step as u8; random.below(most) as usize];
            let entry = random.below(LINE_ENTRIES as u64) as usize;
            match (&model[entry], random.percent(u64::from(40 + step / 1000 % 3 * 20))) {
                (Some(_), true) => {
                    line.replace(&mut bytes, entry, small(&value));
                    model[entry] = Some(value);
                }
                (Some(_), false) => {
                    line.remove(&mut bytes, entry);
                    model[entry] = None;
                }
                (None, _) => {
                    assert!(line.insert(&mut bytes, 7, small(&value)));
                    let entry = (0..LINE_ENTRIES).find(|&e| line.head[e] != 0 && model[e].is_none());
                    model[entry.unwrap()] = Some(value);
                }
            }
            line.check();
            assert_eq!(bytes, line.bytes());
            for (entry, wanted) in model.iter().enumerate() {
                assert_eq!(line.head[entry] != 0, wanted.is_some());
                if let Some(wanted) = wanted {
                    assert!(
                        matches!(line.entry(entry), Entry::Small { key: b"k", value } if value == wanted)
                    );
                }
            }
        }
    }
}
