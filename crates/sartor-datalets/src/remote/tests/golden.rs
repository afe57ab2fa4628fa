//! The types here are those of `templates/datalet.proto`: a file has messages in words and as bytes. Here the bytes are
//! compared with what these types make; `tests/test_templates.py` has protobuf make them from the words.

use super::server::{Pairs, Results};
use crate::remote::wire::*;
use bytes::Bytes;
use prost::Message;

const GOLDEN: &str = include_str!("../../../../../templates/golden.txt");

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn pair(key: &'static str, value: &'static str) -> Pair {
    Pair { key: bytes(key), value: bytes(value) }
}

fn batch() -> Batch {
    let asks = [
        Ask::Hello(Hello { version: 1, owner: u64::MAX }),
        Ask::Get(bytes("k")),
        Ask::Get(Bytes::new()),
        Ask::Put(pair("k", "v")),
        Ask::Put(pair("", "")),
        Ask::Delete(bytes("k")),
        Ask::Walk(Walk { after: None, pairs_max: 10, bytes_max: 300 }),
        Ask::Walk(Walk { after: Some(Bytes::new()), pairs_max: 10, bytes_max: 300 }),
        Ask::Scan(Scan { start: bytes("a"), end: None, pairs_max: 1, bytes_max: 2 }),
        Ask::Scan(Scan { start: Bytes::new(), end: Some(bytes("b")), pairs_max: 1, bytes_max: 2 }),
        Ask::Len(Nothing {}),
        Ask::Clear(Nothing {}),
        Ask::Commit(Commit { mark: bytes("m"), durably: true }),
        Ask::Mark(Nothing {}),
    ];
    let operations = asks.into_iter().map(|ask| Operation { ask: Some(ask) }).collect();
    Batch { operations, bytes_max: 4 << 20 }
}

fn results() -> Results {
    let page = Pairs { pairs: vec![pair("a", "1"), pair("", "")], next: Some(Bytes::new()) };
    let capabilities = Capabilities {
        version: 1,
        name: "mine".into(),
        ordered: true,
        durable: true,
        key_bytes_max: 65_536,
        value_bytes_max: 1 << 24,
    };
    let all = [
        Said::Capabilities(Box::new(capabilities)),
        Said::Value(bytes("v")),
        Said::Value(Bytes::new()),
        Said::Nothing(Nothing {}),
        Said::Done(Nothing {}),
        Said::Pairs(page.encode_to_vec().into()),
        Said::Pairs(Bytes::new()),
        Said::Count(u64::MAX),
        Said::Error("no".into()),
    ];
    Results {
        generation: 1 << 63,
        results: all.into_iter().map(|said| Answer { said: Some(said) }).collect(),
    }
}

#[test]
fn messages_are_those_of_the_file() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ours = [("Batch", hex(batch().encode_to_vec())), ("Results", hex(results().encode_to_vec()))];
    for (name, ours) in ours {
        let mut lines = GOLDEN.lines().skip_while(|line| *line != name).skip(1);
        let golden: String = lines.by_ref().take_while(|line| !line.is_empty()).last().unwrap().into();
        assert_eq!(golden, ours, "{name}");
    }
}
