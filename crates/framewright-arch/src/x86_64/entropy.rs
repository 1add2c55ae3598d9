//! Randomness from the CPU (RDRAND).

use core::arch::x86_64::{__cpuid, _rdrand64_step};

/// How often a generator without available bits is asked again, as Intel advises.
const TRIES: u32 = 10;

/// 64 bits from the CPU's generator. `None` if there is no generator, if it has no bits now, or if
/// it repeats one value, as those of some CPUs did after a suspend.
#[must_use]
pub fn random() -> Option<u64> {
    if __cpuid(1).ecx & 1 << 30 == 0 {
        return None;
    }
    // SAFETY: the CPU has the instruction.
    let next = || unsafe { draw() };
    checked(next()?, next()?)
}

/// The first of two words, unless they are what a broken generator returns.
const fn checked(first: u64, second: u64) -> Option<u64> {
    if first == second || first == u64::MAX || first == 0 { None } else { Some(first) }
}

/// One word.
///
/// # Safety
/// The CPU has RDRAND.
#[target_feature(enable = "rdrand")]
unsafe fn draw() -> Option<u64> {
    let mut word = 0;
    for _ in 0..TRIES {
        if _rdrand64_step(&mut word) == 1 {
            return Some(word);
        }
        core::hint::spin_loop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_generator_is_none() {
        assert_eq!(checked(5, 6), Some(5));
        assert_eq!(checked(5, 5), None);
        assert_eq!(checked(u64::MAX, 6), None);
        assert_eq!(checked(0, 6), None);
    }

    #[test]
    fn words_differ_where_there_is_a_generator() {
        if let (Some(one), Some(other)) = (random(), random()) {
            assert_ne!(one, other);
        }
    }
}
