//! The manager as a subject.

use super::interface::{Free, Subject};
use framewright::Manager;
use framewright::units::{BLOCK_ORDER, Order, Pfn};
use framewright::zone::MigrateType;
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::{CpuToken, HostedPlatform, Machine};

/// Small watermarks, so that a filled machine is nearly full.
const PARAMETERS: &str = "min_free_kbytes=128 watermark_scale_factor=1 pages=none";

/// The manager of a synthetic machine, with its short calls for an order.
#[derive(Clone, Copy)]
pub struct Ours<'a>(&'a Manager<HostedPlatform>);

impl<'a> Ours<'a> {
    /// The manager itself.
    #[inline]
    pub const fn manager(&self) -> &'a Manager<HostedPlatform> {
        self.0
    }

    /// Brings up a machine with one node and lends its manager to `work`.
    ///
    /// # Errors
    /// Fails if a machine cannot be emulated by this process, with the errors of `work`, or if
    /// tables contradict one another afterwards.
    pub fn with<T>(
        memory_bytes: u64,
        cpus: u32,
        work: impl FnOnce(&Ours<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        Self::with_nodes(memory_bytes, 1, cpus, work)
    }

    /// Works like [`with`](Self::with), but with several nodes that share the memory evenly.
    ///
    /// # Errors
    /// The errors of [`with`](Self::with).
    pub fn with_nodes<T>(
        memory_bytes: u64,
        nodes: u32,
        cpus: u32,
        work: impl FnOnce(&Ours<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let machine = Machine::synthetic(memory_bytes, nodes, cpus)
            .map_err(|error| Error::Failed(error.to_string()))?;
        let pass = Session::open(&machine, PARAMETERS)?.bring_up(&mut Silent)?;
        let result = work(&Ours(pass.manager()))?;
        pass.verify()?;
        Ok(result)
    }
}

impl<'a> Ours<'a> {
    /// Works like [`with`](Self::with), but with other boot parameters.
    ///
    /// # Errors
    /// The errors of [`with`](Self::with).
    pub fn with_words<T>(
        memory_bytes: u64,
        words: &str,
        work: impl FnOnce(&Ours<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let machine = Machine::synthetic(memory_bytes, 1, 1)
            .map_err(|error| Error::Failed(error.to_string()))?;
        let pass = Session::open(&machine, words)?.bring_up(&mut Silent)?;
        let result = work(&Ours(pass.manager()))?;
        pass.verify()?;
        Ok(result)
    }
}

impl Subject for Ours<'_> {
    const NAME: &'static str = "framewright";

    type Seat<'a>
        = CpuToken<'a>
    where
        Self: 'a;

    fn sit(&self, cpu: u32) -> Result<Self::Seat<'_>, Error> {
        self.0.platform().enter_cpu(cpu).map_err(|error| Error::Failed(error.to_string()))
    }

    // Inlined, as by a caller that counts instructions.
    #[inline(always)]
    fn get(&self, order: Order) -> Option<u64> {
        self.0.allocate_order(order, MigrateType::Movable).ok().map(|start| start.0)
    }

    #[inline(always)]
    fn put(&self, pfn: u64, order: Order) {
        // SAFETY: benchmarks put what they got, once, and do not look at it afterwards (invariant
        // 42).
        if unsafe { self.0.free_order(Pfn(pfn), order) }.is_err() {
            refused(pfn, order);
        }
    }

    fn drain(&self) {
        let drained = self.0.drain();
        assert!(drained.is_ok(), "a CPU's cache held a frame that was not allocated: {drained:?}");
    }

    fn free(&self) -> Option<Free> {
        let mut free = Free::default();
        for zone in self.0.views() {
            free.pages += zone.free_pages();
            let orders = zone.free_blocks().into_iter().zip(BLOCK_ORDER..);
            free.whole_pages +=
                orders.map(|(blocks, order)| u64::from(blocks) << order).sum::<u64>();
        }
        Some(free)
    }
}

#[cold]
pub(super) fn refused(pfn: u64, order: Order) -> ! {
    panic!("frame {pfn} of {order:?} was allocated and cannot be freed")
}
