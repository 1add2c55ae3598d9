//! The interrupt handler: a caller of its own, on the same CPU, without a heap.

use super::Stepped;
use super::model::Model;
use framewright::block::MigrateType;
use framewright::units::{Order, PfnRange};
use framewright_testkit::Owner;

/// Runs that the handler holds at most.
const MOST: usize = 24;

/// What the handler holds.
pub struct Handler {
    runs: [Option<(PfnRange, Order)>; MOST],
    turn: u64,
}

impl Default for Handler {
    fn default() -> Self {
        Self { runs: [None; MOST], turn: 0 }
    }
}

impl Handler {
    /// What an interrupt does: gets some, gives some, at times empties the cache of its CPU.
    pub fn interrupt(&mut self, manager: &Stepped, model: &mut Model) {
        self.turn = self.turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = self.turn >> 33;
        if chance % 16 == 0 {
            assert!(manager.drain().is_ok(), "only good frames are cached");
        }
        for turn in 0..1 + chance % 3 {
            let slot = (chance / 7 + turn * 5) as usize % MOST;
            self.exchange(slot, chance >> turn, manager, model);
        }
    }

    fn exchange(&mut self, slot: usize, chance: u64, manager: &Stepped, model: &mut Model) {
        if let Some((range, order)) = self.runs[slot].take() {
            model.gives(range);
            assert!(manager.give_back_order(range.start, order).is_ok(), "{range:?} was the handler's");
        }
        let order = Order::new([0, 0, 1, 2, 3, 0, 6, 9][chance as usize % 8]).unwrap_or(Order::PAGE);
        let migrate_type = [MigrateType::Movable, MigrateType::Unmovable][chance as usize / 8 % 2];
        if let Ok(start) = manager.allocate_order(order, migrate_type) {
            let range = PfnRange { start, end: start.add(order.pages()) };
            model.got(range);
            self.runs[slot] = Some((range, order));
        }
    }

    /// What the handler holds.
    pub fn runs(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.runs.iter().flatten().map(|&(range, _)| range)
    }

    /// Takes one of its runs away.
    pub fn take(&mut self) -> Option<(PfnRange, Order)> {
        self.runs.iter_mut().find_map(Option::take)
    }
}
