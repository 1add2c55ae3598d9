//! System calls of Linux on x86-64.

use core::arch::asm;
use core::ffi::CStr;
use core::ptr::{NonNull, null};

/// The number of the error with which the kernel refuses a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub u16);

/// Operation not permitted.
pub const EPERM: Errno = Errno(1);
/// No such file; also returned for a path that is too long for this program.
pub const ENOENT: Errno = Errno(2);
/// A signal interrupted the call.
const EINTR: Errno = Errno(4);
/// More data than there is room for.
pub const EFBIG: Errno = Errno(27);
/// The awaited event did not happen in time.
pub const ETIME: Errno = Errno(62);

const READ: usize = 0;
const WRITE: usize = 1;
const OPEN: usize = 2;
const CLOSE: usize = 3;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const MADVISE: usize = 28;
const NANOSLEEP: usize = 35;
const GETPID: usize = 39;
const FORK: usize = 57;
const WAIT4: usize = 61;
const SYSLOG: usize = 103;
const MOUNT: usize = 165;
const REBOOT: usize = 169;
const SCHED_SETAFFINITY: usize = 203;
const CLOCK_GETTIME: usize = 228;
const EXIT_GROUP: usize = 231;
const FINIT_MODULE: usize = 313;

/// The size of a page.
pub const PAGE_BYTES: usize = 4096;
/// The largest error number; results above its negative are errors.
const MOST_ERRNO: usize = 4095;
/// The most bytes of a path, with the zero at its end.
const PATH_BYTES: usize = 128;

/// One system call.
///
/// # Safety
/// The arguments satisfy what the call with this number requires.
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: usize;
    // SAFETY: the kernel changes only the result's register, rcx and r11, and what the caller
    // allowed.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    let negative = result.wrapping_neg();
    if (1..=MOST_ERRNO).contains(&negative) {
        Err(Errno(u16::try_from(negative).unwrap_or(u16::MAX)))
    } else {
        Ok(result)
    }
}

/// Converts `text` to the form in which the kernel takes paths.
fn path(text: &str) -> Result<[u8; PATH_BYTES], Errno> {
    let mut bytes = [0; PATH_BYTES];
    let room = bytes.get_mut(..text.len()).filter(|room| room.len() < PATH_BYTES).ok_or(ENOENT)?;
    room.copy_from_slice(text.as_bytes());
    Ok(bytes)
}

/// An open file, which is closed when the value is dropped.
pub struct File(usize);

impl File {
    /// Opens a file to read.
    pub fn read_only(name: &str) -> Result<Self, Errno> {
        Self::open(name, 0)
    }

    /// Opens an existing file to write.
    pub fn write_only(name: &str) -> Result<Self, Errno> {
        Self::open(name, 1)
    }

    fn open(name: &str, flags: usize) -> Result<Self, Errno> {
        let name = path(name)?;
        // SAFETY: the path ends in zero and lives during the call.
        unsafe { call(OPEN, [name.as_ptr().addr(), flags, 0, 0, 0, 0]) }.map(Self)
    }

