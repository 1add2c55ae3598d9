//! How a CPU's cache is emptied: the oldest entries of a full stack go back to the zone, entries
//! that were not used are set aside first, and a drain takes all.
//!
//! Orders of memory: Relaxed: only the CPU that has the cache uses it (invariant 16).

use super::cache::{CpuCache, Flow};
use super::limits::order_of;
use super::words::{Runs, Stack};
use crate::block::Lot;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PfnRange};

impl CpuCache {
    /// Returns the number of entries of a stack.
    pub(crate) fn waiting(&self, order: Order, lot: Lot) -> usize {
        self.contents.touch();
        self.stack(order, lot).map_or(0, |stack| stack.len() as usize)
    }

    /// Copies the entries of a stack, oldest first and without the first `skip`, into `out`.
    /// Returns how many.
    pub(crate) fn copy_oldest(
        &self,
        order: Order,
        lot: Lot,
        skip: usize,
        out: &mut [Runs],
    ) -> usize {
        self.contents.touch();
        let Some(stack) = self.stack(order, lot) else { return 0 };
        let entries = self.entries.get(stack.entries()).unwrap_or(&[]);
        let entries = entries.iter().skip(skip);
        out.iter_mut().zip(entries).map(|(out, entry)| *out = entry.read()).count()
    }

    /// Removes the oldest `count` entries of a stack.
    pub(crate) fn forget_oldest(&self, order: Order, lot: Lot, count: usize) {
        self.contents.touch();
        let Some(stack) = self.stack(order, lot) else { return };
        let all = stack.entries();
        let count = count.min(all.len());
        for from in all.skip(count) {
            self.entries[from - count].set(self.entries[from].read());
        }
        stack.forget(u32::try_from(count).unwrap_or(0));
    }

    /// Returns the next stack with entries that have been aside since
    /// [`set_aside`](Self::set_aside): its order, its lot and the number of those entries.
    /// Successive calls visit all such stacks and return nothing after the last.
    pub(crate) fn next_aside(&self, turn: &mut usize) -> Option<(Order, Lot, usize)> {
        self.next_stack(turn, Stack::aside)
    }

    /// [`next_aside`](Self::next_aside) for stacks that have any entries, from an order's [first
    /// turn](Self::first_turn) on.
    pub(crate) fn next_waiting(&self, turn: &mut usize) -> Option<(Order, Lot, usize)> {
        self.next_stack(turn, Stack::len)
    }

    /// Returns the turn at which an order's stacks begin.
    pub(crate) const fn first_turn(order: Order) -> usize {
        order.get() as usize * Lot::COUNT
    }

    #[inline(never)]
    fn next_stack(
        &self,
        turn: &mut usize,
        entries: fn(&Stack) -> u32,
    ) -> Option<(Order, Lot, usize)> {
        self.contents.touch();
        loop {
            let number = *turn;
            let some = entries(self.stacks.get(number)?);
            *turn += 1;
            if some != 0 {
                let order = u8::try_from(order_of(number)).ok().and_then(Order::new)?;
                let lot = Lot::all().nth(number % Lot::COUNT)?;
                return Some((order, lot, some as usize));
            }
        }
    }

    /// Sets half of each stack aside, unless the stack has something aside already. What is still
    /// aside at the next call was not wanted in between.
    pub(crate) fn set_aside(&self) {
        self.contents.touch();
        self.stacks.iter().filter(|stack| stack.aside() == 0).for_each(Stack::set_aside);
    }

    /// Takes the oldest run whose length is not a power of two, if it was already here at the last
    /// call that took none.
    pub(crate) fn give_up_old_odd(&self) -> Option<PfnRange> {
        self.contents.touch();
        self.odd.give_up_old()
    }

    /// Returns whether the cache is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.stacks.iter().all(|stack| stack.len() == 0) && self.odd.pages() == 0
    }

    /// Called before the cache is emptied: the next refill begins small again, and at the cache's
    /// own node.
    pub(crate) fn begin_small(&self) {
        self.come_home();
        self.adapt(Flow::In, false);
        self.flow.store(0, Ordering::Relaxed);
        self.batch.store(1, Ordering::Relaxed);
    }
}
