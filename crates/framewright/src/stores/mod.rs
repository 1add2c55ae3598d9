//! Writes lines of 64 bytes past the caches, as fast as this CPU can.
//!
//! The memory map is some hundreds of megabytes that nobody reads soon, so it is written with
//! stores that neither read the old content nor evict other lines from the caches. CPUs have
//! several such instructions, and differ in which is the fastest. A [`Store`] is one of them.
//! [`Store::of_this_cpu`] chooses by CPUID ([`StoreFeatures`]) among those that need no vector
//! registers, so that interrupt handlers, and kernels that save no such registers, may use it:
//!
//! | store | where it is used |
//! |---|---|
//! | `clzero` | zeros, on every CPU that has it (AMD) |
//! | `movdir64b` | any content, on CPUs without `clzero` that have it |
//! | `movnti` | any content, elsewhere on x86-64, and nonzero content on AMD |
//! | plain | other processors |
//!
//! An adopter that may use vector registers, or knows the machine better, makes a store of its own
//! ([`Store::new`]) and returns it from
//! [`VmemmapSpace::store`](crate::vmemmap_space::VmemmapSpace::store).
//!
//! Stores past the caches are weakly ordered: a later release store does not wait for them.
//! [`Store::write`] waits for them with `sfence`.

mod features;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

pub use features::{CpuidRegisters, StoreFeatures};

use core::fmt;
use core::ptr::NonNull;

/// 64 bytes that are written many times over: a cache line, or a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

impl Line {
    /// 64 zero bytes.
    pub const ZERO: Self = Self([0; 8]);

    /// Whether all bytes are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

/// Writes a line to each of `lines` consecutive places; see [`StoreParts::write`].
pub type WriteLines = unsafe fn(start: NonNull<u8>, lines: usize, line: &Line);

/// The parts of a [`Store`].
#[derive(Clone, Copy)]
pub struct StoreParts {
    /// The store's name in logs: the instruction.
    pub name: &'static str,
    /// Writes the 64 bytes of `line` to `start` and to the `lines - 1` places of 64 bytes after it,
    /// and to nothing else. Its safety conditions are those of [`Store::write`]. It need not order
    /// its writes.
    pub write: WriteLines,
}

/// A way to write lines that this machine has.
#[derive(Clone, Copy)]
pub struct Store(&'static StoreParts);

impl Store {
    /// Makes a store from the caller's parts.
    ///
    /// # Safety
    /// Invariant 44: `write` does what [`StoreParts::write`] says, for every content for which this
    /// store is used; every CPU that uses it has its instructions; and wherever it is used, the
    /// registers that it changes are saved for the code that was interrupted.
    #[must_use]
    pub const unsafe fn new(parts: &'static StoreParts) -> Self {
        Self(parts)
    }

    /// The fastest store of this CPU for `line` that needs no vector registers. This executes
    /// CPUID, which can be slow under a hypervisor, so call it once. It assumes that all CPUs of a
    /// machine have what this one has.
    #[must_use]
    pub fn of_this_cpu(line: &Line) -> Self {
        Kind::fastest(StoreFeatures::read(), line.is_zero()).store()
    }

    /// All stores of this CPU for `line` that need no vector registers.
    pub fn all_of_this_cpu(line: &Line) -> impl Iterator<Item = Self> {
        let (features, is_zero) = (StoreFeatures::read(), line.is_zero());
        Kind::ALL.into_iter().filter(move |kind| kind.can(features, is_zero)).map(Kind::store)
    }

    /// The store's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Writes `line` to `start` and to the `lines - 1` places after it. After it returns, a CPU
    /// that sees a later store of the caller also sees the lines.
    ///
    /// # Safety
    /// `start` is aligned to 64 bytes, and the `lines` times 64 bytes from there on are writable
    /// and belong to nobody else (invariant 28). The store was made or chosen for this content: one
    /// for zeros may write nothing else.
    pub unsafe fn write(self, start: NonNull<u8>, lines: usize, line: &Line) {
        // SAFETY: the caller owns the lines alone (invariant 28), and the maker of this store
        // vouched that its instructions are there (invariant 44).
        unsafe { (self.0.write)(start, lines, line) };
        fence();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.name()).finish()
    }
}

/// Orders stores past the caches before the store that publishes them.
fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    x86::fence();
}

