//! The manager as a subject, with unmovable requests, like those for a kernel's own memory.

use super::interface::Subject;
use super::ours::Ours;
use framewright::units::Order;
use framewright::zone::MigrateType;
use framewright_cli::error::Error;

/// The manager of a synthetic machine. Other allocators do not distinguish movable from unmovable.
#[derive(Clone, Copy)]
pub struct Unmovable<'a>(pub Ours<'a>);

impl Subject for Unmovable<'_> {
    const NAME: &'static str = Ours::NAME;

    type Seat<'b>
        = <Ours<'b> as Subject>::Seat<'b>
    where
        Self: 'b;

    fn sit(&self, cpu: u32) -> Result<Self::Seat<'_>, Error> {
        self.0.sit(cpu)
    }

    #[inline]
    fn get(&self, order: Order) -> Option<u64> {
        self.0.manager().allocate_order(order, MigrateType::Unmovable).ok().map(|start| start.0)
    }

    #[inline]
    fn put(&self, pfn: u64, order: Order) {
        self.0.put(pfn, order);
    }

    fn drain(&self) {
        self.0.drain();
    }
}
