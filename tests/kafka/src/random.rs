//! Names that no other instance has. Where a test needs a seed it takes it as an argument; this is not for that.

use std::hash::{BuildHasher, Hasher, RandomState};

fn bits() -> u64 {
    // The standard library seeds it from the system's entropy.
    RandomState::new().build_hasher().finish()
}

/// Three octets, none of them 0 or 255.
pub fn octets() -> [u8; 3] {
    let bits = bits();
    [0, 16, 32].map(|shift| ((bits >> shift) % 254) as u8 + 1)
}

/// Sixteen bytes as Kafka writes them: URL-safe base64 without padding, never with a leading dash.
pub fn kafka_uuid() -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = (u128::from(bits()) << 64) | u128::from(bits());
    // 128 bits are 21 digits of six bits and one of two, which stands in the high bits of its digit.
    let digit = |i: u32| match i {
        // Keeps the first digit among the letters.
        0 => ALPHABET[(bits >> 123) as usize & 31],
        21 => ALPHABET[(bits as usize & 3) << 4],
        _ => ALPHABET[(bits >> (122 - 6 * i)) as usize & 63],
    };
    (0..22).map(|i| char::from(digit(i))).collect()
}
