//! The seed of the shuffle.

use crate::block::random::Random;
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::zone::Zone;

/// Where the seed of the shuffle came from
/// ([`Manager::shuffle_seed`](crate::Manager::shuffle_seed)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShuffleSeed {
    /// The number on the command line: the order can be repeated.
    Given,
    /// The platform's entropy.
    Entropy,
    /// The clock and an address: the order does not repeat, but it can be guessed.
    Clock,
    /// An address alone. Where programs always lie at the same place, the address and so the order
    /// repeat at every boot.
    Address,
}

/// Returns a seed that differs between boots as far as the platform allows, from its entropy, its
/// clock and an address. All of them are mixed in, so that one bad source does not weaken the
/// others.
fn mix(entropy: Option<u64>, clock: Option<u64>, address: u64) -> u64 {
    let words = [entropy, clock].into_iter().flatten();
    let mixed = words.fold(address, |mixed, word| Random::new(mixed).next() ^ word);
    Random::new(mixed).next()
}

/// Turns the shuffle on if it is wanted: from the first block on, nothing merges beyond the order
/// that is shuffled. Returns the seed of the first zone; each later zone's seed is one higher.
pub(crate) fn begin_shuffling<P: Platform>(
    zones: &mut [Zone],
    parameters: &Parameters,
    platform: &P,
) -> Option<(u64, ShuffleSeed)> {
    if !cfg!(feature = "debug") {
        return None;
    }
    if !parameters.shuffle {
        return None;
    }
    let (seed, from) = if let Some(seed) = parameters.shuffle_seed {
        (seed, ShuffleSeed::Given)
    } else {
        let (entropy, clock) = (platform.entropy(), platform.now_ns());
        let from = match (entropy, clock) {
            (Some(_), _) => ShuffleSeed::Entropy,
            (None, Some(_)) => ShuffleSeed::Clock,
            (None, None) => ShuffleSeed::Address,
        };
        (mix(entropy, clock, core::ptr::from_ref(parameters).addr() as u64), from)
    };
    (0..).zip(zones).for_each(|(number, zone)| zone.begin_shuffling(seed.wrapping_add(number)));
    Some((seed, from))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_source_makes_a_difference() {
        let all = [
            mix(None, None, 1),
            mix(None, None, 2),
            mix(None, Some(1), 1),
            mix(None, Some(2), 1),
            mix(Some(3), None, 1),
            mix(Some(4), None, 1),
            mix(Some(1), Some(1), 1),
            mix(Some(1), Some(2), 1),
            mix(Some(2), Some(1), 1),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| (one ^ other).count_ones() > 8), "{index}");
        }
        assert_eq!(mix(Some(3), Some(4), 5), mix(Some(3), Some(4), 5));
    }
}
