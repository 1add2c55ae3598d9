//! Random placement: which of several equally good places memory is taken from.
//!
//! Nothing may rely on which that is, and with `careful` nothing can.

/// A generator, or none: then every coin shows the usual side. Changed under the zone lock.
pub(crate) struct Placement(u64);

impl Placement {
    /// As usual.
    pub(crate) const USUAL: Self = Self(0);

    /// At random.
    pub(crate) fn random(seed: u64) -> Self {
        // Any seed will do but the one that stays zero for ever.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// Whether places are chosen at random.
    #[inline]
    pub(crate) const fn is_random(&self) -> bool {
        self.0 != 0
    }

    /// True for the other side; never when places are as usual.
    #[inline]
    pub(crate) fn coin(&mut self) -> bool {
        self.is_random() && self.next() >> 40 & 1 != 0
    }

    /// 64 random bits: xorshift, which is all that is needed to break an assumption.
    #[cold]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_coin_never_turns_and_the_random_one_does() {
        let mut usual = Placement::USUAL;
        assert!((0..1000).all(|_| !usual.coin()));
        for seed in [0, 1, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            let mut random = Placement::random(seed);
            let heads = (0..1000).filter(|_| random.coin()).count();
            assert!((400..600).contains(&heads), "{heads} of 1000");
        }
    }
}
