//! What initialising the memory map is measured against: the best plain fill of the same bytes by as many threads.

use super::super::host;
use crate::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Zeros with `rep stosb`.
    Stosb,
    /// Zeros with the C library's memset.
    Memset,
    /// Zeros with `clzero`, a cache line at a time; only where [`has_clzero`].
    Clzero,
    /// 64-byte records with `movnti`.
    Movnti,
}

impl Fill {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stosb => "rep stosb",
            Self::Memset => "memset",
            Self::Clzero => "clzero",
            Self::Movnti => "movnti",
        }
    }
}

/// Memory to fill: the page array's own, so that the limit is measured over the very bytes that bring-ups write.
pub struct Ground {
    /// Starts and sizes, ascending.
    parts: Vec<(NonNull<u8>, usize)>,
    bytes: usize,
}

// SAFETY: addresses and lengths; threads fill parts that do not overlap.
unsafe impl Sync for Ground {}

impl Ground {
    /// The first `bytes` bytes of `parts`, or all of them; each begins at a multiple of 64 and has a multiple of that.
    pub fn new(parts: &[(NonNull<u8>, usize)], bytes: usize) -> Self {
        let mut left = bytes;
        let mut taken = Vec::new();
        for &(start, size) in parts {
            let size = size.min(left);
            left -= size;
            if size != 0 {
                taken.push((start, size));
            }
        }
        Self { parts: taken, bytes: bytes - left }
    }

    /// What is between two offsets, in pieces.
    fn between(&self, from: usize, to: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let mut at = 0;
        self.parts.iter().filter_map(move |&(start, size)| {
            let (begin, end) = (from.clamp(at, at + size) - at, to.clamp(at, at + size) - at);
            at += size;
            // SAFETY: an offset inside the part.
            (begin < end).then(|| (unsafe { start.add(begin) }, end - begin))
        })
    }

    /// Fills all of it with `threads` threads, each on a part of its own, of which the caller is the first; how long that took in seconds.
    ///
    /// # Safety
    /// The parts are writable, and nobody else reads or writes them meanwhile or relies on their content.
    ///
    /// # Errors
    /// Threads that cannot be kept on their CPUs.
    pub unsafe fn fill(&mut self, fill: Fill, threads: usize) -> Result<f64, Error> {
        let cpus = host::cpus()?;
        let arrived = AtomicUsize::new(0);
        let share = self.bytes.div_ceil(threads).next_multiple_of(4096);
        let this = &*self;
        let one = |index: usize| {
            // Spinning, so that none begins much later than the others.
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < threads {
                std::hint::spin_loop();
            }
            let began = Instant::now();
            for (start, bytes) in this.between(index * share, (index + 1) * share) {
                // SAFETY: this thread's own part, which the caller gave.
                unsafe { write(fill, start, bytes) };
            }
            (began, Instant::now())
        };
        let times = std::thread::scope(|scope| {
            let one = &one;
            let workers: Vec<_> = (1..threads)
                .map(|index| {
                    let cpu = cpus[index % cpus.len()];
                    scope.spawn(move || {
                        let seated = host::stay_on(cpu);
                        // Nobody waits for one that could not be seated.
                        let time = one(index);
                        seated.map(|()| time)
                    })
                })
                .collect();
            let own = one(0);
            let failed = || Error::Failed("a thread that fills memory panicked".into());
            let others = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(failed())));
            std::iter::once(Ok(own)).chain(others).collect::<Result<Vec<(Instant, Instant)>, Error>>()
        })?;
        let began = times.iter().map(|time| time.0).min();
        let ended = times.iter().map(|time| time.1).max();
        Ok(began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64()))
    }
}

/// # Safety
/// `bytes` bytes from `start` on, aligned to 64 and a multiple of that, are the caller's alone.
unsafe fn write(fill: Fill, start: NonNull<u8>, bytes: usize) {
    match fill {
        // SAFETY: passed on.
        Fill::Memset => unsafe { start.write_bytes(0, bytes) },
        // SAFETY: passed on.
        Fill::Stosb => unsafe { stosb(start, bytes) },
        // SAFETY: passed on.
        Fill::Clzero => unsafe { clzero(start, bytes / 64) },
        // SAFETY: passed on.
        Fill::Movnti => unsafe { movnti(start.cast(), bytes / 8) },
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn stosb(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller has these bytes to itself.
    unsafe {
        std::arch::asm!(
            "rep stosb", inout("rcx") bytes => _, inout("rdi") start.as_ptr() => _, in("al") 0_u8,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stosb(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller has these bytes to itself.
    unsafe { start.write_bytes(0, bytes) };
}

/// Whether the processor has `clzero`.
pub fn has_clzero() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        __cpuid(0x8000_0000).eax >= 0x8000_0008 && __cpuid(0x8000_0008).ebx & 1 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
unsafe fn clzero(start: NonNull<u8>, lines: usize) {
    // SAFETY: the caller has these lines to itself, and the processor has the instruction.
    unsafe {
        std::arch::asm!(
            "2:", "clzero", "add rax, 64", "dec {lines}", "jnz 2b", "sfence",
            lines = inout(reg) lines => _, inout("rax") start.as_ptr() => _, options(nostack)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn clzero(start: NonNull<u8>, lines: usize) {
    // SAFETY: the caller has these bytes to itself.
    unsafe { start.write_bytes(0, lines * 64) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn movnti(start: NonNull<i64>, words: usize) {
    // SAFETY: one past the last of the caller's words.
    let end = unsafe { start.add(words) };
    // SAFETY: the caller has these bytes to itself; `movnti` and `sfence` are part of x86-64.
    unsafe {
        std::arch::asm!(
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
            "cmp {at}, {end}",
            "jb 2b",
            "sfence",
            at = inout(reg) start.as_ptr() => _,
            end = in(reg) end.as_ptr(),
            word = in(reg) 7_u64,
            options(nostack),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn movnti(start: NonNull<i64>, words: usize) {
    for index in 0..words {
        // SAFETY: inside the caller's part.
        let word = unsafe { start.add(index) };
        // SAFETY: the same.
        unsafe { word.write(7) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(4096))]
    #[derive(Clone)]
    struct Frame([u64; 512]);

    #[test]
    fn every_byte_is_filled() {
        for (fill, word) in [(Fill::Stosb, 0), (Fill::Memset, 0), (Fill::Clzero, 0), (Fill::Movnti, 7)] {
            if fill == Fill::Clzero && !has_clzero() {
                continue;
            }
            for threads in [1, 2, 3] {
                let mut frames = vec![Frame([u64::MAX; 512]); 9];
                // Two parts with a frame between them; the second is not used to its end.
                let (low, high) = frames.split_at_mut(4);
                let parts = [(NonNull::from(low).cast(), 4 * 4096), (NonNull::from(&mut high[1..]).cast(), 4 * 4096)];
                let mut ground = Ground::new(&parts, 7 * 4096);
                // SAFETY: the frames are this test's own.
                assert!(unsafe { ground.fill(fill, threads) }.expect("threads") > 0.0);
                for (index, frame) in frames.iter().enumerate() {
                    let expected = if index == 4 || index == 8 { u64::MAX } else { word };
                    assert!(frame.0.iter().all(|&found| found == expected), "{fill:?} {threads} {index}");
                }
            }
        }
    }
}
