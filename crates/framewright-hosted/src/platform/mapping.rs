//! The reservation: one anonymous mapping that is the machine's physical memory.
//!
//! All of it is reserved without access, and only blocks with memory are then opened, so an access
//! to a hole or beyond an end stops the program at once. The kernel backs memory when it is first
//! touched.

use super::error::HostedError;
use super::own_process::OwnProcess;
use std::io;
use std::ptr::NonNull;

/// Alignment of the reservation. Physical alignment up to 1 GiB is also alignment in the process,
/// so the system can use huge pages where the machine would.
const ALIGNMENT: usize = 1 << 30;

/// A reserved range of addresses of this process, released on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    /// What mmap returned.
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    /// The first byte that stands for memory. At least one page without access lies below and
    /// above.
    base: NonNull<u8>,
    bytes: usize,
    /// Whether it is shared memory, as the memory of guests often is.
    shared: bool,
}

// SAFETY: a Mapping is an address and a length. It reads and writes nothing by itself, and the
// callers of its unsafe methods keep accesses apart (invariant 1).
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `bytes` addresses. The first lies `skew` bytes past an aligned address; `skew` is a
    /// multiple of the page size and below the alignment.
    pub fn reserve(bytes: u64, skew: usize, shared: bool) -> Result<Self, HostedError> {
        let refused = |error| HostedError::CannotReserve {
            needed_bytes: bytes,
            limit_bytes: largest(shared),
            error,
        };
        let too_large = || refused(io::Error::from_raw_os_error(libc::ENOMEM));
        let wanted = usize::try_from(bytes).map_err(|_| too_large())?;
        let reserved_bytes = wanted.checked_add(2 * ALIGNMENT + skew).ok_or_else(too_large)?;
        let reserved = map_nothing(reserved_bytes, shared).map_err(refused)?;
        // At least one page stays below, and because two alignments were added, nearly one
        // alignment above.
        let shift = ALIGNMENT - reserved.addr().get() % ALIGNMENT + skew;
        // SAFETY: shift <= ALIGNMENT + skew and reserved_bytes >= 2 * ALIGNMENT + skew, so the
        // result lies in the mapping.
        let base = unsafe { reserved.add(shift) };
        Ok(Self { reserved, reserved_bytes, base, bytes: wanted, shared })
    }

    /// Makes `bytes` bytes from `offset` readable and writable; both are multiples of the page
    /// size.
    pub fn open(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let (start, length) = self.part(offset, bytes)?;
        // SAFETY: `part` checked that the range lies in this mapping, which no other code maps
        // over; more access invalidates nothing.
        check(unsafe {
            libc::mprotect(start.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE)
        })
    }

    /// Makes `bytes` bytes from `offset` neither readable nor writable, so that an access to them
    /// stops the process.
    pub fn close(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let (start, length) = self.part(offset, bytes)?;
        // SAFETY: `part` checked that the range lies in this mapping, which no other code maps
        // over.
        check(unsafe { libc::mprotect(start.as_ptr().cast(), length, libc::PROT_NONE) })
    }

    /// Makes `bytes` bytes from `offset` come from the host nodes in `mask` while those have memory
    /// (mbind(2), `MPOL_PREFERRED`).
    pub fn prefer(&self, offset: u64, bytes: u64, mask: &[u64]) -> io::Result<()> {
        const MPOL_PREFERRED: libc::c_long = 1;
        let (start, length) = self.part(offset, bytes)?;
        // The kernel subtracts one from the number of bits.
        let bits = mask.len() * 64 + 1;
        // SAFETY: `part` checked that the range lies in this mapping, and the mask is live and has
        // as many bits as are read. Where pages come from changes no content.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start.as_ptr(),
                length,
                MPOL_PREFERRED,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Drops the pages behind `bytes` bytes from `offset`; they read as zero when next touched.
    /// Shared memory must be open.
    ///
    /// # Safety
    /// No other code reads or writes them meanwhile or relies on their content (invariant 1).
    pub unsafe fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let (start, length) = self.part(offset, bytes)?;
        // Shared pages stay in the file behind the mapping unless a hole is punched into it.
        let advice = if self.shared { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        // SAFETY: `part` checked that the range lies in this mapping, and the caller vouches for
        // its content.
        check(unsafe { libc::madvise(start.as_ptr().cast(), length, advice) })
    }

    /// Whether it is shared memory.
    pub const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Gives `advice`, one of the `MADV_` numbers that discard memory, for `parts`, each an offset
    /// and a length. Returns a mask with a bit set for each part whose advice was taken.
    ///
    /// # Safety
    /// No other code reads or writes them meanwhile or relies on their content (invariant 1).
    pub unsafe fn advise(
        &self,
        parts: &[(u64, u64)],
        advice: libc::c_int,
        process: &mut OwnProcess,
    ) -> u32 {
        let (mut taken, mut places) = (0, Vec::with_capacity(parts.len()));
        for &(offset, bytes) in parts {
            let part = self.part(offset, bytes).map(|(start, length)| (start.as_ptr(), length));
            places.push(part.unwrap_or((std::ptr::null_mut(), 0)));
        }
        // SAFETY: `part` checked that all ranges lie in this mapping, and the caller vouches for
        // their content.
        let together = unsafe { process.advise(&places, advice) };
        for (number, &(start, length)) in places.iter().enumerate() {
            let done = number < together
                || length != 0 && {
                    // SAFETY: as for the call for all parts above.
                    check(unsafe { libc::madvise(start.cast(), length, advice) }).is_ok()
                };
            taken |=
                u32::from(done).checked_shl(u32::try_from(number).unwrap_or(u32::MAX)).unwrap_or(0);
        }
        taken
    }

    /// Writes `byte` to `bytes` bytes from `offset`.
    ///
    /// # Safety
    /// They are open, and no other code reads or writes them meanwhile or relies on their content
    /// (invariant 1).
    pub unsafe fn fill(&self, offset: u64, bytes: u64, byte: u8) -> io::Result<()> {
        let (start, length) = self.part(offset, bytes)?;
        // SAFETY: `part` checked that the range lies in this mapping; the caller vouches for the
        // rest.
        unsafe { start.write_bytes(byte, length) };
        Ok(())
    }

    /// Returns the address of byte `offset`, or `None` beyond the size of the reservation.
    #[inline]
    pub fn at(&self, offset: u64) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.bytes)?;
        // SAFETY: offset was checked against the size, and the mapping is one allocation (invariant
        // 15).
        Some(unsafe { self.base.add(offset) })
    }

    /// The range of addresses that stand for memory.
    pub fn addresses(&self) -> std::ops::Range<u64> {
        let start = self.base.addr().get() as u64;
        start..start + self.bytes as u64
    }

    fn part(&self, offset: u64, bytes: u64) -> io::Result<(NonNull<u8>, usize)> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes as u64);
        end.ok_or_else(outside)?;
        let length = usize::try_from(bytes).map_err(|_| outside())?;
        Ok((self.at(offset).ok_or_else(outside)?, length))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap and is unmapped once. Users of pointers from `at`
        // promise not to use them after their platform is gone (invariant 1).
        let result = unsafe { libc::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        debug_assert_eq!(result, 0, "munmap of a whole mapping cannot fail");
    }
}

/// Reserves addresses without access.
fn map_nothing(bytes: usize, shared: bool) -> io::Result<NonNull<u8>> {
    let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE }
        | libc::MAP_ANONYMOUS
        | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
}

/// Finds by trial how many bytes could be reserved for memory now, to a MiB.
fn largest(shared: bool) -> u64 {
    const PRECISION: usize = 1 << 20;
    let (mut possible, mut impossible) = (0_usize, 1_usize << 57);
    while impossible - possible > PRECISION {
        let middle = possible + (impossible - possible) / 2;
        match map_nothing(middle, shared) {
            Ok(address) => {
                // SAFETY: this mapping was made just above, and no other code knows of it.
                unsafe { libc::munmap(address.as_ptr().cast(), middle) };
                possible = middle;
            }
            Err(_) => impossible = middle,
        }
    }
    possible.saturating_sub(2 * ALIGNMENT) as u64
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
