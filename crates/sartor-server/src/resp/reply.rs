//! Writes replies, in the version of the protocol that the connection speaks.

use sartor_core::operation::format_integer;

/// The version a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RESP2.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// A reply buffer with the grammar of RESP.
pub trait Reply {
    /// `+text`.
    fn simple(&mut self, text: &str);
    /// `-text`; line ends in it become spaces.
    fn error(&mut self, text: &str);
    /// `:number`.
    fn integer(&mut self, number: i64);
    /// `$len` and the bytes.
    fn bulk(&mut self, bytes: &[u8]);
    /// Nothing.
    fn null(&mut self, version: Version);
    /// Nothing, where an array was expected.
    fn null_array(&mut self, version: Version);
    /// The head of an array.
    fn array(&mut self, len: usize);
    /// The head of a map of `len` pairs, an array of twice that in RESP2.
    fn map(&mut self, len: usize, version: Version);
    /// The head of a set, an array in RESP2.
    fn set(&mut self, len: usize, version: Version);
}

fn header(out: &mut Vec<u8>, kind: u8, number: i64) {
    out.push(kind);
    out.extend_from_slice(format_integer(number, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

impl Reply for Vec<u8> {
    fn simple(&mut self, text: &str) {
        self.push(b'+');
        self.extend_from_slice(text.as_bytes());
        self.extend_from_slice(b"\r\n");
    }

    fn error(&mut self, text: &str) {
        self.push(b'-');
        self.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.extend_from_slice(b"\r\n");
    }

    fn integer(&mut self, number: i64) {
        header(self, b':', number);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len() + 32);
        // Most are short.
        let len = bytes.len() as u8;
        match bytes.len() {
            0..10 => self.extend_from_slice(&[b'$', b'0' + len, b'\r', b'\n']),
            10..100 => self.extend_from_slice(&[b'$', b'0' + len / 10, b'0' + len % 10, b'\r', b'\n']),
            _ => header(self, b'$', bytes.len() as i64),
        }
        self.extend_from_slice(bytes);
        self.extend_from_slice(b"\r\n");
    }

    fn null(&mut self, version: Version) {
        self.extend_from_slice(if version == Version::Three { b"_\r\n" } else { b"$-1\r\n" });
    }

    fn null_array(&mut self, version: Version) {
        self.extend_from_slice(if version == Version::Three { b"_\r\n" } else { b"*-1\r\n" });
    }

    fn array(&mut self, len: usize) {
        header(self, b'*', len as i64);
    }

    fn map(&mut self, len: usize, version: Version) {
        match version {
            Version::Two => header(self, b'*', 2 * len as i64),
            Version::Three => header(self, b'%', len as i64),
        }
    }

    fn set(&mut self, len: usize, version: Version) {
        header(self, if version == Version::Three { b'~' } else { b'*' }, len as i64);
    }
}
