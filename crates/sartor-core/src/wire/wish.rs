//! What users want changed, as bytes.

use crate::coordinator::switch::TableShape;
use crate::coordinator::tables::{NewTable, Parts};
use crate::coordinator::wish::{Change, Wish};
use crate::ids::Epoch;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_varint};
use alloc::vec::Vec;

const RESHAPE: u8 = 0;
const CREATE_BY_HASH: u8 = 1;
const CREATE_BY_RANGE: u8 = 2;
const DELETE: u8 = 3;
const SPLIT: u8 = 4;

impl Wire for Wish {
    fn encode(&self, out: &mut Vec<u8>) {
        self.since.encode(out);
        match &self.change {
            Change::Reshape(table, shape) => {
                out.push(RESHAPE);
                put_varint(out, u64::from(*table));
                shape.encode(out);
            }
            Change::Create(NewTable { name, shape, parts: Parts::Hash(count) }) => {
                out.push(CREATE_BY_HASH);
                put_bytes(out, name.as_bytes());
                shape.encode(out);
                put_varint(out, u64::from(*count));
            }
            Change::Create(NewTable { name, shape, parts: Parts::Range(bounds) }) => {
                out.push(CREATE_BY_RANGE);
                put_bytes(out, name.as_bytes());
                shape.encode(out);
                put_list(out, bounds, |out, bound| put_bytes(out, bound));
            }
            Change::Delete(table) => {
                out.push(DELETE);
                put_varint(out, u64::from(*table));
            }
            Change::Split(table, at) => {
                out.push(SPLIT);
                put_varint(out, u64::from(*table));
                put_bytes(out, at);
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Wish, Malformed> {
        let since = Epoch::decode(from)?;
        let change = match from.byte()? {
            RESHAPE => Change::Reshape(from.number()?, TableShape::decode(from)?),
            kind @ (CREATE_BY_HASH | CREATE_BY_RANGE) => {
                let (name, shape) = (from.text()?, TableShape::decode(from)?);
                let parts = match kind {
                    CREATE_BY_HASH => Parts::Hash(from.number()?),
                    _ => Parts::Range(from.list(Reader::bytes)?),
                };
                Change::Create(NewTable { name, shape, parts })
            }
            DELETE => Change::Delete(from.number()?),
            SPLIT => Change::Split(from.number()?, from.bytes()?),
            _ => return Err(Malformed("unknown wish")),
        };
        Ok(Wish { change, since })
    }
}

impl Wire for TableShape {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.mode.as_bytes());
        put_bytes(out, self.datalet.as_bytes());
        out.push(self.copies);
    }

    fn decode(from: &mut Reader) -> Result<TableShape, Malformed> {
        Ok(TableShape { mode: from.text()?, datalet: from.text()?, copies: from.byte()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;

    #[test]
    fn wishes_come_back() {
        let shape = TableShape { mode: "ms+sc".into(), datalet: "tree".into(), copies: 3 };
        let create = |parts| Change::Create(NewTable { name: "t".into(), shape: shape.clone(), parts });
        let changes = [
            Change::Reshape(7, shape.clone()),
            create(Parts::Hash(9)),
            create(Parts::Range(vec![Bytes::from_static(b"a"), Bytes::from_static(b"m\0")])),
            Change::Delete(3),
            Change::Split(3, Bytes::from_static(b"m")),
        ];
        for change in changes {
            let wish = Wish { change, since: Epoch(5) };
            assert_eq!(Wish::from_bytes(wish.to_bytes()), Ok(wish));
        }
    }
}
