//! Backs the memory of a virtual machine before it starts: a memory file with huge pages where they
//! are to be had, populated on all CPUs, with progress, and given back whole if part of it fails.
//!
//! ```console
//! $ cargo run --release -p framewright-jobs-linux --example parallel_prefault [MiB] [ROUNDS]
//! ```
//!
//! The other ways that virtual machine monitors have are measured beside it: one thread, and what
//! QEMU does with `prealloc-threads=N`, a thread for each of N equal parts. These take equal time
//! only while every thread has a CPU to itself, so all are also measured while a CPU is kept busy.

use framewright_jobs_linux::{DoneCount, HostedHelpers, Job, JobError, Priority, Summary};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A unit of the job: a huge page, so that no two threads fault on one.
const UNIT_BYTES: usize = 2 << 20;

/// Helpers as important as their caller: the guest's user waits for it. Those that all share give
/// way to every other thread of the system.
static HELPERS: HostedHelpers = HostedHelpers::new().with_priority(Priority::Kept);

/// What guests run in: a memory file, and all of it in the address space.
struct GuestMemory {
    file: OwnedFd,
    start: *mut libc::c_void,
    bytes: usize,
    kind: &'static str,
}

// SAFETY: the mapping belongs to this value, and only system calls change it, which any number of
// threads may make.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// With huge pages from the system's pool where that has enough, and otherwise with small ones,
    /// of which the system makes huge ones where it may.
    fn new(bytes: usize) -> io::Result<Self> {
        let huge = Self::of_kind(bytes, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, "pooled 2 MiB");
        huge.or_else(|_| {
            let mut memory = Self::of_kind(bytes, 0, "4 KiB")?;
            let is_huge = memory.advise(&(0..memory.units()), libc::MADV_HUGEPAGE).is_ok();
            let setting =
                std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
            let is_allowed = setting.is_ok_and(|text| {
                ["[advise]", "[always]", "[within_size]", "[force]"]
                    .iter()
                    .any(|on| text.contains(on))
            });
            if is_huge && is_allowed {
                memory.kind = "transparent 2 MiB";
            }
            Ok(memory)
        })
    }

    fn of_kind(bytes: usize, flags: libc::c_uint, kind: &'static str) -> io::Result<Self> {
        // Programs that this one executes have no business with it.
        let flags = flags | libc::MFD_CLOEXEC;
        // SAFETY: the name is a string that ends in zero.
        let file = check(unsafe { libc::memfd_create(c"guest-memory".as_ptr(), flags) })?;
        // SAFETY: the descriptor is new, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let size = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a call that touches no memory of this process.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (at, descriptor) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(at, bytes, access, libc::MAP_SHARED, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, start, bytes, kind })
    }

    fn units(&self) -> usize {
        self.bytes / UNIT_BYTES
    }

    fn advise(&self, units: &Range<usize>, advice: libc::c_int) -> io::Result<()> {
        assert!(units.start <= units.end && units.end <= self.units(), "{units:?}");
        let start = self.start.wrapping_byte_add(units.start * UNIT_BYTES);
        // SAFETY: the range lies in this mapping, and there is no reference into it.
        check(unsafe { libc::madvise(start, units.len() * UNIT_BYTES, advice) }).map(drop)
    }

    /// Backs these units. Linux before 5.14 does not know how, and says so.
    fn populate(&self, units: &Range<usize>) -> io::Result<()> {
        self.advise(units, libc::MADV_POPULATE_WRITE)
    }

    /// Takes what backs these units back out of the file.
    fn release(&self, units: &Range<usize>) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let offset =
            |unit: usize| libc::off_t::try_from(unit * UNIT_BYTES).map_err(io::Error::other);
        let (from, length) = (offset(units.start)?, offset(units.len())?);
        // SAFETY: there is no reference into the mapping of the file.
        check(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, from, length) }).map(drop)
    }

    /// Bytes that are backed now.
    fn backed(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::from(self.file.try_clone()?);
        Ok(file.metadata()?.blocks() * 512)
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping, and it is not used any more.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Backs all of `memory`, which nobody has used, or none of it. `refuse` is a unit for which memory
/// is refused, to show what happens then.
fn prefault(
    helpers: &HostedHelpers,
    memory: &GuestMemory,
    done: &DoneCount,
    refuse: Option<u64>,
) -> Result<Summary, JobError<io::Error>> {
    let units = |units: Range<u64>| {
        let index = |unit| usize::try_from(unit).unwrap_or(usize::MAX);
        index(units.start)..index(units.end)
    };
    Job::indices(0..memory.units()).counting_in(done).run_or_undo(
        helpers,
        |chunk, _worker| {
            let result = match refuse {
                Some(unit) if chunk.contains(&unit) => Err(io::ErrorKind::OutOfMemory.into()),
                _ => memory.populate(&units(chunk.clone())),
            };
            // A chunk that fails cleans up after itself.
            result.inspect_err(|_| drop(memory.release(&units(chunk))))
        },
        |range| {
            // If this fails, memory stays in use, which does no harm.
            let _ = memory.release(&units(range));
        },
    )
}

/// A thread for each of `threads` equal parts.
fn equal_parts(memory: &GuestMemory, threads: usize) -> io::Result<()> {
    let (units, threads) = (memory.units(), threads.clamp(1, memory.units()));
    let border = |thread: usize| units * thread / threads;
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || memory.populate(&(border(thread)..border(thread + 1))))
            })
            .collect();
        parts.into_iter().try_for_each(|part| match part.join() {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("a thread panicked")),
        })
    })
}

