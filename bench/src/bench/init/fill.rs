//! Plain fills: every store of a CPU, in a loop that shares no code with the library's. The best of
//! them is the limit for the memory map.

use framewright::stores::StoreFeatures;
use std::ptr::NonNull;

/// The way in which bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Zeros with `clzero`, a cache line at a time.
    Clzero,
    /// Zeros with `rep stosb`.
    Stosb,
    /// Zeros with the C library's memset.
    Memset,
    /// 64-byte records with `movnti`.
    Movnti,
    /// 64-byte records with `movdir64b`.
    Movdir64b,
    /// 64-byte records with non-temporal stores, 16 bytes at a time.
    Sse2,
    /// 64-byte records with non-temporal stores, 32 bytes at a time.
    Avx2,
    /// 64-byte records with non-temporal stores, in one piece.
    Avx512,
}

/// The word of which records consist.
const WORD: u64 = 7;

impl Fill {
    const ALL: [Self; 8] = [
        Self::Clzero,
        Self::Stosb,
        Self::Memset,
        Self::Movnti,
        Self::Movdir64b,
        Self::Sse2,
        Self::Avx2,
        Self::Avx512,
    ];

    /// All fills that this CPU supports, for a template or for zeros.
    pub fn of_this_cpu(template: bool) -> Vec<Self> {
        let features = StoreFeatures::read();
        let is_wanted = |fill: &Self| fill.is_in(features) && !(template && fill.word() == 0);
        Self::ALL.into_iter().filter(is_wanted).collect()
    }

    const fn is_in(self, features: StoreFeatures) -> bool {
        match self {
            Self::Stosb | Self::Memset | Self::Movnti => true,
            Self::Sse2 => features.movnti,
            Self::Clzero => features.clzero,
            Self::Movdir64b => features.movdir64b,
            Self::Avx2 => features.avx2,
            Self::Avx512 => features.avx512,
        }
    }

    /// The value of each word afterwards. Fills that can write any value write another one than
    /// zero.
    pub const fn word(self) -> u64 {
        match self {
            Self::Clzero | Self::Stosb | Self::Memset => 0,
            _ => WORD,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Clzero => "clzero",
            Self::Stosb => "rep stosb",
            Self::Memset => "memset",
            Self::Movnti => "movnti",
            Self::Movdir64b => "movdir64b",
            Self::Sse2 => "SSE2",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        }
    }
}

/// Fills this many bytes.
///
/// # Safety
/// `bytes` bytes from `start` on belong to the caller alone; both numbers are multiples of 64. This
/// CPU has what `fill` needs ([`Fill::of_this_cpu`]).
pub unsafe fn write(fill: Fill, start: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let lines: unsafe fn(NonNull<u8>, usize) = match fill {
            Fill::Memset => x86::memset,
            Fill::Stosb => x86::stosb,
            Fill::Clzero => x86::clzero,
            Fill::Movnti => x86::movnti,
            Fill::Movdir64b => x86::movdir64b,
            Fill::Sse2 => x86::sse2,
            Fill::Avx2 => x86::avx2,
            Fill::Avx512 => x86::avx512,
        };
        // SAFETY: the obligation is passed on to the caller.
        unsafe { lines(start, bytes / 64) };
        // SAFETY: the instruction is part of x86-64 and changes no memory.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    for index in 0..bytes / 8 {
        // SAFETY: the word is inside the caller's part.
        let word = unsafe { start.cast::<u64>().add(index) };
        // SAFETY: the word is inside the caller's part.
        unsafe { word.write(fill.word()) };
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::WORD;
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_set1_epi64x, _mm_stream_si128, _mm256_set1_epi64x,
        _mm256_stream_si256, _mm512_set1_epi64, _mm512_stream_si512,
    };
    use std::ptr::NonNull;

    pub(super) unsafe fn memset(start: NonNull<u8>, lines: usize) {
        // SAFETY: the caller has these lines to itself.
        unsafe { start.write_bytes(0, lines * 64) };
    }

    pub(super) unsafe fn stosb(start: NonNull<u8>, lines: usize) {
        // SAFETY: the caller has these lines to itself.
        unsafe {
            asm!(
                "rep stosb", inout("rcx") lines * 64 => _, inout("rdi") start.as_ptr() => _,
                in("al") 0_u8, options(nostack, preserves_flags)
            );
        }
    }

    pub(super) unsafe fn clzero(start: NonNull<u8>, lines: usize) {
        // SAFETY: the caller has these lines to itself, and the CPU has the instruction.
        unsafe {
            asm!(
                "2:", "clzero", "add rax, 64", "dec {lines}", "jnz 2b",
                lines = inout(reg) lines => _, inout("rax") start.as_ptr() => _, options(nostack)
            );
        }
    }

    pub(super) unsafe fn movdir64b(start: NonNull<u8>, lines: usize) {
        #[repr(align(64))]
        struct Source([u64; 8]);
        let source = Source([WORD; 8]);
        // SAFETY: the caller has these lines to itself, and the CPU has the instruction.
        unsafe {
            asm!(
                "2:", "movdir64b {at}, [{source}]", "add {at}, 64", "dec {lines}", "jnz 2b",
                lines = inout(reg) lines => _, at = inout(reg) start.as_ptr() => _,
                source = in(reg) source.0.as_ptr(), options(nostack)
            );
        }
    }

    pub(super) unsafe fn movnti(start: NonNull<u8>, lines: usize) {
        // SAFETY: the caller has these lines to itself; `movnti` is part of x86-64.
        unsafe {
            asm!(
                "2:",
                "movnti qword ptr [{at}], {word}",
                "movnti qword ptr [{at} + 8], {word}",
                "movnti qword ptr [{at} + 16], {word}",
                "movnti qword ptr [{at} + 24], {word}",
                "movnti qword ptr [{at} + 32], {word}",
                "movnti qword ptr [{at} + 40], {word}",
                "movnti qword ptr [{at} + 48], {word}",
                "movnti qword ptr [{at} + 56], {word}",
                "add {at}, 64",
                "dec {lines}",
                "jnz 2b",
                lines = inout(reg) lines => _,
                at = inout(reg) start.as_ptr() => _,
                word = in(reg) WORD,
                options(nostack),
            );
        }
    }

    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn sse2(start: NonNull<u8>, lines: usize) {
        let vector = _mm_set1_epi64x(WORD.cast_signed());
        for index in 0..lines * 4 {
            // SAFETY: the place is inside the caller's part.
            let place = unsafe { start.cast::<__m128i>().add(index) };
            // SAFETY: the place belongs to the caller alone, and is aligned.
            unsafe { _mm_stream_si128(place.as_ptr(), vector) };
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(start: NonNull<u8>, lines: usize) {
        let vector = _mm256_set1_epi64x(WORD.cast_signed());
        for index in 0..lines * 2 {
            // SAFETY: the place is inside the caller's part.
            let place = unsafe { start.cast::<__m256i>().add(index) };
            // SAFETY: the place belongs to the caller alone, and is aligned.
            unsafe { _mm256_stream_si256(place.as_ptr(), vector) };
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(start: NonNull<u8>, lines: usize) {
        let vector = _mm512_set1_epi64(WORD.cast_signed());
        for index in 0..lines {
            // SAFETY: the place is inside the caller's part.
            let place = unsafe { start.cast::<__m512i>().add(index) };
            // SAFETY: the place belongs to the caller alone, and is aligned.
            unsafe { _mm512_stream_si512(place.as_ptr(), vector) };
        }
    }
}
