//! Frames for the balloon, from the manager.

use crate::platform::GuestPlatform;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::{Manager, Request};
use framewright_balloon::BalloonMemory;

/// Frames for inflation.
pub struct ManagedFrames<'a>(pub &'a Manager<GuestPlatform>);

// SAFETY: what the manager has allocated nobody else uses until it is freed.
unsafe impl BalloonMemory for ManagedFrames<'_> {
    fn take(&mut self, order: u32, end_pfn: u64) -> Option<u64> {
        let order = Order::new(u8::try_from(order).ok()?)?;
        let request = Request {
            migrate_type: MigrateType::Movable,
            max_address: end_pfn.saturating_mul(PAGE_SIZE),
            fail_fast: true,
            ..Request::new(order)
        };
        self.0.allocate(&request).ok().map(|range| range.start.0)
    }

    unsafe fn give_back(&mut self, first_pfn: u64, pages: u32) {
        let range = PfnRange { start: Pfn(first_pfn), end: Pfn(first_pfn + u64::from(pages)) };
        // SAFETY: `take` allocated these frames, and the caller does not use them any more
        // (invariant 42).
        if let Err(error) = unsafe { self.0.free(range) } {
            crate::console::log!("virtio-balloon: frames at {first_pfn:#x} are lost: {error}");
        }
    }
}
