//! A buffer to fill with any number of threads: for the rates of plain fills if there is no
//! vmemmap.

use super::super::host;
pub use super::fill::Fill;
use super::fill::write;
use framewright_cli::error::Error;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A buffer of its own memory to fill.
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it has an address and a length; threads fill parts that do not overlap.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps `bytes` bytes, a multiple of 4096, which are not touched yet.
    ///
    /// # Errors
    /// Fails if the system has not enough memory.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this makes a new mapping at an address of the system's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match NonNull::new(address.cast()) {
            Some(start) if address != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(Error::Failed(format!(
                "no {bytes} bytes to fill: {}",
                std::io::Error::last_os_error()
            ))),
        }
    }

    /// Drops the memory behind the buffer, so that the next fill touches it for the first time.
    pub fn forget(&mut self) {
        // SAFETY: the mapping is ours, and nobody fills it now.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Makes the buffer backed and dirty.
    pub fn dirty(&mut self) {
        // SAFETY: the mapping is ours, and nobody else fills it now.
        unsafe { self.start.write_bytes(0xa5, self.bytes) };
    }

    /// Fills the buffer with `threads` threads, each on a CPU and a part of its own. Returns the
    /// time in seconds.
    ///
    /// # Errors
    /// Fails if threads cannot be pinned to their CPUs.
    pub fn fill(&mut self, fill: Fill, threads: usize) -> Result<f64, Error> {
        // SAFETY: each part belongs to one thread.
        self.by_parts(threads, |own, bytes| unsafe { write(fill, own, bytes) })
    }

    /// Drops the memory behind the buffer with `threads` threads, each a part. Returns the time in
    /// seconds.
    ///
    /// # Errors
    /// The errors of [`fill`](Self::fill).
    pub fn release(&mut self, threads: usize) -> Result<f64, Error> {
        self.by_parts(threads, |own, bytes| {
            // SAFETY: the mapping is ours, and each part belongs to one thread.
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
            // A single thread runs on any CPU, like the bring-ups with which it is compared.
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
                        // Spin, so that no thread begins much later than the others. A thread that
                        // could not be pinned counts as arrived, too, or the others would wait for
                        // ever.
                        arrived.fetch_add(1, Ordering::AcqRel);
                        while arrived.load(Ordering::Acquire) < threads {
                            std::hint::spin_loop();
                        }
                        stays?;
                        let began = Instant::now();
                        // SAFETY: the part is inside the buffer.
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
        // SAFETY: the memory was mapped once and is unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_thread_without_its_cpu() {
        let buffer = Buffer::new(4 * 4096).expect("memory");
        // The last CPU that a set can name, which no machine of today has.
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
                    // SAFETY: the word is inside the buffer, which nobody writes now.
                    let place = unsafe { buffer.start.cast::<u64>().add(index) };
                    // SAFETY: the word is inside the buffer, which nobody writes now.
                    assert_eq!(unsafe { place.read() }, fill.word(), "{fill:?} {threads} {index}");
                }
            }
        }
    }
}
