//! Fingerprints of data: the same on every machine and in every release.

/// FNV-1a with 64 bits. The constants are those of its authors; it is stable by definition, unlike the hashers of the
/// standard library.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
