//! What everybody may read and set while a [`Reporter`](super::Reporter) works: settings, requests
//! to the reporter, and counters.
//!
//! All of these are single words on which nothing else depends, so relaxed atomics suffice.
//!
//! Orders of memory: Relaxed unless stated otherwise: settings, requests and counters that stand
//! alone. Reported memory is handed over under the zone lock. A SeqCst fence orders a device that
//! registers and memory that is added.

use crate::parameters::{Pace, ReportingParameters};
use crate::sync::table_atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use crate::units::Order;

const UNSET: u8 = u8::MAX;
/// How long a device may take for an answer, unless another timeout is set.
const TIMEOUT_MS: u32 = 10_000;

/// Counts since bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReportingCounters {
    /// Pages in ranges that the device acknowledged.
    pub reported_pages: u64,
    /// Ranges that the device acknowledged.
    pub reported_ranges: u64,
    /// Ranges that the device refused, though it answered.
    pub refused_ranges: u64,
    /// Submissions that the device accepted.
    pub calls: u64,
    /// Submissions that failed, at once or later.
    pub errors: u64,
    /// How often the device had no room.
    pub busy: u64,
    /// How often a zone was skipped because it had too little free memory, or none at all, like a
    /// hotplug window that all memory has left.
    pub skipped: u64,
    /// Passes over all zones.
    pub passes: u64,
    /// Flushes that were done.
    pub flushes: u64,
    /// Submissions that the device did not answer in time.
    pub timeouts: u64,
    /// Resets that were completed.
    pub resets: u64,
    /// Time between submissions and answers, in nanoseconds, as far as polls saw it.
    pub device_ns: u64,
    /// How many of the reported pages were free pages of pools.
    pub pool_pages: u64,
    /// Pages of reported blocks that were handed out again.
    pub reused_pages: u64,
    /// How many of those were handed out although an equally good block that was not reported was
    /// free.
    pub reused_early_pages: u64,
}

impl ReportingCounters {
    /// Returns all counters with their names in `/proc/vmstat`.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 16] {
        [
            ("page_reporting_pages", self.reported_pages),
            ("page_reporting_bytes", self.reported_pages * crate::units::PAGE_SIZE),
            ("page_reporting_ranges", self.reported_ranges),
            ("page_reporting_refused", self.refused_ranges),
            ("page_reporting_calls", self.calls),
            ("page_reporting_errors", self.errors),
            ("page_reporting_busy", self.busy),
            ("page_reporting_skipped", self.skipped),
            ("page_reporting_passes", self.passes),
            ("page_reporting_flushes", self.flushes),
            ("page_reporting_timeouts", self.timeouts),
            ("page_reporting_resets", self.resets),
            ("page_reporting_device_ns", self.device_ns),
            ("page_reporting_pool_pages", self.pool_pages),
            ("page_reporting_reused", self.reused_pages),
            ("page_reporting_reused_early", self.reused_early_pages),
        ]
    }
}

/// One word for each counter that the reporter counts up.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) reported_pages: AtomicU64,
    pub(crate) reported_ranges: AtomicU64,
    pub(crate) refused_ranges: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) passes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) device_ns: AtomicU64,
    pub(crate) pool_pages: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// How free page reporting is to work, what it has done, and whether a reporter is registered:
/// [`Manager::reporting`](crate::Manager::reporting).
pub struct Reporting {
    registered: AtomicBool,
    order: AtomicU8,
    delay_ms: AtomicU32,
    timeout_ms: AtomicU32,
    pace: AtomicU8,
    paused: AtomicBool,
    pools: AtomicBool,
    flushes_wanted: AtomicU64,
    pub(crate) tally: Tally,
}

impl Reporting {
    /// Creates the settings from the command line.
    pub(crate) fn new(parameters: &ReportingParameters) -> Self {
        Self {
            registered: AtomicBool::new(false),
            order: AtomicU8::new(parameters.order.map_or(UNSET, Order::get)),
            delay_ms: AtomicU32::new(parameters.delay_ms),
            timeout_ms: AtomicU32::new(TIMEOUT_MS),
            pace: AtomicU8::new(parameters.pace as u8),
            paused: AtomicBool::new(false),
            pools: AtomicBool::new(parameters.pools),
            flushes_wanted: AtomicU64::new(0),
            tally: Tally::default(),
        }
    }

