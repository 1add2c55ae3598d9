//! Registering a device for free page reports.

use super::{EVENTS, Phase, Registration, Reporter};
use crate::manager::{Loan, Manager, Reporting, ReportingCounters};
use crate::platform::{AcceptMemory, Platform};
use crate::reporting::device::{Content, MOST_RANGES, ReportDevice};
use crate::reporting::event::{Event, RegisterError};
use crate::reporting::pass::Capacity;
use crate::units::{Order, PhysRange};
use crate::zone::Batch;

impl<P: Platform> Manager<P> {
    /// Returns the settings and counters of free page reporting.
    #[must_use]
    pub const fn reporting(&self) -> &Reporting {
        self.shared_reporting()
    }

    /// Returns all counters of free page reporting.
    pub fn reporting_counters(&self) -> ReportingCounters {
        let mut counters = self.reporting().counted();
        counters.reused_pages = self.hugetlb().reused_frames();
        for zone in self.zones() {
            let (reused_pages, early_pages) = zone.reused_pages(self.platform());
            counters.reused_pages += reused_pages;
            counters.reused_early_pages += early_pages;
        }
        counters
    }

    /// Registers the one device for free page reports. From the first device on, marks of reported
    /// blocks are kept. They stay when a device goes away, so that the next one continues where it
    /// stopped.
    ///
    /// # Errors
    /// See [`RegisterError`]; the device is returned with it.
    #[cfg(feature = "reporting")]
    pub fn register_reporting<D: ReportDevice>(
        &self,
        device: D,
    ) -> Result<Reporter<'_, P, D>, (RegisterError, D)> {
        self.register(device)
    }

    fn register<D: ReportDevice>(
        &self,
        device: D,
    ) -> Result<Reporter<'_, P, D>, (RegisterError, D)> {
        let aids = self.debug().aids();
        let content = device.content();
        if aids.page_poison && content != Content::Poison
            || aids.init_on_free && !matches!(content, Content::Zero | Content::ZeroOrKept)
        {
            return Err((RegisterError::Content, device));
        }
        let reporting = self.reporting();
        if !reporting.register() {
            return Err((RegisterError::Busy, device));
        }
        for zone in self.zones() {
            zone.track_reported(self.platform());
        }
        let order = reporting.order().or(device.order()).unwrap_or(Order::BLOCK);
        if order < Order::BLOCK {
            self.forget_sweeps();
        }
        let mut reporter = Reporter {
            manager: self,
            registration: Registration { reporting, in_use: false },
            order,
            capacity: Capacity::of(device.capacity()),
            device,
            phase: Phase::Idle,
            pass: None,
            batch: Batch::EMPTY,
            loan: Loan::EMPTY,
            out: None,
            ranges: [PhysRange::new(0, 0); MOST_RANGES],
            range_count: 0,
            silent: false,
            resetting: false,
            closing: false,
            errors: 0,
            not_before_ns: 0,
            look_due_ns: 0,
            vain_looks: 0,
            known_to_fail: None,
            flushes_begun: reporting.flushes_wanted(),
            events: [None; EVENTS],
        };
        reporter.note(Event::Enabled { order });
        Ok(reporter)
    }

    /// Clears the *swept* marks of split blocks, whose smaller runs may be worth a report now.
    pub(super) fn forget_sweeps(&self) {
        for zone in self.zones() {
            let mut from = Some(0);
            while let Some(index) = from {
                from = zone.forget_sweeps(self.platform(), index);
            }
        }
    }
}

impl<P: Platform, D: ReportDevice> Reporter<'_, P, D> {
    /// Returns whether memory that the host had must be accepted again.
    pub(super) fn is_forgotten(&self) -> bool {
        self.manager.platform().accept_memory().is_some_and(AcceptMemory::forgets)
    }

    /// Returns whether memory may be reported. It may not if pages are read past their end and the
    /// host forgets that they were accepted: memory that follows memory in use cannot be given away
    /// then.
    pub(super) fn may_report(&self) -> bool {
        let device = self.manager.platform().accept_memory();
        !device.is_some_and(|device| device.forgets() && device.reads_past_pages())
    }
}
