//! The window of this machine's address space in which the shell uses huge pages.

use crate::platform::{GuestPlatform, PLATFORM};
use crate::smp::TlbShootdown;
use core::ptr::NonNull;
use framewright::SpinLock;
use framewright::platform::Platform;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::FrameSource;
use framewright::{Manager, MigrateType, Request};
use framewright_arch::paging::PageSize;
use framewright_arch::paging::{AddressSpace, SpaceError};
use framewright_arch::x86_64::features::Features;
use framewright_arch::x86_64::registers::page_table_root;
use framewright_workload::{Window, WindowError};

/// Where the window begins. Nothing else of this guest is there.
pub const BASE: u64 = 0xffff_d000_0000_0000;
/// Bits of the root's address in CR3; the others are flags.
const ROOT: u64 = (1 << 52) - PAGE_SIZE;

type Space = AddressSpace<GuestPlatform, TlbShootdown>;

/// The window. `None` while it is being changed, or if there cannot be one.
pub struct GuestWindow<'a> {
    manager: &'a Manager<GuestPlatform>,
    space: SpinLock<Option<Space>>,
}

/// Takes frames for tables from the manager.
struct Tables<'a>(&'a Manager<GuestPlatform>);

// SAFETY: memory that the manager allocates belongs to nobody else until it is freed, and lies
// below the direct limit.
unsafe impl FrameSource for Tables<'_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let request = Request {
            max_address: PLATFORM.direct_limit(),
            // Tables stay where they are.
            migrate_type: MigrateType::Unmovable,
            ..Request::new(order)
        };
        self.0.allocate(&request).ok().map(|run| run.start)
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        // SAFETY: the caller upholds it: `take` allocated the frames (invariant 42). So this cannot
        // fail.
        let _ = unsafe { self.0.free(PfnRange { start, end: start.add(order.pages()) }) };
    }
}

impl<'a> GuestWindow<'a> {
    /// Returns an empty window.
    pub fn new(manager: &'a Manager<GuestPlatform>) -> Self {
        let largest = if Features::read().pages_1g { PageSize::Large } else { PageSize::Medium };
        let root = page_table_root() & ROOT;
        // SAFETY: the root is that of `direct_map`, which all CPUs use, in memory that stays
        // reserved. Nobody else maps anything from `BASE` on. `boot.s` has set NXE on every CPU.
        let space = unsafe {
            AddressSpace::new(&PLATFORM, TlbShootdown { global: false }, root, BASE, largest)
        };
        Self { manager, space: SpinLock::new(space.ok()) }
    }

    /// Whether there can be a window.
    pub fn exists(&self) -> bool {
        self.space.with(&PLATFORM, |space| space.is_some())
    }

    /// Changes the window without holding the lock: flushes wait for other CPUs, which must not
    /// happen with interrupts off.
    fn with<R>(&self, work: impl FnOnce(&mut Space) -> R) -> Option<R> {
        let mut space = self.space.with(&PLATFORM, Option::take)?;
        let result = work(&mut space);
        self.space.with(&PLATFORM, |place| *place = Some(space));
        Some(result)
    }
}

// SAFETY: the page is mapped in this machine's tables, which all CPUs share, before `show` returns.
// Places are as far apart as pages are large, and each place is shown once, so no two overlap
// (invariant 40).
unsafe impl Window for GuestWindow<'_> {
    fn show(&self, place: u64, page: PfnRange) -> Result<NonNull<u8>, WindowError> {
        let bytes = page.pages() * PAGE_SIZE;
        let address = place.checked_mul(bytes).and_then(|offset| BASE.checked_add(offset));
        let address = address.ok_or(WindowError::NoPlace)?;
        let memory = PhysRange::with_size(page.start.address(), bytes);
        match self.with(|space| space.map(address, memory, &mut Tables(self.manager))) {
            Some(Ok(())) => {
                let address = usize::try_from(address).map_err(|_| WindowError::NoPlace)?;
                NonNull::new(core::ptr::with_exposed_provenance_mut(address))
                    .ok_or(WindowError::NoPlace)
            }
            Some(Err(SpaceError::OutOfFrames)) => Err(WindowError::OutOfMemory),
            Some(Err(_)) | None => Err(WindowError::NoPlace),
        }
    }

    unsafe fn hide_all(&self) -> u64 {
        let hide = |space: &mut Space| {
            // SAFETY: `take` allocated this table. It is out of the tables and flushed on every CPU
            // (invariant 40).
            let give_back =
                &mut |frame: Pfn| unsafe { Tables(self.manager).put_back(frame, Order::PAGE) };
            // Unmapping the whole window cannot fail.
            let _ = space.unmap(space.range(), give_back);
            space.tables()
        };
        self.with(hide).unwrap_or(u64::MAX)
    }
}
