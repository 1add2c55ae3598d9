//! The vmemmap's own memory, for plain fills: initialising the memory map is compared with a fill
//! of exactly those bytes.

use super::super::host;
use super::fill::{Fill, write};
use framewright_cli::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The vmemmap's memory to fill, so that the limit is measured over the very bytes that bring-ups
/// write.
pub struct Ground {
    /// Starts and sizes of its parts, ascending.
    parts: Vec<(NonNull<u8>, usize)>,
    bytes: usize,
}

// SAFETY: it has addresses and lengths; threads fill parts that do not overlap.
unsafe impl Sync for Ground {}

impl Ground {
    /// The first `bytes` bytes of `parts`, or all of them; the start and size of each part are
    /// multiples of 64.
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

    /// The memory between two offsets, in pieces.
    fn between(&self, from: usize, to: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let mut at = 0;
        self.parts.iter().filter_map(move |&(start, size)| {
            let (begin, end) = (from.clamp(at, at + size) - at, to.clamp(at, at + size) - at);
            at += size;
            // SAFETY: the offset is inside the part.
            (begin < end).then(|| (unsafe { start.add(begin) }, end - begin))
        })
    }

    /// Fills everything with `threads` threads, each on a part of its own; the caller is the first
    /// thread. Returns the time in seconds.
    ///
    /// # Safety
    /// The parts are writable, and nobody else reads or writes them meanwhile or relies on their
    /// content.
    ///
    /// # Errors
    /// Fails if threads cannot be pinned to their CPUs.
    pub unsafe fn fill(&mut self, fill: Fill, threads: usize) -> Result<f64, Error> {
        let cpus = host::cpus()?;
        let arrived = AtomicUsize::new(0);
        let share = self.bytes.div_ceil(threads).next_multiple_of(4096);
        let this = &*self;
        let one = |index: usize| {
            // Spin, so that no thread begins much later than the others.
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < threads {
                std::hint::spin_loop();
            }
            let began = Instant::now();
            for (start, bytes) in this.between(index * share, (index + 1) * share) {
                // SAFETY: the caller gave this part, and it belongs to this thread alone.
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
                        // The others do not wait for a thread that could not be pinned.
                        let time = one(index);
                        seated.map(|()| time)
                    })
                })
                .collect();
            let own = one(0);
            let failed = || Error::Failed("a thread that fills memory panicked".into());
            let others =
                workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(failed())));
            std::iter::once(Ok(own))
                .chain(others)
                .collect::<Result<Vec<(Instant, Instant)>, Error>>()
        })?;
        let began = times.iter().map(|time| time.0).min();
        let ended = times.iter().map(|time| time.1).max();
        Ok(began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64()))
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
        for fill in Fill::of_this_cpu(false) {
            for threads in [1, 2, 3] {
                let mut frames = vec![Frame([u64::MAX; 512]); 9];
                // Two parts with a frame between them; the end of the second is not used.
                let (low, high) = frames.split_at_mut(4);
                let parts = [
                    (NonNull::from(low).cast(), 4 * 4096),
                    (NonNull::from(&mut high[1..]).cast(), 4 * 4096),
                ];
                let mut ground = Ground::new(&parts, 7 * 4096);
                // SAFETY: the frames belong to this test alone.
                assert!(unsafe { ground.fill(fill, threads) }.expect("threads") > 0.0);
                for (index, frame) in frames.iter().enumerate() {
                    let expected = if index == 4 || index == 8 { u64::MAX } else { fill.word() };
                    assert!(
                        frame.0.iter().all(|&found| found == expected),
                        "{fill:?} {threads} {index}"
                    );
                }
            }
        }
    }
}