    /// Reads the next bytes; returns 0 at the end.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer is ours alone during the call.
        unsafe { call(READ, [self.0, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
    }

    /// Writes once.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        write(self.0, bytes)
    }

    /// Loads the file as a kernel module.
    pub fn load_as_module(&self) -> Result<(), Errno> {
        // SAFETY: the parameters are an empty text.
        unsafe { call(FINIT_MODULE, [self.0, c"".as_ptr().addr(), 0, 0, 0, 0]) }.map(|_| ())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value and is not used afterwards.
        let _ = unsafe { call(CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Writes to standard output.
pub fn print(bytes: &[u8]) {
    let mut rest = bytes;
    // An error means that nobody reads the output.
    while let Ok(written @ 1..) = write(1, rest) {
        rest = rest.get(written..).unwrap_or(&[]);
        if rest.is_empty() {
            return;
        }
    }
}

fn write(descriptor: usize, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes live during the call and are only read.
    unsafe { call(WRITE, [descriptor, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]) }
}

/// Mounts a file system that has no device.
pub fn mount(kind: &CStr, folder: &CStr) -> Result<(), Errno> {
    let (kind, folder) = (kind.as_ptr().addr(), folder.as_ptr().addr());
    // SAFETY: all three texts end in zero; no data is passed.
    unsafe { call(MOUNT, [kind, folder, kind, 0, 0, 0]) }.map(|_| ())
}

/// Copies the end of the kernel's log.
pub fn kernel_log(buffer: &mut [u8]) -> Result<usize, Errno> {
    const READ_ALL: usize = 3;
    // SAFETY: the buffer is ours alone during the call.
    unsafe { call(SYSLOG, [READ_ALL, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
}

/// Nanoseconds on a monotonic clock.
pub fn now_ns() -> u64 {
    const MONOTONIC: usize = 1;
    let mut time = [0_u64; 2];
    // SAFETY: the place has the size of the kernel's value.
    let _ = unsafe { call(CLOCK_GETTIME, [MONOTONIC, time.as_mut_ptr().addr(), 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// Waits.
pub fn sleep(seconds: u64) {
    wait([seconds, 0]);
}

/// Waits for a millisecond.
pub fn sleep_ms() {
    wait([0, 1_000_000]);
}

/// Waits for seconds and nanoseconds.
fn wait(time: [u64; 2]) {
    // SAFETY: the time lives during the call; the remaining time after a signal is not requested.
    let _ = unsafe { call(NANOSLEEP, [time.as_ptr().addr(), 0, 0, 0, 0, 0]) };
}

/// The pid of this process; 1 is the kernel's first process.
pub fn pid() -> usize {
    // SAFETY: the call has no arguments and no effects.
    unsafe { call(GETPID, [0; 6]) }.unwrap_or(0)
}

/// The two sides of a fork.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The process that called it.
    Parent,
    /// The new process.
    Child,
}

/// Forks this process.
pub fn fork() -> Result<Side, Errno> {
    // SAFETY: there is one thread, and apart from standard output there is no state outside this
    // process that both sides would take for their own.
    let child = unsafe { call(FORK, [0; 6]) }?;
    Ok(if child == 0 { Side::Child } else { Side::Parent })
}

/// Waits for the end of any child. The status of a child that failed is its error; a child that a
/// signal ended counts as interrupted.
pub fn wait_for_child() -> Result<(), Errno> {
    const ANY: usize = usize::MAX;
    let mut status = 0_u32;
    // SAFETY: the status lives during the call, which writes to it alone.
    unsafe { call(WAIT4, [ANY, (&raw mut status).addr(), 0, 0, 0, 0]) }?;
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => Ok(()),
        (0, error) => Err(Errno(u16::try_from(error).unwrap_or(u16::MAX))),
        _ => Err(EINTR),
    }
}

/// Pins this process to one of the first 64 CPUs.
pub fn stay_on(cpu: u32) -> Result<(), Errno> {
    let mask = 1_u64.checked_shl(cpu).ok_or(ENOENT)?;
    // SAFETY: the mask lives during the call and is only read.
    unsafe { call(SCHED_SETAFFINITY, [0, size_of::<u64>(), (&raw const mask).addr(), 0, 0, 0]) }
        .map(|_| ())
}

/// Ends the process.
pub fn exit(status: u8) -> ! {
    // SAFETY: the call only ends the process.
    let _ = unsafe { call(EXIT_GROUP, [usize::from(status), 0, 0, 0, 0, 0]) };
    loop {
        core::hint::spin_loop();
    }
}

/// Switches the machine off.
pub fn power_off() {
    const MAGIC: usize = 0xfee1_dead;
    const MAGIC_2: usize = 0x2812_1969;
    const POWER_OFF: usize = 0x4321_fedc;
    // SAFETY: nothing is mounted whose data could be lost.
    let _ = unsafe { call(REBOOT, [MAGIC, MAGIC_2, POWER_OFF, 0, 0, 0]) };
}

/// The kind of pages in a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB where possible.
    Huge,
    /// 4 KiB.
    Base,
    /// 4 KiB, shared with child processes.
    Shared,
}

/// Anonymous memory, which is unmapped when the value is dropped.
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Reserves addresses; memory comes with the first write.
    pub fn new(bytes: usize, pages: Pages) -> Result<Self, Errno> {
        const READ_WRITE: usize = 3;
        const SHARED: usize = 1;
        const PRIVATE: usize = 2;
        const ANONYMOUS: usize = 0x20;
        const HUGEPAGE: usize = 14;
        const NOHUGEPAGE: usize = 15;
        let kind = if pages == Pages::Shared { SHARED } else { PRIVATE };
        let any = null::<u8>().addr();
        // SAFETY: the kernel makes a new mapping where there is none.
        let start =
            unsafe { call(MMAP, [any, bytes, READ_WRITE, kind | ANONYMOUS, usize::MAX, 0]) }?;
        let start = NonNull::new(core::ptr::with_exposed_provenance_mut(start)).ok_or(ENOENT)?;
        let mapping = Self { start, bytes };
        let advice = match pages {
            Pages::Huge => Some(HUGEPAGE),
            Pages::Base => Some(NOHUGEPAGE),
            Pages::Shared => None,
        };
        if let Some(advice) = advice {
            // SAFETY: the mapping is ours, and the advice has no visible effect. A kernel without
            // huge pages refuses it, which does not matter.
            let _ = unsafe { call(MADVISE, [mapping.start.addr().get(), bytes, advice, 0, 0, 0]) };
        }
        Ok(mapping)
    }

    /// Writes to every page.
    pub fn touch(&mut self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: the offset is inside the mapping.
            let page = unsafe { self.start.add(offset) };
            // SAFETY: the mapping is ours and writable.
            unsafe { page.write_volatile(1) };
        }
    }

    /// The number of pages in the mapping.
    pub fn pages(&self) -> usize {
        self.bytes / PAGE_BYTES
    }

    /// Gives one page back to the kernel; the next write to it brings a new page.
    pub fn discard(&mut self, page: usize) -> Result<(), Errno> {
        const DONTNEED: usize = 4;
        let offset = page.checked_mul(PAGE_BYTES).filter(|&offset| offset < self.bytes);
        let start = self.start.addr().get() + offset.ok_or(ENOENT)?;
        // SAFETY: this is a page of the mapping whose content nobody has read.
        unsafe { call(MADVISE, [start, PAGE_BYTES, DONTNEED, 0, 0, 0]) }.map(|_| ())
    }

    /// A word in which a child stores a number for its parent to read after the child's end.
    pub fn word(&self, index: usize) -> Option<NonNull<u64>> {
        let offset = index
            .checked_mul(size_of::<u64>())
            .filter(|&offset| offset + size_of::<u64>() <= self.bytes)?;
        // SAFETY: the offset is inside the mapping.
        Some(unsafe { self.start.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped once and is unmapped once, and nothing borrows it.
        let _ = unsafe { call(MUNMAP, [self.start.addr().get(), self.bytes, 0, 0, 0, 0]) };
    }
}
