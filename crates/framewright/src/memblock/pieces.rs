//! Cuts a run of frames into naturally aligned pieces.

use crate::units::{MAX_ORDER, Order, Pfn, PfnRange};

/// Iterator over the pieces of a run, ascending. See [`largest_pieces`].
#[derive(Clone, Debug)]
pub struct LargestPieces {
    next: u64,
    end: u64,
}

/// Cuts `range` into pieces of 2^order frames, each as large as its alignment, the end of the run
/// and [`Order::MAX`] allow.
#[must_use]
pub const fn largest_pieces(range: PfnRange) -> LargestPieces {
    LargestPieces { next: range.start.0, end: range.end.0 }
}

impl Iterator for LargestPieces {
    type Item = (Pfn, Order);

    fn next(&mut self) -> Option<(Pfn, Order)> {
        // Returns nothing when no frame is left, and so also for a range that ends before it
        // starts.
        let fitting = self.end.checked_sub(self.next)?.checked_ilog2()?;
        let order = fitting.min(self.next.trailing_zeros()).min(u32::from(MAX_ORDER));
        let order = Order::new(u8::try_from(order).ok()?)?;
        let pfn = Pfn(self.next);
        self.next += order.pages();
        Some((pfn, order))
    }
}
