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
    pub(super) fn begin(&mut self, kind: Kind, now_ns: u64) {
        if let Some(order) = self.reporting().order() {
            if order < Order::BLOCK && order < self.order {
                self.manager.forget_sweeps();
            }
            self.order = order;
        }
        if self.is_forgotten() {
            // A part of a block cannot be accepted.
            self.order = self.order.max(Order::BLOCK);
        }
        self.phase = Phase::Active;
        self.pass = Some(Pass::new(kind, self.order, now_ns));
    }

    /// Leaves a pass where it is.
    pub(super) fn end_pass(&mut self) {
        if let Some(mut pass) = self.pass.take()
            && let Some(zone) = self.manager.zones().get(pass.zone)
        {
            pass.next_zone(self.manager.platform(), zone);
        }
        self.phase = Phase::Idle;
    }

    /// Ends the pass after an error and waits, longer each time.
    pub(super) fn fail(&mut self, now_ns: u64) -> Next {
        add(&self.registration.reporting.tally.errors, 1);
        let doubled = self.delay_ns().max(TICK_NS).saturating_mul(1 << self.errors.min(16));
        let wait_ns = doubled.min(MOST_BACKOFF_NS);
        if self.errors == 0 {
            self.note(Event::Failing { retry_ms: wait_ns / MS });
        }
        self.errors = self.errors.saturating_add(1);
        self.end_pass();
        self.not_before_ns = now_ns + wait_ns;
        self.phase = Phase::Requested { due_ns: self.not_before_ns };
        Next::Wait(self.not_before_ns)
    }

    pub(super) fn finish_pass(&mut self, now_ns: u64) -> Next {
        let Some(pass) = self.pass.take() else { return Next::Step };
        let tally = &self.registration.reporting.tally;
        add(&tally.passes, 1);
        if pass.kind == Kind::Flush {
            add(&tally.flushes, 1);
        }
        self.looked_ns = Some(now_ns);
        if !pass.has_spent && !pass.left_over {
            self.known_to_fail = Some(self.seen());
        }
        let due_ns = match self.reporting().pace() {
            Pace::Adaptive => pass.started_ns + self.idle_ns(),
            Pace::Fixed => now_ns + self.delay_ns().max(if pass.has_spent { 0 } else { MS }),
        };
        self.phase = if pass.left_over {
            Phase::Requested { due_ns }
        } else if pass.order < Order::BLOCK {
            // Whether anything became free in split blocks is known only by looking at all of them.
            Phase::Requested { due_ns: now_ns + self.delay_ns().max(MS) }
        } else {
            Phase::Idle
        };
        Next::Step
    }
}
