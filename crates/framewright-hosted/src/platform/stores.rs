//! How a process writes descriptors: with vectors, if the CPU has them and the system saves them.
//!
//! The rule follows from CPUID and XCR0 alone: `clzero` for zeros; otherwise 512 bits at a time;
//! otherwise 256; otherwise `movdir64b`; otherwise 128. There is no trial at start-up. To tell
//! stores apart, it would have to write more than the last-level cache holds (hundreds of megabytes
//! on large machines), which costs more than the best choice gains. `rep stosb` is not used: it
//! bypasses the caches only in runs larger than a section (docs/log/measurements.md).

use framewright::stores::{Line, Store, StoreFeatures};

/// Returns the fastest store of this CPU for `line`.
pub(super) fn fastest(line: &Line) -> Store {
    vectors::store(StoreFeatures::read(), line.is_zero())
        .unwrap_or_else(|| Store::of_this_cpu(line))
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod vectors {
    use super::{Store, StoreFeatures};

    /// There is none on this target.
    pub(super) const fn store(_: StoreFeatures, _: bool) -> Option<Store> {
        None
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors {
    use super::{Line, Store, StoreFeatures};
    use framewright::stores::StoreParts;
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_load_si128, _mm_stream_si128, _mm256_load_si256,
        _mm256_stream_si256, _mm512_load_si512, _mm512_stream_si512,
    };
    use std::ptr::NonNull;

    /// The vector stores.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) enum Kind {
        Avx512,
        Avx2,
        Sse2,
    }

    impl Kind {
        #[cfg(test)]
        pub(super) const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Sse2];

        /// Whether a CPU with these features has it.
        #[cfg(test)]
        pub(super) const fn is_in(self, features: StoreFeatures) -> bool {
            match self {
                Self::Avx512 => features.avx512,
                Self::Avx2 => features.avx2,
                Self::Sse2 => features.movnti,
            }
        }

        /// Applies the rule. Returns `None` if a store without vectors is better.
        pub(super) const fn fastest(features: StoreFeatures, is_zero: bool) -> Option<Self> {
            if features.clzero && is_zero {
                None
            } else if features.avx512 {
                Some(Self::Avx512)
            } else if features.avx2 {
                Some(Self::Avx2)
            } else if features.movdir64b || !features.movnti {
                None
            } else {
                Some(Self::Sse2)
            }
        }

        /// Returns it as a store. Only for a kind that this CPU supports.
        pub(super) const fn store(self) -> Store {
            let parts = match self {
                Self::Avx512 => &StoreParts { name: "AVX-512", write: avx512 },
                Self::Avx2 => &StoreParts { name: "AVX2", write: avx2 },
                Self::Sse2 => &StoreParts { name: "SSE2", write: sse2 },
            };
            // SAFETY: each function writes its lines and nothing else, which the tests check. Code
            // that names a kind has asked CPUID and XCR0 for it. The system saves the vector
            // registers of processes that XCR0 lists (invariant 44).
            unsafe { Store::new(parts) }
        }
    }

    /// Returns the store that the rule chooses for these features, which must be those of this CPU.
    pub(super) fn store(features: StoreFeatures, is_zero: bool) -> Option<Store> {
        Kind::fastest(features, is_zero).map(Kind::store)
    }

    /// Writes a line at a time.
    ///
    /// # Safety
    /// As for [`Store::write`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(start: NonNull<u8>, lines: usize, line: &Line) {
        let line: *const Line = line;
        // SAFETY: a line is 64 bytes and aligned to that.
        let vector = unsafe { _mm512_load_si512(line.cast()) };
        let start = start.cast::<__m512i>();
        for index in 0..lines {
            // SAFETY: the caller has exclusive use of these lines (invariant 28).
            unsafe { _mm512_stream_si512(start.as_ptr().wrapping_add(index), vector) };
        }
    }

    /// Writes half a line at a time; both halves leave together.
    ///
    /// # Safety
    /// As for [`Store::write`], on a CPU with AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(start: NonNull<u8>, lines: usize, line: &Line) {
        let halves = std::ptr::from_ref(line).cast::<__m256i>();
        // SAFETY: a line is 64 bytes and aligned to that.
        let vectors = [0, 1].map(|half| unsafe { _mm256_load_si256(halves.wrapping_add(half)) });
        let start = start.cast::<[__m256i; 2]>();
        for index in 0..lines {
            // SAFETY: the caller has exclusive use of these lines (invariant 28).
            let place = unsafe { start.add(index) }.as_ptr().cast::<__m256i>();
            // SAFETY: as for `place`; this is the first half of that line.
            unsafe { _mm256_stream_si256(place, vectors[0]) };
            // SAFETY: as for `place`; this is the second half of that line.
            unsafe { _mm256_stream_si256(place.wrapping_add(1), vectors[1]) };
        }
    }

    /// Writes a quarter of a line at a time.
    ///
    /// # Safety
    /// As for [`Store::write`].
    unsafe fn sse2(start: NonNull<u8>, lines: usize, line: &Line) {
        let quarters = std::ptr::from_ref(line).cast::<__m128i>();
        let vectors =
            // SAFETY: a line is 64 bytes and aligned to that.
            [0, 1, 2, 3].map(|part| unsafe { _mm_load_si128(quarters.wrapping_add(part)) });
        let start = start.cast::<[__m128i; 4]>();
        for index in 0..lines {
            // SAFETY: the caller has exclusive use of these lines (invariant 28).
            let place = unsafe { start.add(index) }.as_ptr().cast::<__m128i>();
            for (part, &vector) in vectors.iter().enumerate() {
                // SAFETY: as for `place`; this is a quarter of that line.
                unsafe { _mm_stream_si128(place.wrapping_add(part), vector) };
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::vectors::Kind;
    use super::*;
    use std::ptr::NonNull;

    const OLD: Line = Line([u64::MAX; 8]);

    #[test]
    fn every_store_writes_its_lines_and_nothing_else() {
        let features = StoreFeatures::read();
        for line in [Line::ZERO, Line([0, 1, 2, 3, 4, 5, 6, 7])] {
            let kinds = Kind::ALL.into_iter().filter(|kind| kind.is_in(features));
            let mut count = 0;
            for store in kinds.map(Kind::store).chain([fastest(&line)]) {
                count += 1;
                // From every line of a page, and with every remainder of an unrolled loop.
                let places = (0..64).map(|first| first..first + 1 + first % 9);
                for range in places.chain([3..3, 4..4, 1..512, 7..1000, 0..1001]) {
                    let mut all = vec![OLD; 1001];
                    let start = NonNull::from(&mut all[range.start]).cast();
                    // SAFETY: the vector is ours and long enough (invariant 44).
                    unsafe { store.write(start, range.len(), &line) };
                    for (index, &found) in all.iter().enumerate() {
                        let expected = if range.contains(&index) { line } else { OLD };
                        assert_eq!(found, expected, "{store:?} {range:?} {index}");
                    }
                }
            }
            assert!(count >= 2);
        }
    }

    #[test]
    fn what_a_cpu_lacks_is_never_chosen() {
        for bits in 0..32_u8 {
            let mut features = StoreFeatures::NONE;
            (features.movnti, features.clzero) = (bits & 1 != 0, bits & 2 != 0);
            (features.movdir64b, features.avx2) = (bits & 4 != 0, bits & 8 != 0);
            features.avx512 = bits & 16 != 0;
            for is_zero in [false, true] {
                let kind = Kind::fastest(features, is_zero);
                assert!(kind.is_none_or(|kind| kind.is_in(features)), "{features:?}");
                let lacks = [
                    (Kind::Avx512, features.avx512),
                    (Kind::Avx2, features.avx2),
                    (Kind::Sse2, features.movnti),
                ];
                for (lacking, has) in lacks {
                    assert!(has || kind != Some(lacking), "{features:?} {kind:?}");
                }
            }
        }
    }

    #[test]
    fn each_maker_gets_its_own() {
        let of = |clzero: bool, movdir64b: bool, avx2: bool, avx512: bool| {
            let mut features = StoreFeatures::NONE;
            features.movnti = true;
            (features.clzero, features.movdir64b) = (clzero, movdir64b);
            (features.avx2, features.avx512) = (avx2, avx512);
            [true, false].map(|is_zero| Kind::fastest(features, is_zero))
        };
        let (avx512, avx2, sse2) = (Some(Kind::Avx512), Some(Kind::Avx2), Some(Kind::Sse2));
        // Granite Rapids; a CPU like it without 512-bit registers; Zen 3; Zen 4; Zen 5; an Atom; an
        // emulator.
        assert_eq!(of(false, true, true, true), [avx512, avx512]);
        assert_eq!(of(false, true, true, false), [avx2, avx2]);
        assert_eq!(of(true, false, true, false), [None, avx2]);
        assert_eq!(of(true, false, true, true), [None, avx512]);
        assert_eq!(of(true, true, true, true), [None, avx512]);
        assert_eq!(of(false, true, false, false), [None, None]);
        assert_eq!(of(false, false, false, false), [sse2, sse2]);
    }
}
