//! Memory of its own to fill, by as many threads as wanted: for rates of plain fills where there is
//! no vmemmap.

use super::super::host;
pub use super::fill::Fill;
use super::fill::write;
use framewright_cli::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Memory of its own to fill.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address and a length; threads fill parts that do not overlap.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` bytes, a multiple of 4096, not touched yet.
    ///
    /// # Errors
    /// The system has not so many.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match NonNull::new(address.cast()) {
            Some(start) if address != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(Error::Failed(format!(
                "no {bytes} bytes to fill: {}",
                std::io::Error::last_os_error()
            ))),
        }
    }

    /// Drops what is behind it, so that the next fill touches it first.
    pub fn forget(&mut self) {
        // SAFETY: the mapping is ours, and nobody fills it now.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Makes it backed and dirty.
    pub fn dirty(&mut self) {
        // SAFETY: the mapping is ours, and nobody else fills it now.
        unsafe { self.start.write_bytes(0xa5, self.bytes) };
    }

    /// Fills all of it with `threads` threads, each on a CPU and a part of its own; how long that
    /// took in seconds.
    ///
    /// # Errors
    /// Threads that cannot be kept on their CPUs.
    pub fn fill(&mut self, fill: Fill, threads: usize) -> Result<f64, Error> {
        // SAFETY: each part is one thread's own.
        self.by_parts(threads, |own, bytes| unsafe { write(fill, own, bytes) })
    }

    /// Drops what is behind it by `threads` threads, each a part; how long that took in seconds.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn release(&mut self, threads: usize) -> Result<f64, Error> {
        self.by_parts(threads, |own, bytes| {
            // SAFETY: the mapping is ours, and each part is one thread's own.
            unsafe { libc::madvise(own.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        })
    }

    /// Calls `work` for the parts of as many threads, which begin together.
    fn by_parts(
        &mut self,
        threads: usize,
        work: impl Fn(NonNull<u8>, usize) + Sync,
    ) -> Result<f64, Error> {
        if threads == 1 {
            // Wherever the system lets it run, as the bring-ups that it is compared with.
            let began = Instant::now();
            work(self.start, self.bytes);
            return Ok(began.elapsed().as_secs_f64());
        }
        self.on_cpus(&host::cpus()?, threads, work)
    }

    fn on_cpus(
        &self,
        cpus: &[usize],
        threads: usize,
        work: impl Fn(NonNull<u8>, usize) + Sync,
    ) -> Result<f64, Error> {
        let arrived = AtomicUsize::new(0);
        let part = self.bytes / threads / 4096 * 4096;
        let (this, work) = (self, &work);
        let times = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|index| {
                    let (arrived, cpu) = (&arrived, cpus[index % cpus.len()]);
                    let bytes = if index + 1 == threads { this.bytes - part * index } else { part };
                    scope.spawn(move || {
                        let stays = host::stay_on(cpu);
                        // Spinning, so that none begins much later than the others. Whoever is not
                        // where it should be has come, too: they would wait for ever.
                        arrived.fetch_add(1, Ordering::AcqRel);
                        while arrived.load(Ordering::Acquire) < threads {
                            std::hint::spin_loop();
                        }
                        stays?;
                        let began = Instant::now();
                        // SAFETY: inside the buffer.
                        work(unsafe { this.start.add(part * index) }, bytes);
                        Ok((began, Instant::now()))
                    })
                })
                .collect();
            let failed = || Error::Failed("a thread that fills memory panicked".into());
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err(failed())))
                .collect::<Result<Vec<(Instant, Instant)>, Error>>()
        })?;
        let began = times.iter().map(|time| time.0).min();
        let ended = times.iter().map(|time| time.1).max();
        Ok(began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_thread_without_its_cpu() {
        let buffer = Buffer::new(4 * 4096).expect("memory");
        // The last that a set can name, which no machine of today lets this process have.
        let cpus = [host::cpus().expect("they are known")[0], libc::CPU_SETSIZE as usize - 1];
        assert!(buffer.on_cpus(&cpus, 2, |_, _| {}).is_err());
    }

    #[test]
    fn every_byte_is_filled() {
        let bytes = 5 * 4096;
        let mut buffer = Buffer::new(bytes).expect("memory");
        for fill in Fill::of_this_cpu(false) {
            for threads in [1, 2, 3] {
                buffer.dirty();
                assert!(buffer.fill(fill, threads).expect("threads") > 0.0);
                for index in 0..bytes / 8 {
                    // SAFETY: inside the buffer, which nobody writes now.
                    let place = unsafe { buffer.start.cast::<u64>().add(index) };
                    // SAFETY: the same.
                    assert_eq!(unsafe { place.read() }, fill.word(), "{fill:?} {threads} {index}");
                }
            }
        }
    }
}
