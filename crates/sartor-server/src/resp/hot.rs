//! The two requests that are asked for most, found where they lie: `GET key` and `SET key value` with short arguments.
//! Whatever is not exactly one of them, or not all there, is the parser's.

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hot<'a> {
    /// `GET key`.
    Get(&'a [u8]),
    /// `SET key value`.
    Set(&'a [u8], &'a [u8]),
}

/// The request at the front of `buffer`, and how many bytes it has.
pub fn find(buffer: &[u8]) -> Option<(Hot<'_>, usize)> {
    let (&head, mut rest) = buffer.split_first_chunk::<HEAD>()?;
    let [.., a, b, c] = head;
    let hot = match (head.first_chunk::<8>()?, [a | 32, b | 32, c | 32]) {
        (b"*2\r\n$3\r\n", [b'g', b'e', b't']) => Hot::Get(argument(&mut rest)?),
        (b"*3\r\n$3\r\n", [b's', b'e', b't']) => Hot::Set(argument(&mut rest)?, argument(&mut rest)?),
        _ => return None,
    };
    let rest = rest.strip_prefix(b"\r\n")?;
    Some((hot, buffer.len() - rest.len()))
}

/// Count, length and name: `*2`, `$3`, `GET`, each but the last with its line end.
const HEAD: usize = 11;

/// Reads the line end before an argument, its length of at most three digits, and itself.
fn argument<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let digit = |byte: u8| usize::from(byte - b'0');
    let (len, rest) = match from.strip_prefix(b"\r\n$")? {
        [a @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => (digit(*a), rest),
        [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => (digit(*a) * 10 + digit(*b), rest),
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            (digit(*a) * 100 + digit(*b) * 10 + digit(*c), rest)
        }
        _ => return None,
    };
    let (argument, rest) = rest.split_at_checked(len)?;
    *from = rest;
    Some(argument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse::{Args, Parsed, Parser};
    use crate::settings::Settings;
    use bytes::BytesMut;
    use sartor_core::random::Random;

    fn words(hot: Hot<'_>) -> Vec<Vec<u8>> {
        match hot {
            Hot::Get(key) => vec![b"get".to_vec(), key.to_vec()],
            Hot::Set(key, value) => vec![b"set".to_vec(), key.to_vec(), value.to_vec()],
        }
    }

    /// What the parser makes of it, and how many bytes it takes.
    fn parsed(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        let (mut parser, mut args, mut buffer) = (Parser::default(), Args::default(), BytesMut::from(bytes));
        let found = parser.next(&mut buffer, &Settings::default(), &mut args);
        let words = || (0..args.len()).map(|i| args.get(i).to_vec()).collect();
        (found == Parsed::Request).then(|| (words(), bytes.len() - buffer.len()))
    }

    #[test]
    fn it_agrees_with_the_parser() {
        let mut random = Random::new(5);
        let pieces: [&[u8]; 14] = [
            b"*2\r\n$3\r\nGET\r\n",
            b"*3\r\n$3\r\nSET\r\n",
            b"$3\r\nkey\r\n",
            b"$0\r\n\r\n",
            b"$12\r\nabcd\r\nefghij\r\n",
            b"$5\r\n",
            b"12345\r\n",
            b"$-1\r\n",
            b"$\r\n",
            b"*1\r\n",
            b"$3\r\nset\r\n",
            b"\r\n",
            b"*2\r\n$3\r\ngeT\r\n",
            b"$0001\r\nx\r\n",
        ];
        let mut hits = 0;
        for _ in 0..100_000 {
            let mut bytes: Vec<u8> = Vec::new();
            for _ in 0..random.between(1, 5) {
                bytes.extend_from_slice(pieces[random.below(pieces.len() as u64) as usize]);
            }
            bytes.truncate(bytes.len() - random.below(3) as usize);
            if let Some((hot, len)) = find(&bytes) {
                let (mut wanted, whole) = parsed(&bytes).unwrap();
                wanted[0].make_ascii_lowercase();
                assert_eq!((words(hot), len), (wanted, whole), "{}", bytes.escape_ascii());
                hits += 1;
            }
        }
        assert!(hits > 1000, "{hits}");
    }

    #[test]
    fn plain_requests_are_found() {
        let get = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
        let set = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$0\r\n\r\nmore";
        assert_eq!(find(get), Some((Hot::Get(b"key"), get.len())));
        assert_eq!(find(set), Some((Hot::Set(b"k", b""), set.len() - 4)));
        for len in 0..get.len() {
            assert_eq!(find(&get[..len]), None);
        }
    }
}
