//! What CPUID and XCR0 report about a CPU's stores.

/// The stores that a CPU has and its system lets programs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreFeatures {
    /// Writes words past the caches: every x86-64 CPU.
    pub movnti: bool,
    /// Zeroes whole cache lines: AMD since Zen.
    pub clzero: bool,
    /// Copies a line from memory to memory: Intel since Tremont and Tiger Lake, AMD since Zen 5.
    pub movdir64b: bool,
    /// Vectors of 256 bits, whose registers the system saves on a switch.
    pub avx2: bool,
    /// Vectors of 512 bits, whose registers the system saves on a switch.
    pub avx512: bool,
}

/// EAX, EBX, ECX and EDX of a CPUID leaf.
pub type CpuidRegisters = [u32; 4];

/// The first extended leaf.
const EXTENDED: u32 = 0x8000_0000;
/// The XCR0 bits for the 128-bit registers and the upper halves of the 256-bit ones.
const AVX_STATE: u64 = 0b110;
/// In addition: the mask registers, the upper halves of the 512-bit registers, and the other
/// sixteen of these.
const AVX512_STATE: u64 = AVX_STATE | 0b1110_0000;

impl StoreFeatures {
    /// No store.
    pub const NONE: Self =
        Self { movnti: false, clzero: false, movdir64b: false, avx2: false, avx512: false };

    /// Reads the features of this CPU.
    #[must_use]
    pub fn read() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return Self::decode(
            |leaf, subleaf| {
                let found = core::arch::x86_64::__cpuid_count(leaf, subleaf);
                [found.eax, found.ebx, found.ecx, found.edx]
            },
            super::x86::xcr0,
        );
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Self::NONE
    }

    /// Decodes the features of an x86-64 CPU that answers as `cpuid` does for a leaf and a subleaf.
    /// `xcr0` is called only where the system has made that register readable. Leaves that the CPU
    /// does not have are not read, because Intel answers them with another leaf.
    pub fn decode(cpuid: impl Fn(u32, u32) -> CpuidRegisters, xcr0: impl FnOnce() -> u64) -> Self {
        let [highest, ..] = cpuid(0, 0);
        let [highest_extended, ..] = cpuid(EXTENDED, 0);
        let [_, _, basic, _] = if highest >= 1 { cpuid(1, 0) } else { [0; 4] };
        let [_, structured_b, structured_c, _] = if highest >= 7 { cpuid(7, 0) } else { [0; 4] };
        // A CPU without extended leaves may return anything.
        let has_leaf_8 = (EXTENDED + 8..EXTENDED + 0x1_0000).contains(&highest_extended);
        let [_, extended_b, ..] = if has_leaf_8 { cpuid(EXTENDED + 8, 0) } else { [0; 4] };
        let has = |word: u32, bit: u32| word >> bit & 1 != 0;
        let saved = if has(basic, 27) { xcr0() } else { 0 };
        let has_avx = has(basic, 28) && saved & AVX_STATE == AVX_STATE;
        Self {
            movnti: true,
            clzero: has(extended_b, 0),
            movdir64b: has(structured_c, 28),
            avx2: has_avx && has(structured_b, 5),
            avx512: has_avx && saved & AVX512_STATE == AVX512_STATE && has(structured_b, 16),
        }
    }
}

/// CPUID answers of real machines, for the tests of this module and its parent.
#[cfg(all(test, not(loom)))]
pub(super) mod machines {
    use super::{CpuidRegisters, StoreFeatures};

    /// A machine: the leaves that decide about stores (and those read for the number of leaves),
    /// and XCR0 where it can be read.
    pub struct Machine {
        pub name: &'static str,
        pub leaves: &'static [(u32, CpuidRegisters)],
        pub xcr0: Option<u64>,
    }

    impl Machine {
        /// Answers as the CPU does, also for leaves that it does not have: Intel returns the
        /// highest basic leaf, AMD zeros.
        pub fn cpuid(&self, leaf: u32) -> CpuidRegisters {
            let of = |leaf| self.leaves.iter().find(|known| known.0 == leaf).map(|known| known.1);
            let is_amd = of(0).is_some_and(|registers| registers[1] == 0x6874_7541);
            let beyond = if is_amd { [0; 4] } else { [u32::MAX; 4] };
            of(leaf).unwrap_or(beyond)
        }

        pub fn features(&self) -> StoreFeatures {
            let xcr0 = || self.xcr0.expect("a read of XCR0 that the system has not made readable");
            StoreFeatures::decode(|leaf, _| self.cpuid(leaf), xcr0)
        }
    }

    const INTEL: [u32; 3] = [0x756e_6547, 0x6c65_746e, 0x4965_6e69];
    const AMD: [u32; 3] = [0x6874_7541, 0x444d_4163, 0x6974_6e65];

    const fn intel(highest: u32) -> CpuidRegisters {
        [highest, INTEL[0], INTEL[1], INTEL[2]]
    }

    const fn amd(highest: u32) -> CpuidRegisters {
        [highest, AMD[0], AMD[1], AMD[2]]
    }

    /// Xeon 6, under a system that saves all registers.
    pub const GRANITE_RAPIDS: Machine = Machine {
        name: "Granite Rapids",
        leaves: &[
            (0, intel(0x24)),
            (1, [0x000a_06d1, 0x0080_0800, 0x7ffe_fbff, 0xbfeb_fbff]),
            (7, [2, 0xf3bf_bffb, 0xbb41_7fee, 0xffdd_4430]),
            (0x8000_0000, [0x8000_0008, 0, 0, 0]),
            (0x8000_0008, [0x3934, 0x0200, 0, 0]),
        ],
        xcr0: Some(0x0006_02e7),
    };

