//! System calls of Linux on x86-64.

use core::arch::asm;
use core::ffi::CStr;
use core::ptr::{NonNull, null};

/// What the kernel says when it refuses: a number from its list of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub u16);

/// Not for this process.
pub const EPERM: Errno = Errno(1);
/// No such file: also what a path is that is too long for us.
pub const ENOENT: Errno = Errno(2);
/// A signal came first.
const EINTR: Errno = Errno(4);
/// More than there is room for.
pub const EFBIG: Errno = Errno(27);
/// What was waited for did not come.
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

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// The largest error number; results above its negative are errors.
const MOST_ERRNO: usize = 4095;
/// Bytes of a path, with the zero at its end.
const PATH_BYTES: usize = 128;

/// One system call.
///
/// # Safety
/// What the call of this number asks of its arguments.
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: usize;
    // SAFETY: the kernel changes the result's register, rcx and r11, and what the caller promised.
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

/// `text` as the kernel takes it.
fn path(text: &str) -> Result<[u8; PATH_BYTES], Errno> {
    let mut bytes = [0; PATH_BYTES];
    let room = bytes.get_mut(..text.len()).filter(|room| room.len() < PATH_BYTES).ok_or(ENOENT)?;
    room.copy_from_slice(text.as_bytes());
    Ok(bytes)
}

/// An open file, closed with the value.
pub struct File(usize);

impl File {
    /// Opens a file to read.
    pub fn read_only(name: &str) -> Result<Self, Errno> {
        Self::open(name, 0)
    }

    /// Opens a file that there is to write.
    pub fn write_only(name: &str) -> Result<Self, Errno> {
        Self::open(name, 1)
    }

    fn open(name: &str, flags: usize) -> Result<Self, Errno> {
        let name = path(name)?;
        // SAFETY: the path ends in zero and lives during the call.
        unsafe { call(OPEN, [name.as_ptr().addr(), flags, 0, 0, 0, 0]) }.map(Self)
    }

    /// Reads what comes next; 0 bytes at the end.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer is ours alone during the call.
        unsafe { call(READ, [self.0, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
    }

    /// Writes once.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        write(self.0, bytes)
    }

    /// Makes the file a part of the kernel.
    pub fn load_as_module(&self) -> Result<(), Errno> {
        // SAFETY: the parameters are an empty text.
        unsafe { call(FINIT_MODULE, [self.0, c"".as_ptr().addr(), 0, 0, 0, 0]) }.map(|_| ())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used afterwards.
        let _ = unsafe { call(CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Writes to standard output.
pub fn print(bytes: &[u8]) {
    let mut rest = bytes;
    // An error means that nobody listens.
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
    // SAFETY: all three are texts that end in zero; no data is passed.
    unsafe { call(MOUNT, [kind, folder, kind, 0, 0, 0]) }.map(|_| ())
}

/// Copies the end of the kernel's log.
pub fn kernel_log(buffer: &mut [u8]) -> Result<usize, Errno> {
    const READ_ALL: usize = 3;
    // SAFETY: the buffer is ours alone during the call.
    unsafe { call(SYSLOG, [READ_ALL, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
}

/// Nanoseconds on a clock that nobody sets.
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
    // SAFETY: the time lives during the call; what is left of it after a signal is not asked for.
    let _ = unsafe { call(NANOSLEEP, [time.as_ptr().addr(), 0, 0, 0, 0, 0]) };
}

/// Number of this process; 1 is the kernel's first.
pub fn pid() -> usize {
    // SAFETY: no arguments, no effects.
    unsafe { call(GETPID, [0; 6]) }.unwrap_or(0)
}

/// Which side of a fork one is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that goes on.
    Parent,
    /// The new one.
    Child,
}

/// Makes a second process of this one.
pub fn fork() -> Result<Side, Errno> {
    // SAFETY: there is one thread, and no state outside this process that both would think theirs
    // but standard output.
    let child = unsafe { call(FORK, [0; 6]) }?;
    Ok(if child == 0 { Side::Child } else { Side::Parent })
}

/// Waits for the end of any child. One that failed has said by its status which error it was; one
/// that a signal has ended counts as interrupted.
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

/// Keeps this process on one of the first 64 CPUs.
pub fn stay_on(cpu: u32) -> Result<(), Errno> {
    let mask = 1_u64.checked_shl(cpu).ok_or(ENOENT)?;
    // SAFETY: the mask lives during the call and is only read.
    unsafe { call(SCHED_SETAFFINITY, [0, size_of::<u64>(), (&raw const mask).addr(), 0, 0, 0]) }
        .map(|_| ())
}

/// Ends the process.
pub fn exit(status: u8) -> ! {
    // SAFETY: ends everything.
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
    // SAFETY: nothing is mounted that could be lost.
    let _ = unsafe { call(REBOOT, [MAGIC, MAGIC_2, POWER_OFF, 0, 0, 0]) };
}

/// What the pages of a mapping are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB where possible.
    Huge,
    /// 4 KiB.
    Base,
    /// 4 KiB, and children have the same.
    Shared,
}

/// Memory without a file, given back with the value.
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
        // SAFETY: a new mapping where nothing else is.
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
            // SAFETY: our own mapping; the advice changes nothing that can be seen. A kernel
            // without huge pages refuses, which is as well.
            let _ = unsafe { call(MADVISE, [mapping.start.addr().get(), bytes, advice, 0, 0, 0]) };
        }
        Ok(mapping)
    }

    /// Writes to every page.
    pub fn touch(&mut self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping.
            let page = unsafe { self.start.add(offset) };
            // SAFETY: the mapping is ours and can be written to.
            unsafe { page.write_volatile(1) };
        }
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.bytes / PAGE_BYTES
    }

    /// Gives one page back; the next write to it brings another.
    pub fn discard(&mut self, page: usize) -> Result<(), Errno> {
        const DONTNEED: usize = 4;
        let offset = page.checked_mul(PAGE_BYTES).filter(|&offset| offset < self.bytes);
        let start = self.start.addr().get() + offset.ok_or(ENOENT)?;
        // SAFETY: a page of the mapping, whose contents nobody has read.
        unsafe { call(MADVISE, [start, PAGE_BYTES, DONTNEED, 0, 0, 0]) }.map(|_| ())
    }

    /// Where a child notes a number, and its parent reads it when the child is gone.
    pub fn word(&self, index: usize) -> Option<NonNull<u64>> {
        let offset = index
            .checked_mul(size_of::<u64>())
            .filter(|&offset| offset + size_of::<u64>() <= self.bytes)?;
        // SAFETY: inside the mapping.
        Some(unsafe { self.start.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once, and nothing borrows it.
        let _ = unsafe { call(MUNMAP, [self.start.addr().get(), self.bytes, 0, 0, 0, 0]) };
    }
}
