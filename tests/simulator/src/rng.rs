//! SplitMix64: small, seeded, and the same on every machine.

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is above 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn per_mille(&mut self, chance: u32) -> bool {
        self.next() % 1000 < u64::from(chance)
    }

    /// An index, as likely as its weight; the sum of the weights is above 0.
    pub fn weighted(&mut self, weights: impl IntoIterator<Item = u32, IntoIter: Clone>) -> usize {
        let mut weights = weights.into_iter();
        let mut left = self.next() % weights.clone().map(u64::from).sum::<u64>();
        weights
            .position(|weight| {
                let hit = left < u64::from(weight);
                left = left.wrapping_sub(u64::from(weight));
                hit
            })
            .unwrap_or(0)
    }
}
