//! Random numbers for the shuffle and for placement at random.

/// A generator of random numbers and coin tosses.
pub(crate) struct Random {
    state: u64,
    coins: u64,
    left: u32,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed, coins: 0, left: 0 }
    }

    /// Returns 64 random bits (`SplitMix64`: a counter, well mixed).
    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Tosses a coin; one word of random bits lasts for 64 tosses.
    pub(crate) const fn coin(&mut self) -> bool {
        if self.left == 0 {
            (self.coins, self.left) = (self.next(), 64);
        }
        self.left -= 1;
        let coin = self.coins & 1 != 0;
        self.coins >>= 1;
        coin
    }

    /// Returns a number below `limit`, which must not be 0; all are equally likely.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        // The upper half of the product is uniform, except for a remainder; a throw that falls into
        // it is repeated.
        let threshold = limit.wrapping_neg() % limit;
        loop {
            let product = (self.next() >> 32) * u64::from(limit);
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            let low = product as u32;
            if low >= threshold {
                return u32::try_from(product >> 32).unwrap_or(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_coins_are_even() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        let heads = (0..64_000).filter(|_| random.coin()).count();
        assert!((31_300..32_700).contains(&heads), "{heads}");
        assert!((0..100).all(|_| random.below(1) == 0));
    }
}