/// Sets a flag, also when a panic goes past it.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while a second thread shows how far it is.
fn with_progress<T>(units: usize, done: &DoneCount, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let show = || eprint!("\r{:3} %", done.units() * 100 / units.max(1) as u64);
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                show();
                std::thread::park_timeout(Duration::from_millis(100));
            }
            show();
            eprintln!();
        });
        let at_end = SetAtEnd(&over);
        let result = work();
        drop(at_end);
        shower.thread().unpark();
        result
    })
}

/// Runs `work` while another thread keeps a CPU busy, if it is to.
fn beside<T>(is_busy: bool, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(!is_busy);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let _at_end = SetAtEnd(&over);
        work()
    })
}

/// Backs memory and gives the number of threads that did it.
type Backing<'a> = dyn Fn(&GuestMemory) -> Result<u32, Box<dyn std::error::Error>> + 'a;
/// A way of backing memory, by name.
type Way<'a> = (String, Box<Backing<'a>>);

/// Backs `bytes` in each way, `rounds` times in turn; prints the median and the slowest of each.
fn compare(bytes: usize, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let cpus = std::thread::available_parallelism()?.get();
    let job = |helpers: &'static HostedHelpers| -> Box<Backing<'_>> {
        Box::new(move |memory| Ok(prefault(helpers, memory, &DoneCount::new(), None)?.threads))
    };
    let ways: [Way<'_>; 4] = [
        (
            "one thread".into(),
            Box::new(|memory| Ok(memory.populate(&(0..memory.units())).map(|()| 1)?)),
        ),
        (
            format!("{cpus} equal parts"),
            Box::new(move |memory| Ok(equal_parts(memory, cpus).map(|()| u32::try_from(cpus))??)),
        ),
        ("job".into(), job(&HELPERS)),
        ("job, gives way".into(), job(HostedHelpers::shared())),
    ];
    println!("{:<18} {:>9} {:>9} {:>8} {:>8}", "ms", "median", "slowest", "GiB/s", "threads");
    for is_busy in [false, true] {
        println!("{}", if is_busy { "one CPU kept busy" } else { "nothing else runs" });
        let mut times = [const { Vec::new() }; 4];
        let mut threads = [0; 4];
        for _ in 0..rounds {
            for (index, (_, way)) in ways.iter().enumerate() {
                let memory = GuestMemory::new(bytes)?;
                let (took, count) = beside(is_busy, || {
                    let began = Instant::now();
                    way(&memory).map(|count| (began.elapsed(), count))
                })?;
                assert_eq!(memory.backed()?, bytes as u64, "not all is backed");
                times[index].push(took);
                threads[index] = count;
            }
        }
        for (((name, _), mut times), threads) in ways.iter().zip(times).zip(threads) {
            times.sort_unstable();
            let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let speed = bytes as f64 / median.as_secs_f64() / f64::from(1 << 30);
            println!("  {name:<16} {:9.1} {:9.1} {speed:8.2} {threads:8}", ms(median), ms(slowest));
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let bytes = mib.checked_mul(1 << 20).ok_or("more than there are addresses")?;
    if bytes == 0 || bytes % UNIT_BYTES != 0 || rounds == 0 {
        return Err("MiB is a multiple of 2, and at least one round is run".into());
    }
    let memory = GuestMemory::new(bytes)?;
    println!("{mib} MiB of {} pages", memory.kind);

    // All or nothing.
    match prefault(&HELPERS, &memory, &DoneCount::new(), Some(memory.units() as u64 / 2)) {
        Err(JobError::Failed { error, range }) if error.kind() == io::ErrorKind::OutOfMemory => {
            println!("huge pages {range:?}: {error}; all others were given back")
        }
        other => return Err(format!("that memory was refused was not noticed: {other:?}").into()),
    }
    assert_eq!(memory.backed()?, 0, "something was left half done");

    let done = DoneCount::new();
    let summary =
        with_progress(memory.units(), &done, || prefault(&HELPERS, &memory, &done, None))?;
    assert_eq!((memory.backed()?, done.units()), (bytes as u64, summary.units));
    drop(memory);
    compare(bytes, rounds)
}
