//! How many keys there should be, so that what others wrote is noticed.
//!
//! A put tells not whether its key was new, so between two counts only a range is known:
//!
//! ```text
//!  counted 7 │ put, put, delete (1 was there) │ 6 to 8 │ counted 8 │ 8
//! ```
//!
//! Each group of writes begins and ends with a count, so that the range is narrow and nobody's write hides in it but
//! one between those two. A key that somebody replaced by hand leaves the count as it is, and is not noticed.

/// What the next count may be.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    low: u64,
    high: u64,
    /// As many of the keys had a deadline of the store's own, and vanish without anybody's doing.
    vanishing: u64,
}

impl Census {
    /// So many keys are there, `vanishing` of them with a deadline.
    pub(super) fn of(count: u64, vanishing: u64) -> Census {
        Census { low: count, high: count, vanishing }
    }

    /// A key was put.
    pub(super) fn put(&mut self) {
        self.high += 1;
    }

    /// So many keys were deleted.
    pub(super) fn deleted(&mut self, count: u64) {
        self.low = self.low.saturating_sub(count);
        self.high = self.high.saturating_sub(count);
    }

    /// So many there are. Whether nobody else can have written.
    pub(super) fn counted(&mut self, count: u64) -> bool {
        let lost = self.low.saturating_sub(count);
        let expected = count <= self.high && lost <= self.vanishing;
        *self = Census::of(count, self.vanishing.saturating_sub(lost));
        expected
    }

    /// Keys with a deadline of the store's own.
    pub(super) fn vanishing(&self) -> u64 {
        self.vanishing
    }

    /// The last count.
    pub(super) fn count(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_expected_just_where_our_writes_explain_it() {
        let mut census = Census::of(7, 0);
        assert!(census.counted(7));
        census.put();
        census.put();
        census.deleted(1);
        assert!(census.counted(8) && census.counted(8));
        assert!(!census.counted(9), "a key of somebody else's");
        assert!(census.counted(9), "which is said once");
        census.put();
        assert!(!census.counted(0), "everything is gone");
        census.deleted(3);
        assert!(census.counted(0));
    }

    #[test]
    fn keys_with_a_deadline_may_vanish_once_each() {
        let mut census = Census::of(5, 2);
        assert!(census.counted(4) && census.counted(3));
        assert!(!census.counted(2));
    }
}
