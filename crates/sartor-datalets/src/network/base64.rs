//! Keys of any bytes as memcached's meta commands take them.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in base64, padded.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place > three.len() { b'=' } else { digit });
        }
    }
}

/// How long `len` bytes become.
pub(super) const fn encoded_len(len: usize) -> usize {
    len.div_ceil(3) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_what_the_standard_says() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}\0", "w78A"),
        ];
        for (bytes, encoded) in examples {
            let mut out = Vec::new();
            encode(bytes.as_bytes(), &mut out);
            assert_eq!((out.as_slice(), out.len()), (encoded.as_bytes(), encoded_len(bytes.len())));
        }
    }
}