/// The stores that this module has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Clzero,
    Movdir64b,
    Movnti,
    Plain,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Clzero, Self::Movdir64b, Self::Movnti, Self::Plain];

    /// Whether a CPU with `features` can write such a line with this store.
    const fn can(self, features: StoreFeatures, is_zero: bool) -> bool {
        match self {
            Self::Clzero => features.clzero && is_zero,
            Self::Movdir64b => features.movdir64b,
            Self::Movnti => features.movnti,
            // Where there is a better store, nobody needs this one.
            Self::Plain => !features.movnti,
        }
    }

    /// Chooses the fastest store. `movdir64b` measured faster than `movnti` on Intel. Nobody has
    /// compared them on CPUs with `clzero`, so those keep the stores that were measured there.
    const fn fastest(features: StoreFeatures, is_zero: bool) -> Self {
        if Self::Clzero.can(features, is_zero) {
            Self::Clzero
        } else if Self::Movdir64b.can(features, is_zero) && !features.clzero {
            Self::Movdir64b
        } else if Self::Movnti.can(features, is_zero) {
            Self::Movnti
        } else {
            Self::Plain
        }
    }

    /// The [`Store`] of this kind; only for kinds that this CPU can use.
    fn store(self) -> Store {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let parts = match self {
            Self::Clzero => &StoreParts { name: "clzero", write: x86::clzero },
            Self::Movdir64b => &StoreParts { name: "movdir64b", write: x86::movdir64b },
            Self::Movnti => &StoreParts { name: "movnti", write: x86::movnti },
            Self::Plain => &StoreParts { name: "plain", write: plain },
        };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let parts = &StoreParts { name: "plain", write: plain };
        Store(parts)
    }
}

/// # Safety
/// As for [`Store::write`].
unsafe fn plain(start: NonNull<u8>, lines: usize, line: &Line) {
    let start = start.cast::<Line>();
    for index in 0..lines {
        // SAFETY: the caller owns these lines alone (invariant 28).
        let place = unsafe { start.add(index) };
        // SAFETY: as for `place`.
        unsafe { place.write(*line) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    const OLD: Line = Line([u64::MAX; 8]);

    fn written(store: Store, line: &Line, range: core::ops::Range<usize>) -> Vec<Line> {
        let mut all = std::vec![OLD; 1001];
        let start = NonNull::from(&mut all[range.start]).cast();
        // SAFETY: the vector is ours and long enough (invariant 44).
        unsafe { store.write(start, range.len(), line) };
        all
    }

    #[test]
    fn every_store_writes_its_lines_and_nothing_else() {
        let line = Line([0, 1, 2, 3, 4, 5, 6, 7]);
        for line in [Line::ZERO, line, Line([u64::MAX - 1; 8])] {
            let plain = Kind::Plain.store();
            let all: Vec<Store> = Store::all_of_this_cpu(&line).chain([plain]).collect();
            assert!(all.iter().any(|store| store.name() == Store::of_this_cpu(&line).name()));
            for store in all {
                // From every line of a page, and with every remainder of an unrolled loop.
                let places = (0..64).map(|first| first..first + 1 + first % 9);
                for range in places.chain([3..3, 4..4, 1..512, 7..1000, 0..1001]) {
                    let all = written(store, &line, range.clone());
                    for (index, &found) in all.iter().enumerate() {
                        let expected = if range.contains(&index) { line } else { OLD };
                        assert_eq!(found, expected, "{store:?} {range:?} {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_cpu_lacks_is_never_chosen() {
        for bits in 0..8_u8 {
            let features = StoreFeatures {
                clzero: bits & 1 != 0,
                movdir64b: bits & 2 != 0,
                movnti: bits & 4 != 0,
                ..StoreFeatures::NONE
            };
            for is_zero in [false, true] {
                let kind = Kind::fastest(features, is_zero);
                assert!(kind.can(features, is_zero), "{features:?} {kind:?}");
                assert!(kind != Kind::Clzero || is_zero && features.clzero, "{features:?}");
                assert!(kind != Kind::Movdir64b || features.movdir64b, "{features:?}");
                assert!(kind != Kind::Movnti || features.movnti, "{features:?}");
            }
        }
    }

    #[test]
    fn each_maker_gets_its_own() {
        use features::machines::{GENOA, GRANITE_RAPIDS, MILAN, QEMU_TCG, TURIN};
        for (machine, zero, other) in [
            (&GRANITE_RAPIDS, Kind::Movdir64b, Kind::Movdir64b),
            (&MILAN, Kind::Clzero, Kind::Movnti),
            (&GENOA, Kind::Clzero, Kind::Movnti),
            (&TURIN, Kind::Clzero, Kind::Movnti),
            (&QEMU_TCG, Kind::Movnti, Kind::Movnti),
        ] {
            let features = machine.features();
            assert_eq!(Kind::fastest(features, true), zero, "{}", machine.name);
            assert_eq!(Kind::fastest(features, false), other, "{}", machine.name);
        }
    }
}
