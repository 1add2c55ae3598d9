//! How passes begin and end.

use super::{MOST_BACKOFF_NS, MS, Next, Phase, Reporter, TICK_NS};
use crate::manager::add;
use crate::parameters::Pace;
use crate::platform::Platform;
use crate::reporting::device::ReportDevice;
use crate::reporting::event::Event;
use crate::reporting::pass::{Kind, Pass};
use crate::units::Order;

impl<P: Platform, D: ReportDevice> Reporter<'_, P, D> {
    /// Applies a changed setting of the order.
    pub(super) fn follow_order(&mut self) {
        let mut order = self.reporting().order().unwrap_or(self.order);
        if self.is_forgotten() {
            // Part of a block cannot be accepted.
            order = order.max(Order::BLOCK);
        }
        if order < Order::BLOCK && order < self.order {
            self.manager.forget_sweeps();
        }
        self.order = order;
    }

    pub(super) fn begin(&mut self, kind: Kind, now_ns: u64) {
        self.follow_order();
        self.phase = Phase::Active;
        let mut pass = Pass::new(kind, self.order, now_ns);
        (pass.by_address, pass.seen) = (self.errors != 0, self.seen());
        self.pass = Some(pass);
    }

    /// Returns whether the pass under way is a flush.
    pub(super) const fn is_flushing(&self) -> bool {
        matches!(self.pass, Some(Pass { kind: Kind::Flush, .. }))
    }

    /// Abandons the pass under way.
    pub(super) fn end_pass(&mut self) {
        if let Some(mut pass) = self.pass.take()
            && let Some(zone) = self.manager.zones().get(pass.zone)
        {
            pass.next_zone(self.manager.platform(), zone);
        }
        self.phase = Phase::Idle;
    }

    /// Continues after the memory that failed, following a wait that is longer each time, so that
    /// memory that cannot be reported does not hold up the rest. A flush does not wait, and ends if
    /// the device has not even `answered`.
    pub(super) fn fail(&mut self, now_ns: u64, answered: bool) -> Next {
        add(&self.registration.reporting.tally.errors, 1);
        let doubled = self.delay_ns().max(TICK_NS).saturating_mul(1 << self.errors.min(16));
        let wait_ns = doubled.min(MOST_BACKOFF_NS);
        if self.errors == 0 {
            self.note(Event::Failing { retry_ms: wait_ns / MS });
        }
        self.errors = self.errors.saturating_add(1);
        let is_flushing = self.is_flushing();
        if is_flushing && !answered {
            self.end_pass();
            self.phase = Phase::Requested { due_ns: now_ns + wait_ns };
        } else if let Some(pass) = &mut self.pass {
            pass.go_behind(self.manager);
            if is_flushing {
                return Next::Step;
            }
        }
        self.not_before_ns = now_ns + wait_ns;
        Next::Wait(self.not_before_ns)
    }

    pub(super) fn finish_pass(&mut self, now_ns: u64) -> Next {
        let Some(pass) = self.pass.take() else { return Next::Step };
        let tally = &self.registration.reporting.tally;
        add(&tally.passes, 1);
        if pass.kind == Kind::Flush && !pass.has_failed {
            add(&tally.flushes, 1);
        }
        // A pass that left something over may not have reached the memory that is refused.
        let is_whole = pass.has_spent && !pass.has_failed && !pass.left_over;
        if is_whole && core::mem::replace(&mut self.errors, 0) != 0 {
            self.note(Event::Recovered);
        }
        if !pass.has_spent && !pass.left_over {
            // The value from the start of the pass, because the pass may not have looked at memory
            // that became free since.
            self.known_to_fail = Some(pass.seen);
        }
        let due_ns = match self.reporting().pace() {
            Pace::Adaptive => pass.started_ns + self.idle_ns(),
            Pace::Fixed => now_ns + self.delay_ns().max(if pass.has_spent { 0 } else { MS }),
        };
        self.phase = if pass.left_over {
            Phase::Requested { due_ns }
        } else if pass.order < Order::BLOCK {
            // Only a look at all split blocks shows whether anything became free in them.
            Phase::Requested { due_ns: now_ns + self.delay_ns().max(MS) }
        } else {
            Phase::Idle
        };
        Next::Step
    }
}
