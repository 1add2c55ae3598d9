//! The manager as a subject, by the calls that serve every request: `allocate` and `free`.

use super::interface::Subject;
use super::ours::Ours;
use framewright::Request;
use framewright::units::{Order, Pfn, PfnRange};
use framewright_cli::error::Error;

/// The manager of a synthetic machine. If `ODD`, runs are a quarter shorter than their order's, so
/// that their size is no power of two.
#[derive(Clone, Copy)]
pub struct Requests<'a, const ODD: bool>(pub Ours<'a>);

impl<const ODD: bool> Requests<'_, ODD> {
    #[inline]
    const fn pages(order: Order) -> u64 {
        if ODD { order.pages() - order.pages() / 4 } else { order.pages() }
    }
}

impl<const ODD: bool> Subject for Requests<'_, ODD> {
    const NAME: &'static str = Ours::NAME;
    const PATTERNS: [&'static str; 3] = if ODD {
        ["odd bulk", "odd random", "odd pair"]
    } else {
        ["request bulk", "request random", "request pair"]
    };

    type Seat<'b>
        = <Ours<'b> as Subject>::Seat<'b>
    where
        Self: 'b;

    fn sit(&self, cpu: u32) -> Result<Self::Seat<'_>, Error> {
        self.0.sit(cpu)
    }

    // Inlined, like the calls for an order, which these rows are compared with.
    #[inline(always)]
    fn get(&self, order: Order) -> Option<u64> {
        let request = Request::pages(Self::pages(order));
        self.0.manager().allocate(&request).ok().map(|range| range.start.0)
    }

    #[inline(always)]
    fn put(&self, pfn: u64, order: Order) {
        let start = Pfn(pfn);
        let range = PfnRange { start, end: start.add(Self::pages(order)) };
        // SAFETY: benchmarks put what they got, once, and do not look at it afterwards (invariant
        // 42).
        if unsafe { self.0.manager().free(range) }.is_err() {
            super::ours::refused(pfn, order);
        }
    }

    fn drain(&self) {
        self.0.drain();
    }
}
