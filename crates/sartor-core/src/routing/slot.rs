//! Key to slot: CRC16 (XMODEM) modulo 16,384, of the hash tag where there is one.
//!
//! The same function as in Redis Cluster, so that its clients agree with us.

/// How many slots a table has.
pub const SLOTS: u16 = 16_384;

/// `CRC16[n][byte]`: what a byte adds to the checksum when `n` bytes come after it, so that four bytes
/// are taken at once: every request hashes its key here.
const CRC16: [[u16; 256]; 4] = tables();

const fn tables() -> [[u16; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut after = 0;
        while after < 4 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            tables[after][byte] = crc;
            after += 1;
        }
        byte += 1;
    }
    tables
}

fn crc16(bytes: &[u8]) -> u16 {
    let (fours, rest) = bytes.as_chunks::<4>();
    let crc = fours.iter().fold(0u16, |crc, &[a, b, c, d]| {
        let [high, low] = crc.to_be_bytes();
        CRC16[3][usize::from(a ^ high)]
            ^ CRC16[2][usize::from(b ^ low)]
            ^ CRC16[1][usize::from(c)]
            ^ CRC16[0][usize::from(d)]
    });
    rest.iter().fold(crc, |crc, &byte| (crc << 8) ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// What is between the first `{` and the next `}`, if it is not empty; else the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    if !may_hold(key, b'{') {
        return key;
    }
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    match key[open + 1..].iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(len) => &key[open + 1..open + 1 + len],
    }
}

/// Whether a byte is in a key, or perhaps only looks so; eight are looked at together, as nearly no key has a tag.
fn may_hold(key: &[u8], byte: u8) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let (eights, rest) = key.as_chunks::<8>();
    // A byte that is equal becomes zero, and only a zero borrows from its highest bit.
    let holds = |eight: &[u8; 8]| {
        let zeros = u64::from_ne_bytes(*eight) ^ (LOW * u64::from(byte));
        zeros.wrapping_sub(LOW) & !zeros & HIGH != 0
    };
    eights.iter().any(holds) || rest.contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for len in 0..40 {
            let bytes: alloc::vec::Vec<u8> = (0..len).map(|i: u8| i.wrapping_mul(37) ^ 0xa5).collect();
            let one_by_one = bytes.iter().fold(0u16, |crc, &byte| {
                (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                    (crc << 1) ^ if crc >> 15 == 1 { 0x1021 } else { 0 }
                })
            });
            assert_eq!(crc16(&bytes), one_by_one, "{len} bytes");
        }
        for (key, slot) in [("foo", 12182), ("bar", 5061), ("", 0), ("somekey", 11058)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn hash_tags_keep_keys_together() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
        assert_eq!(hash_tag(b"longer than eight {tag} bytes"), b"tag");
        assert_eq!(hash_tag(b"0123456{tag}"), b"tag");
    }
}