    /// The Xeon 6 under a system that saves no 512-bit registers.
    pub const GRANITE_RAPIDS_AVX: Machine =
        Machine { name: "without 512 bits", xcr0: Some(7), ..GRANITE_RAPIDS };

    /// Zen 3.
    pub const MILAN: Machine = Machine {
        name: "Milan",
        leaves: &[
            (0, amd(0x10)),
            (1, [0x00a0_0f11, 0x0040_0800, 0x7eda_320b, 0x178b_fbff]),
            (7, [0, 0x219c_97a9, 0x0040_068c, 0x0000_0010]),
            (0x8000_0000, amd(0x8000_0023)),
            (0x8000_0008, [0x3030, 0x91be_f75f, 0x603f, 0x0001_0007]),
        ],
        xcr0: Some(0x207),
    };

    /// Zen 4.
    pub const GENOA: Machine = Machine {
        name: "Genoa",
        leaves: &[
            (0, amd(0x10)),
            (1, [0x00a1_0f11, 0x00c0_0800, 0x7efa_320b, 0x178b_fbff]),
            (7, [1, 0xf1bf_97a9, 0x0041_5fce, 0x1000_0010]),
            (0x8000_0000, amd(0x8000_0028)),
            (0x8000_0008, [0x3934, 0x79be_f25f, 0x80bf, 0x0001_0007]),
        ],
        xcr0: Some(0x2e7),
    };

    /// Zen 5.
    pub const TURIN: Machine = Machine {
        name: "Turin",
        leaves: &[
            (0, amd(0x10)),
            (1, [0x00b0_0f21, 0x0040_0800, 0x7efa_320b, 0x178b_fbff]),
            (7, [1, 0xf1bf_97ab, 0x1941_5fce, 0x1000_0110]),
            (0x8000_0000, amd(0x8000_0028)),
            (0x8000_0008, [0x3934, 0x79be_f25f, 0x703f, 0x0001_0007]),
        ],
        xcr0: Some(0x2e7),
    };

    /// The emulator of QEMU 7.2 with `-cpu max`, under a kernel that has not turned on OSXSAVE:
    /// nobody may use its AVX, and XCR0 cannot be read.
    pub const QEMU_TCG: Machine = Machine {
        name: "QEMU, emulated",
        leaves: &[
            (0, amd(0xd)),
            (1, [0x0006_0fb1, 0x0000_0800, 0xf6d8_320b, 0x0fcb_fbfd]),
            (7, [0, 0x01d8_43a9, 0x8001_020c, 0]),
            (0x8000_0000, amd(0x8000_000a)),
            (0x8000_0008, [0x3928, 0, 0, 0]),
        ],
        xcr0: None,
    };

    /// A CPU with neither leaf 7 nor leaf 0x80000008: its answers for both mean nothing.
    pub const OLD_INTEL: Machine = Machine {
        name: "old",
        leaves: &[
            (0, intel(5)),
            (1, [0x0000_0f41, 0, 0x0000_441d, 0xbfeb_fbff]),
            (0x8000_0000, [0x8000_0004, 0, 0, 0]),
        ],
        xcr0: None,
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::machines::*;
    use super::*;

    #[test]
    fn answers_of_real_machines() {
        // movdir64b, clzero, avx2, avx512
        let expected = [
            (&GRANITE_RAPIDS, [true, false, true, true]),
            (&GRANITE_RAPIDS_AVX, [true, false, true, false]),
            (&MILAN, [false, true, true, false]),
            (&GENOA, [false, true, true, true]),
            (&TURIN, [true, true, true, true]),
            (&QEMU_TCG, [false, false, false, false]),
            (&OLD_INTEL, [false, false, false, false]),
        ];
        for (machine, [movdir64b, clzero, avx2, avx512]) in expected {
            let features = StoreFeatures { movnti: true, movdir64b, clzero, avx2, avx512 };
            assert_eq!(machine.features(), features, "{}", machine.name);
        }
    }

    #[test]
    fn registers_that_the_system_does_not_save_are_not_used() {
        // Every combination of the bits that matter, and of OSXSAVE.
        for saved in 0..=0xff_u64 {
            let machine = Machine { xcr0: Some(saved), ..GRANITE_RAPIDS };
            let features = machine.features();
            assert_eq!(features.avx2, saved & 0b110 == 0b110, "{saved:#x}");
            assert_eq!(features.avx512, saved & 0xe6 == 0xe6, "{saved:#x}");
            assert!(features.movdir64b, "{saved:#x}");
        }
        let without_osxsave = StoreFeatures::decode(
            |leaf, _| match (leaf, GRANITE_RAPIDS.cpuid(leaf)) {
                (1, [a, b, c, d]) => [a, b, c & !(1 << 27), d],
                (_, registers) => registers,
            },
            || panic!("XCR0 cannot be read"),
        );
        assert!(!without_osxsave.avx2 && !without_osxsave.avx512 && without_osxsave.movdir64b);
    }

    #[test]
    fn a_cpu_without_avx_has_no_vectors_whatever_leaf_7_says() {
        let features = StoreFeatures::decode(
            |leaf, _| match (leaf, GRANITE_RAPIDS.cpuid(leaf)) {
                (1, [a, b, c, d]) => [a, b, c & !(1 << 28), d],
                (_, registers) => registers,
            },
            || u64::MAX,
        );
        assert!(!features.avx2 && !features.avx512);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn this_cpu_is_seen_as_the_standard_library_sees_it() {
        let features = StoreFeatures::read();
        assert!(features.movnti);
        assert_eq!(features.avx2, std::is_x86_feature_detected!("avx2"));
        assert_eq!(features.avx512, std::is_x86_feature_detected!("avx512f"));
    }
}
