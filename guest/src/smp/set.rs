//! Sets of CPUs.
//!
//! Orders of memory: changes are AcqRel and loads Acquire. Code that finds a CPU in the set sees
//! what the CPU did before it was inserted; code that finds that it has left sees what it did
//! before that.

use core::sync::atomic::{AtomicU64, Ordering};

/// The most CPUs that the guest uses.
pub const MAX_CPUS: usize = 255;

const WORDS: usize = MAX_CPUS.div_ceil(64);

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// This set with CPU `index`.
    pub fn with(mut self, index: u32) -> Self {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word |= 1 << (index % 64);
        }
        self
    }

    /// This set without CPU `index`.
    pub fn without(mut self, index: u32) -> Self {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
        self
    }

    /// The CPUs that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// How many CPUs are in the set.
    pub fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The CPUs of the set, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0u32..)
            .step_by(64)
            .zip(self.0)
            .flat_map(|(first, word)| bits(word).map(move |bit| first + bit))
    }
}

/// Returns the numbers of the bits that are set.
pub fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        bit
    })
}

/// A set that changes while others read it.
pub struct AtomicCpuSet([AtomicU64; WORDS]);

impl AtomicCpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Adds a CPU. What it did before is visible to any CPU that finds it in the set.
    pub fn insert(&self, index: u32) {
        if let Some(word) = self.0.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::AcqRel);
        }
    }

    /// Removes a CPU. What it did before is visible to any CPU that finds it gone.
    pub fn remove(&self, index: u32) {
        if let Some(word) = self.0.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        }
    }

    /// Whether a CPU is in the set.
    pub fn contains(&self, index: u32) -> bool {
        self.0
            .get(index as usize / 64)
            .is_some_and(|word| word.load(Ordering::Acquire) >> (index % 64) & 1 != 0)
    }

    /// The present content of the set.
    pub fn read(&self) -> CpuSet {
        CpuSet(core::array::from_fn(|word| self.0[word].load(Ordering::Acquire)))
    }
}
