//! The interrupt handler: a separate caller on the same CPU that uses no heap.

use super::Stepped;
use super::model::Model;
use framewright::units::{Order, PfnRange};
use framewright::zone::MigrateType;
use framewright_testkit::Owner;
use framewright_testkit::workload::Random;

/// The number of runs that the handler holds at most.
const MOST: usize = 24;

/// The runs that the handler holds.
pub struct Handler {
    runs: [Option<(PfnRange, Order)>; MOST],
    random: Random,
}

impl Default for Handler {
    fn default() -> Self {
        Self { runs: [None; MOST], random: Random::new(1) }
    }
}

impl Handler {
    /// Does the work of an interrupt: allocates some, frees some, and sometimes empties the cache
    /// of its CPU.
    pub fn interrupt(&mut self, manager: &Stepped, model: &mut Model) {
        if self.random.one_in(16) {
            assert!(manager.drain().is_ok(), "only good frames are cached");
        }
        for _ in 0..=self.random.index(3) {
            self.exchange(manager, model);
        }
    }

    fn exchange(&mut self, manager: &Stepped, model: &mut Model) {
        let slot = self.random.index(MOST);
        if let Some((range, order)) = self.runs[slot].take() {
            model.gives(range);
            assert!(
                manager.give_back_order(range.start, order).is_ok(),
                "{range:?} was the handler's"
            );
        }
        let order = self
            .random
            .choose(&[0, 0, 0, 1, 2, 3, 6, 9])
            .and_then(Order::new)
            .unwrap_or(Order::PAGE);
        let migrate_type =
            if self.random.one_in(2) { MigrateType::Movable } else { MigrateType::Unmovable };
        if let Ok(start) = manager.allocate_order(order, migrate_type) {
            let range = PfnRange { start, end: start.add(order.pages()) };
            model.got(range);
            self.runs[slot] = Some((range, order));
        }
    }

    /// Returns the runs that the handler holds.
    pub fn runs(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.runs.iter().flatten().map(|&(range, _)| range)
    }

    /// Takes one of the handler's runs away from it.
    pub fn take(&mut self) -> Option<(PfnRange, Order)> {
        self.runs.iter_mut().find_map(Option::take)
    }
}