    /// Registers the one device. False if there is a device already.
    pub(crate) fn register(&self) -> bool {
        // Acquire pairs with the Release when the previous device was unregistered.
        let is_first = self
            .registered
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        // SeqCst: the device then looks at all zones, and whoever adds one at the same time
        // looks for a device behind such a fence: one of them finds the other.
        fence(Ordering::SeqCst);
        is_first
    }

    pub(crate) fn unregister(&self) {
        self.registered.store(false, Ordering::Release);
    }

    /// Whether there is a device.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }

    /// The parameter `page_reporting_order`; `None` while it is unset, where Linux shows -1.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        Order::new(self.order.load(Ordering::Relaxed))
    }

    /// Sets the order, from the next pass on.
    pub fn set_order(&self, order: Order) {
        self.order.store(order.get(), Ordering::Relaxed);
    }

    /// The parameter `page_reporting_delay_ms`.
    #[must_use]
    pub fn delay_ms(&self) -> u32 {
        self.delay_ms.load(Ordering::Relaxed)
    }

    /// Sets the delay. With 0, pass follows pass as long as there is something to report.
    pub fn set_delay_ms(&self, delay_ms: u32) {
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// How long a device may take before it counts as silent, in milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the timeout, in milliseconds.
    pub fn set_timeout_ms(&self, timeout_ms: u32) {
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
    }

    /// How reports are spread over time.
    #[must_use]
    pub fn pace(&self) -> Pace {
        if self.pace.load(Ordering::Relaxed) == Pace::Fixed as u8 {
            Pace::Fixed
        } else {
            Pace::Adaptive
        }
    }

    /// Sets the pace.
    pub fn set_pace(&self, pace: Pace) {
        self.pace.store(pace as u8, Ordering::Relaxed);
    }

    /// Whether free pages of huge-page pools are reported as well; initially as
    /// `page_reporting.pools=` says. They are not reported while the device relies on the content
    /// of free memory ([`Content::Poison`](crate::reporting::Content::Poison),
    /// [`Content::ZeroOrKept`](crate::reporting::Content::ZeroOrKept)), because pages of pools hold
    /// what their last user wrote.
    #[must_use]
    pub fn has_pools(&self) -> bool {
        self.pools.load(Ordering::Relaxed)
    }

    /// Sets whether pools are reported, from the next poll on.
    pub fn set_pools(&self, on: bool) {
        self.pools.store(on, Ordering::Relaxed);
    }

    /// Stops submissions from the next poll on, until [`resume`](Self::resume) or a flush.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Whether reporting is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Asks for a pass without budget at the next poll: it reports all memory that is free now and
    /// may be reported. [`ReportingCounters::flushes`] counts the flushes that were done; several
    /// that are wanted at once are done as one. A flush is given up when the device fails in it,
    /// and continues elsewhere when the device refuses ranges; neither is counted as done (see
    /// [`ReportingCounters::errors`]), and what is left is reported at the usual pace. After a
    /// reset the flush begins again.
    pub fn flush(&self) {
        self.flushes_wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// How many flushes were ever asked for.
    pub(crate) fn flushes_wanted(&self) -> u64 {
        self.flushes_wanted.load(Ordering::Relaxed)
    }

    /// The counters that the reporter keeps; the counters that zones keep are zero here.
    pub(crate) fn counted(&self) -> ReportingCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = &self.tally;
        ReportingCounters {
            reported_pages: of(&tally.reported_pages),
            reported_ranges: of(&tally.reported_ranges),
            refused_ranges: of(&tally.refused_ranges),
            calls: of(&tally.calls),
            errors: of(&tally.errors),
            busy: of(&tally.busy),
            skipped: of(&tally.skipped),
            passes: of(&tally.passes),
            flushes: of(&tally.flushes),
            timeouts: of(&tally.timeouts),
            resets: of(&tally.resets),
            device_ns: of(&tally.device_ns),
            pool_pages: of(&tally.pool_pages),
            reused_pages: 0,
            reused_early_pages: 0,
        }
    }
}
