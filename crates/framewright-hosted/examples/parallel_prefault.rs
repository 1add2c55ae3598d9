//! Populates a mapping with memory on all CPUs at once, with a progress bar, and gives all of it
//! back if part of it fails.
//!
//! ```console
//! $ cargo run --release -p framewright-hosted --example parallel_prefault [MiB]
//! ```

use framewright_hosted::HostedHelpers;
use framewright_jobs::{DoneCount, Job, JobError, Summary};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// The size of a huge page. Chunk borders are multiples of it, so that no two threads fault on one
/// page.
const HUGE_PAGES: u64 = 512;

/// An anonymous mapping of whole pages that the system backs only when it is asked to.
struct Mapping {
    start: *mut libc::c_void,
    pages: u64,
}

// SAFETY: the mapping belongs to this value, and only system calls change it, which any number of
// threads may make.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(pages: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = bytes(pages)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start, pages })
        }
    }

    fn advise(&self, pages: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
        assert!(pages.start <= pages.end && pages.end <= self.pages, "{pages:?} of {}", self.pages);
        let start = self.start.wrapping_byte_add(bytes(pages.start)?);
        // SAFETY: the range lies in this mapping, and there is no reference into it.
        let result = unsafe { libc::madvise(start, bytes(pages.end - pages.start)?, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Pages that are backed now.
    fn resident(&self) -> io::Result<u64> {
        let mut here = vec![0_u8; usize::try_from(self.pages).map_err(io::Error::other)?];
        // SAFETY: there is a byte for each page of the mapping.
        if unsafe { libc::mincore(self.start, bytes(self.pages)?, here.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(here.iter().map(|byte| u64::from(byte & 1)).sum())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping, and it is not used any more.
        unsafe { libc::munmap(self.start, bytes(self.pages).unwrap_or(0)) };
    }
}

fn bytes(pages: u64) -> io::Result<usize> {
    usize::try_from(pages)
        .ok()
        .and_then(|pages| pages.checked_mul(PAGE_BYTES))
        .ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Backs all of `mapping`, or none of it. `refuse` is a page for which memory is refused, to show
/// what happens then.
fn prefault(
    mapping: &Mapping,
    done: &DoneCount,
    refuse: Option<u64>,
) -> Result<Summary, JobError<io::Error>> {
    let job = Job::new(0..mapping.pages).align(HUGE_PAGES).counting_in(done);
    job.run_or_undo(
        HostedHelpers::shared(),
        |pages, _worker| {
            let result = match refuse {
                Some(page) if pages.contains(&page) => Err(io::ErrorKind::OutOfMemory.into()),
                _ => mapping.advise(&pages, libc::MADV_POPULATE_WRITE),
            };
            // A chunk that fails cleans up after itself.
            result.inspect_err(|_| drop(mapping.advise(&pages, libc::MADV_DONTNEED)))
        },
        |pages| {
            // If this fails, memory stays in use, which does no harm.
            let _ = mapping.advise(&pages, libc::MADV_DONTNEED);
        },
    )
}

/// Runs `work` while a second thread shows how far it is.
fn with_progress<T>(pages: u64, done: &DoneCount, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let shower = scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                eprint!("\r{:3} %", done.units() * 100 / pages.max(1));
                std::thread::park_timeout(Duration::from_millis(100));
            }
            eprintln!("\r{:3} %", done.units() * 100 / pages.max(1));
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        shower.thread().unpark();
        result
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mib: u64 = std::env::args().nth(1).map_or(Ok(64), |text| text.parse())?;
    let pages = mib.checked_mul(256).ok_or("more than there are addresses")?;
    let mapping = Mapping::new(pages)?;
    println!("{}", HostedHelpers::shared().priority());

    let refused = prefault(&mapping, &DoneCount::new(), Some(pages / 2));
    match refused {
        Err(JobError::Failed { error, range }) => {
            println!("pages {range:?}: {error}; all others were given back")
        }
        other => {
            return Err(
                format!("a page for which there is no memory was not noticed: {other:?}").into()
            );
        }
    }
    assert_eq!(mapping.resident()?, 0, "something was left half done");

    let (done, began) = (DoneCount::new(), Instant::now());
    let summary = match with_progress(pages, &done, || prefault(&mapping, &done, None)) {
        Ok(summary) => summary,
        Err(JobError::Failed { error, range }) => {
            return Err(format!("pages {range:?}: {error}").into());
        }
        Err(error) => return Err(format!("{error:?}").into()),
    };
    println!(
        "{mib} MiB backed by {} threads in {} chunks, {:?}",
        summary.threads,
        summary.chunks,
        began.elapsed()
    );
    assert_eq!((mapping.resident()?, done.units(), summary.units), (pages, pages, pages));
    Ok(())
}
