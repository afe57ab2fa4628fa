//! SSDB, which no package has: against what its source says that it answers.

use super::fake::{Fake, Flavour};
use super::{get, open};
use crate::conformance::check;
use crate::{Options, engine};
use sartor_core::datalet::{Cursor, Page};

#[test]
fn it_conforms_in_both_its_flavours() {
    for flavour in [Flavour::OldSsdb, Flavour::NewSsdb] {
        let fake = Fake::new(flavour);
        let options = Options { address: fake.address.clone(), ..Options::default() };
        for verdict in check(engine("ssdb").unwrap(), &options) {
            assert_eq!(verdict.result, Ok(()), "{}", verdict.check);
        }
        assert!(fake.with(|state| state.pairs.is_empty()));
    }
}

#[test]
fn it_is_spoken_to_as_its_answers_were_recorded() {
    let fake = Fake::scripted(&[
        ("*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n", "*1\r\n$1\r\n1\r\n"),
        ("*2\r\n$3\r\nGET\r\n$1\r\n-\r\n", "$-1\r\n"),
        (
            "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*2\r\n$3\r\nDEL\r\n$1\r\nb\r\n*2\r\n$3\r\nGET\r\n$1\r\nc\r\n",
            "+OK\r\n:1\r\n$2\r\nxy\r\n",
        ),
        ("*4\r\n$4\r\nKEYS\r\n$0\r\n\r\n$0\r\n\r\n$1\r\n2\r\n", "*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
        ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nc\r\n", "$1\r\n1\r\n$-1\r\n"),
        ("*4\r\n$4\r\nKEYS\r\n$1\r\nc\r\n$0\r\n\r\n$1\r\n1\r\n", "*0\r\n"),
    ]);
    let mut store = open(&format!("ssdb://:secret@{}", fake.address)).unwrap();
    store.put(b"a", b"1").unwrap();
    store.delete(b"b").unwrap();
    assert_eq!(get(store.as_mut(), "c"), Ok(Some("xy".into())));
    let (mut cursor, mut page) = (Cursor::Start, Page::new(2, 1000));
    store.walk(&mut cursor, &mut page).unwrap();
    // One vanished meanwhile.
    assert_eq!(page.pairs(), [("a".into(), "1".into())]);
    assert_eq!(cursor, Cursor::End);
}
