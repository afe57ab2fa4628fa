use super::*;
use std::path::PathBuf;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("sartor-lsm-{name}-{}", std::process::id())))
    }

    fn open(&self) -> Lsm {
        Lsm::open(&Options::default().in_dir(&self.0)).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_group_without_end_is_refused_before_memory_is_full() {
    let scratch = Scratch::new("group");
    let mut store = scratch.open();
    let value = vec![7; 16 << 20];
    // Again and again the same takes no more.
    for _ in 0..40 {
        store.put(b"k", &value).unwrap();
    }
    let failed = (0..40u8).find_map(|i| store.put(&[i], &value).err());
    let Some(DataletError::Failed(why)) = failed else { panic!("{failed:?}") };
    assert!(why.contains("without a commit"), "{why}");
}

#[test]
fn what_is_flushed_leaves_memory_and_a_cleared_tree_leaves_the_disk() {
    let scratch = Scratch::new("flush");
    let mut store = scratch.open();
    let least = store.bytes();
    for i in 0..600u32 {
        // Not to be compressed away, but of no interest.
        let value: Vec<u8> =
            (0..200_000u32).map(|j| (i ^ j.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        store.put(&(i % 100).to_le_bytes(), &value).unwrap();
        store.commit(b"m", false).unwrap();
        assert!(store.bytes() < least + (160 << 20), "{} bytes after {i}", store.bytes());
    }
    store.clear().unwrap();
    store.put(b"new", b"").unwrap();
    store.commit(b"cleared", false).unwrap();
    assert_eq!(store.len(), Ok(1));
    drop(store);
    // Whatever became of the old tree meanwhile, it is gone now.
    let mut store = scratch.open();
    assert_eq!((store.len(), store.mark()), (Ok(1), Ok(Some(b"cleared".to_vec()))));
    let trees = names(&scratch.0).unwrap().into_iter().filter(|name| name.starts_with("tree-"));
    assert_eq!(trees.collect::<Vec<_>>(), ["tree-2"]);
}
