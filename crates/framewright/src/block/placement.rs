//! Random placement: which of several equally good places memory is taken from.
//!
//! Callers must not rely on that choice, and with `careful` they cannot.

use super::random::Random;

/// A generator, or none; without one, every coin shows the usual side. Changed under the zone lock.
pub(crate) struct Placement(Option<Random>);

impl Placement {
    /// Always chooses the usual place.
    pub(crate) const USUAL: Self = Self(None);

    /// Chooses random places.
    pub(crate) const fn random(seed: u64) -> Self {
        Self(Some(Random::new(seed)))
    }

    /// Returns whether places are chosen at random.
    pub(crate) const fn is_random(&self) -> bool {
        cfg!(feature = "debug") && self.0.is_some()
    }

    /// Returns true for the unusual side; never when places are the usual ones.
    pub(crate) fn coin(&mut self) -> bool {
        if !cfg!(feature = "debug") {
            return false;
        }
        self.0.as_mut().is_some_and(Random::coin)
    }

    /// Returns 64 random bits; 0 when places are the usual ones.
    pub(crate) fn bits(&mut self) -> u64 {
        if !cfg!(feature = "debug") {
            return 0;
        }
        self.0.as_mut().map_or(0, Random::next)
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
