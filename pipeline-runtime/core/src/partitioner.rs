//! Which partition a key belongs to, as Kafka's clients decide it.
//!
//! Murmur2: `org.apache.kafka.common.utils.Utils.murmur2` and `toPositive`, the Java client's rule for keyed records.
//! CRC32: librdkafka's `consistent` and `consistent_random` partitioners (the plain CRC-32 of zlib).

use crate::ids::Partition;
use crate::plan::Partitioner;

impl Partitioner {
    /// The partition of `key` among `partitions`, which must be above 0.
    pub fn partition(self, key: &[u8], partitions: i32) -> Partition {
        debug_assert!(partitions > 0);
        let hash = match self {
            Self::Murmur2 => murmur2(key) & 0x7fff_ffff,
            Self::Crc32 => crc32(key),
        };
        Partition((hash % partitions as u32) as i32)
    }
}

/// MurmurHash 2 with Kafka's seed.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut h = SEED ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    for (i, byte) in rest.iter().enumerate() {
        h ^= u32::from(*byte) << (8 * i);
    }
    if !rest.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

const CRC32_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut c = n as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
            bit += 1;
        }
        table[n] = c;
        n += 1;
    }
    table
};

/// CRC-32 (IEEE 802.3, reflected), as in zlib.
pub fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| CRC32_TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_gives_what_kafkas_own_client_gives() {
        // Printed by org.apache.kafka.common.utils.Utils of kafka-clients 4.4.0: the hash, and the partition among 8.
        for (key, hash, partition) in [
            ("", 275_646_681, 1),
            ("a", -1_563_381_124, 4),
            ("ab", 316_155_434, 2),
            ("abc", 479_470_107, 3),
            ("abcd", -1_323_649_548, 4),
            ("21", -973_932_308, 4),
            ("foobar", -790_332_482, 6),
            ("a-little-bit-long-string", -985_981_536, 0),
            ("a-little-bit-longer-string", -1_486_304_829, 3),
            ("customer-7", -1_283_830_537, 7),
            ("äöü€", 563_110_447, 7),
            ("9223372036854775807", -1_221_667_907, 5),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
            assert_eq!(Partitioner::Murmur2.partition(key.as_bytes(), 8), Partition(partition), "{key}");
        }
    }

    #[test]
    fn crc32_has_the_standard_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
