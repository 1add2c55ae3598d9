//! First values of descriptors, at the best rate of the machine.
//!
//! Zeros go out with `clzero` where the processor has it, else with `movnti`, as a template does.
//! Both write past the caches, use no vector registers, and so may run in interrupt context and in
//! kernels that save none. Neither is ordered by a later release store: [`Fill::fence`]
//! does that. (`rep stosb` avoids reading what it overwrites only in runs larger than the caches,
//! which an allocator's pieces are not: on Zen 5 it is no faster than `movnti` there and half as
//! fast as `clzero`. Emulators do it byte by byte.)

use core::ptr::NonNull;

/// Words of a descriptor that a template gives: all but the first, which are the manager's.
pub(crate) const TEMPLATE_WORDS: usize = 7;
/// How zeros are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZeroWith {
    /// A word at a time, past the caches.
    Movnti,
    /// A cache line at a time, without reading it.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Clzero,
}

/// What descriptors begin as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    /// 64 zero bytes.
    Zero(ZeroWith),
    /// 64 zero bytes, which the memory holds already.
    KnownZero,
    /// Eight zero bytes, then these words.
    Template([u64; TEMPLATE_WORDS]),
}

impl Fill {
    /// Zeros, in the fastest way of this processor. Asks it, which a hypervisor may make slow: once
    /// is enough.
    pub(crate) fn zero() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if has_clzero() {
            return Self::Zero(ZeroWith::Clzero);
        }
        Self::Zero(ZeroWith::Movnti)
    }

    /// Writes `count` descriptors from `start` on.
    ///
    /// # Safety
    /// `start` is aligned to 64 bytes, and `count` times 64 bytes from there on are writable and
    /// nobody else's (invariant 28).
    pub(crate) unsafe fn write(self, start: NonNull<u8>, count: usize) {
        match self {
            Self::KnownZero => {}
            // SAFETY: passed on to the caller.
            Self::Zero(ZeroWith::Movnti) => unsafe {
                template(start.cast(), count, &[0; TEMPLATE_WORDS])
            },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: passed on to the caller; the processor has the instruction.
            Self::Zero(ZeroWith::Clzero) => unsafe { clzero(start, count) },
            // SAFETY: passed on to the caller.
            Self::Template(words) => unsafe { template(start.cast(), count, &words) },
        }
    }

    /// Between the last write and the store that publishes.
    pub(crate) fn fence() {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: `sfence` is part of x86-64.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_clzero() -> bool {
    use core::arch::x86_64::__cpuid;
    // AMD's extended leaves: 0x80000008, EBX bit 0.
    __cpuid(0x8000_0000).eax >= 0x8000_0008 && __cpuid(0x8000_0008).ebx & 1 != 0
}

/// # Safety
/// As for [`Fill::write`], on a processor that has the instruction.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn clzero(start: NonNull<u8>, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller has these lines to itself (invariant 28), and the processor has the
    // instruction.
    unsafe {
        core::arch::asm!(
            "2:",
            "clzero",
            "add rax, 64",
            "dec {count}",
            "jnz 2b",
            count = inout(reg) count => _,
            inout("rax") start.as_ptr() => _,
            options(nostack),
        );
    }
}

/// Writes one descriptor, at an offset.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! descriptor {
    ($offset:literal) => {
        concat!(
            "movnti qword ptr [{at} + ",
            $offset,
            "], {zero}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 8], {a}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 16], {b}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 24], {c}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 32], {d}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 40], {e}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 48], {f}\n",
            "movnti qword ptr [{at} + ",
            $offset,
            " + 56], {g}",
        )
    };
}

/// From the last descriptor to the first, four at a time: hardware does not mind, and an emulator,
/// which makes ordinary stores of these, waits a quarter less for memory than upwards
/// (performance.md).
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn template(start: NonNull<u64>, count: usize, words: &[u64; TEMPLATE_WORDS]) {
    let [a, b, c, d, e, f, g] = *words;
    // SAFETY: one past the last of the caller's words (invariant 28).
    let end = unsafe { start.add(count * (TEMPLATE_WORDS + 1)) };
    // SAFETY: the caller has these bytes to itself (invariant 28), and `movnti` is part of x86-64.
    unsafe {
        core::arch::asm!(
            "test {odd}, {odd}",
            "jz 3f",
            "2:",
            "sub {at}, 64",
            descriptor!("0"),
            "dec {odd}",
            "jnz 2b",
            // A jump before the loop also makes an emulator translate it once, not together with
            // what comes before it and then again.
            "3:",
            "cmp {at}, {start}",
            "jbe 5f",
            "4:",
            "sub {at}, 256",
            descriptor!("192"),
            descriptor!("128"),
            descriptor!("64"),
            descriptor!("0"),
            "cmp {at}, {start}",
            "ja 4b",
            "5:",
            at = inout(reg) end.as_ptr() => _,
            odd = inout(reg) count % 4 => _,
            start = in(reg) start.as_ptr(),
            zero = in(reg) 0_u64,
            a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, e = in(reg) e,
            f = in(reg) f, g = in(reg) g,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn template(start: NonNull<u64>, count: usize, words: &[u64; TEMPLATE_WORDS]) {
    let mut descriptor = [0; TEMPLATE_WORDS + 1];
    descriptor[1..].copy_from_slice(words);
    for index in 0..count {
        // SAFETY: the caller has these bytes to itself (invariant 28).
        let place = unsafe { start.cast::<[u64; TEMPLATE_WORDS + 1]>().add(index) };
        // SAFETY: as above.
        unsafe { place.write(descriptor) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[repr(C, align(64))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Descriptor([u64; 8]);

    fn filled(fill: Fill, count: usize, written: core::ops::Range<usize>) -> Vec<Descriptor> {
        let mut all = std::vec![Descriptor([u64::MAX; 8]); count];
        let start = NonNull::from(&mut all[written.start]).cast();
        // SAFETY: the vector is ours and long enough (invariant 28).
        unsafe { fill.write(start, written.len()) };
        Fill::fence();
        all
    }

    #[test]
    fn exactly_what_was_asked_for_is_written() {
        let template = [1, 2, 3, 4, 5, 6, 7];
        for (fill, value) in [
            (Fill::zero(), Descriptor([0; 8])),
            (Fill::Zero(ZeroWith::Movnti), Descriptor([0; 8])),
            (Fill::Template(template), Descriptor([0, 1, 2, 3, 4, 5, 6, 7])),
            (Fill::KnownZero, Descriptor([u64::MAX; 8])),
        ] {
            for written in [3..3, 3..4, 5..7, 2..5, 9..13, 1..512, 7..1000] {
                let all = filled(fill, 1001, written.clone());
                for (index, &descriptor) in all.iter().enumerate() {
                    let expected =
                        if written.contains(&index) { value } else { Descriptor([u64::MAX; 8]) };
                    assert_eq!(descriptor, expected, "{fill:?} {index}");
                }
            }
        }
    }
}
