//! The cycle: idle until something is worth a report, then a pass after the delay, with one
//! submission at a time.

mod passes;
mod register;

use super::device::{Acknowledged, Content, MOST_RANGES, Progress, ReportDevice, SubmitError};
use super::event::Event;
use super::pass::{Capacity, Kind, Pass};
use crate::block::MigrateType;
use crate::manager::{Loan, Manager, Reporting, add};
use crate::parameters::Pace;
use crate::platform::Platform;
use crate::units::{Order, PAGE_SIZE, PhysRange};
use crate::zone::{Batch, Collected, Returned};

const MS: u64 = 1_000_000;
/// How often an adaptive pace checks what stayed free.
const TICK_NS: u64 = 100 * MS;
/// How often to poll a device that has not answered, and one that is silent.
const ASK_NS: u64 = MS;
const ASK_SILENT_NS: u64 = 100 * MS;
/// How long to wait before trying a device again that had no room.
const BUSY_NS: u64 = 10 * MS;
/// The longest wait after an error.
const MOST_BACKOFF_NS: u64 = 60_000 * MS;
/// The most steps of one poll. Each step holds a lock or calls the device a few times at most.
const MOST_STEPS: u32 = 64;
/// The number of events that are kept until they are asked for.
const EVENTS: usize = 8;

/// While nothing changes, checks become less frequent: the interval doubles after this many checks,
/// up to so many times.
const PATIENT_LOOKS: u32 = 8;
const LEAST_OFTEN: u32 = 2;

/// What reporting is doing (Linux: `mm/page_reporting.c`, `page_reporting_process`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// There is nothing to report.
    Idle,
    /// A pass will begin at this time.
    Requested {
        /// In nanoseconds, by the clock of the polls.
        due_ns: u64,
    },
    /// A pass is under way.
    Active,
}

/// The registration of the one device. Dropping it unregisters, unless the device has memory.
struct Registration<'a> {
    reporting: &'a Reporting,
    in_use: bool,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        if !self.in_use {
            self.reporting.unregister();
        }
    }
}

/// A registered device and its state.
///
/// One task owns it and polls it. If it is dropped while its device has memory, that memory stays
/// out of circulation and no other device can be registered. So call [`close`](Self::close), poll
/// until there is no next time, and then call [`unregister`](Self::unregister).
pub struct Reporter<'a, P: Platform, D: ReportDevice> {
    manager: &'a Manager<P>,
    registration: Registration<'a>,
    device: D,
    order: Order,
    capacity: Capacity,
    phase: Phase,
    pass: Option<Pass>,
    batch: Batch,
    loan: Loan,
    /// The source of the memory that is with the device, and since when it is there.
    out: Option<(Source, u64)>,
    ranges: [PhysRange; MOST_RANGES],
    range_count: usize,
    silent: bool,
    resetting: bool,
    closing: bool,
    errors: u32,
    not_before_ns: u64,
    /// When to check again whether there is something to report, and how many checks were in vain.
    look_due_ns: u64,
    vain_looks: u32,
    /// The value of `seen` for a pass that could report nothing: while it is the same, another pass
    /// could not either.
    known_to_fail: Option<u64>,
    flushes_begun: u64,
    events: [Option<Event>; EVENTS],
}

/// The source of memory that is to be reported.
#[derive(Clone, Copy)]
enum Source {
    /// Free memory of the zone with this number; the batch names it.
    Zone(usize),
    /// Free pages of a pool; the loan names them.
    Pool,
}

/// What `poll` does next.
enum Next {
    Step,
    Wait(u64),
    Nothing,
}

impl<P: Platform, D: ReportDevice> Reporter<'_, P, D> {
    /// Does what is due at `now_ns`, by any clock that never goes backwards, and returns when to
    /// call again: then, or as soon as the device has something to say. Returns nothing when it is
    /// closed and done.
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        // This way any wait can be added without overflow.
        let now_ns = now_ns.min(u64::MAX / 2);
        for _ in 0..MOST_STEPS {
            match self.step(now_ns) {
                Next::Step => {}
                Next::Wait(deadline_ns) => return Some(deadline_ns),
                Next::Nothing => return None,
            }
        }
        Some(now_ns)
    }

    /// Takes the oldest event that was not taken yet.
    pub fn event(&mut self) -> Option<Event> {
        let oldest = self.events[0].take();
        self.events.rotate_left(1);
        oldest
    }

    /// Returns the current phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether the device did not answer in time and has not answered since.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Returns the number of pages that the device has.
    #[must_use]
    pub fn out_pages(&self) -> u64 {
        if self.out.is_some() {
            self.ranges().map(|range| range.size() / PAGE_SIZE).sum()
        } else {
            0
        }
    }

    /// Returns the ranges that are with the device, or were last.
    fn ranges(&self) -> impl Iterator<Item = &PhysRange> {
        self.ranges[..self.range_count].iter()
    }

    /// Returns the smallest order of free runs that are reported ([`ReportDevice::order`]).
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// Returns the device, for reading.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, to handle its interrupts.
    ///
    /// # Safety
    /// The device must stay in its place: another one there would answer for memory that this one
    /// has (invariant 35). No method of [`ReportDevice`] may be called on it: only the reporter may
    /// receive the answer to a submission.
    pub const unsafe fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Makes the next polls reset the device until that is done. Its memory is then back and counts
    /// as not reported. For a device that is silent. The device then works again: before it is
    /// suspended, [`close`](Self::close) it, and poll until it has given back what it has.
    pub const fn reset(&mut self) {
        self.resetting = true;
    }

    /// Submits nothing more. Poll on until the device has given back what it has.
    pub const fn close(&mut self) {
        self.closing = true;
    }

    /// Returns the device and frees its registration for another.
    ///
    /// # Errors
    /// The reporter itself, while the device has memory: [`close`](Self::close) it and poll.
    #[expect(
        clippy::result_large_err,
        reason = "it is given back as it came, and there is no heap to put it in"
    )]
    pub fn unregister(mut self) -> Result<D, Self> {
        if self.out.is_some() {
            return Err(self);
        }
        self.end_pass();
        let Self { device, .. } = self;
        Ok(device)
    }

    fn note(&mut self, event: Event) {
        if let Some(place) = self.events.iter_mut().find(|place| place.is_none()) {
            *place = Some(event);
        }
    }

    fn reporting(&self) -> &Reporting {
        self.manager.reporting()
    }

    fn step(&mut self, now_ns: u64) -> Next {
        if self.resetting {
            return self.go_on_resetting(now_ns);
        }
        if let Some((source, since_ns)) = self.out {
            return self.ask(source, since_ns, now_ns);
        }
        if self.closing {
            self.end_pass();
            return Next::Nothing;
        }
        let flush = self.reporting().flushes_wanted() != self.flushes_begun;
        if flush && !self.is_flushing() {
            self.end_pass();
            self.flushes_begun = self.reporting().flushes_wanted();
            self.begin(Kind::Flush, now_ns);
            self.not_before_ns = now_ns;
        }
        if self.reporting().is_paused() && !self.is_flushing() {
            self.end_pass();
            // Once the pause ends, it checks at once.
            (self.look_due_ns, self.vain_looks) = (0, 0);
            return Next::Wait(now_ns + self.idle_ns());
        }
        if now_ns < self.not_before_ns {
            return Next::Wait(self.not_before_ns);
        }
        match self.phase {
            Phase::Active => self.go_on(now_ns),
            Phase::Requested { due_ns } if now_ns < due_ns => Next::Wait(due_ns),
            Phase::Requested { .. } => {
                self.begin(Kind::Paced(self.reporting().pace()), now_ns);
                Next::Step
            }
            Phase::Idle if now_ns < self.look_due_ns => Next::Wait(self.look_due_ns),
            Phase::Idle => self.look(now_ns),
        }
    }

    fn delay_ns(&self) -> u64 {
        u64::from(self.reporting().delay_ms()) * MS
    }

    /// Returns how often to check whether there is something to report. While nothing changes,
    /// checks come up to four times as rarely.
    fn idle_ns(&self) -> u64 {
        match self.reporting().pace() {
            Pace::Adaptive => self.delay_ns().clamp(MS, TICK_NS),
            Pace::Fixed => (self.delay_ns() / 16).max(MS),
        }
    }

    fn look(&mut self, now_ns: u64) -> Next {
        self.follow_order();
        let order = self.order;
        let platform = self.manager.platform();
        let worth = self.may_report()
            && (self.known_to_fail.is_none() || self.known_to_fail != Some(self.seen()))
            && (order < Order::BLOCK
                || self.manager.zones().iter().any(|zone| zone.has_unreported(platform, order))
                || self.reports_pools() && self.manager.hugetlb().has_pages_to_report(order));
        if !worth {
            let less_often = (self.vain_looks / PATIENT_LOOKS).min(LEAST_OFTEN);
            self.vain_looks = self.vain_looks.saturating_add(1);
            self.look_due_ns = now_ns + (self.idle_ns() << less_often);
            return Next::Wait(self.look_due_ns);
        }
        (self.known_to_fail, self.vain_looks) = (None, 0);
        let due_ns = match self.reporting().pace() {
            Pace::Adaptive => now_ns,
            // What is to be reported may have become free just now.
            Pace::Fixed => now_ns + self.delay_ns(),
        };
        self.phase = Phase::Requested { due_ns };
        Next::Step
    }

    /// Returns whether to report free pages of pools: that must be wanted, and the device must not
    /// rely on the content of free memory.
    fn reports_pools(&self) -> bool {
        self.reporting().has_pools()
            && !self.is_forgotten()
            && matches!(self.device.content(), Content::Undefined | Content::Zero)
    }

    /// Returns a number that changes whenever a pass that could report nothing should be tried
    /// again.
    fn seen(&self) -> u64 {
        let mut seen = u64::from(self.order.get()) << 1 | u64::from(self.reports_pools());
        let mut add =
            |value: u64| seen = (seen.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
        for zone in self.manager.zones() {
            add(zone.free_pages());
            add(zone.unreported_pages());
            add(zone.graded_pages());
            add(zone.low_pages(MigrateType::Movable));
        }
        if self.reports_pools() {
            (0..self.manager.hugetlb().lists())
                .for_each(|number| add(self.manager.hugetlb().free_frames(number).1));
        }
        seen
    }

    /// Makes the next submission of the pass, or ends the pass.
    #[inline(never)]
    fn go_on(&mut self, now_ns: u64) -> Next {
        let reports_pools = self.reports_pools();
        if !self.may_report() {
            return self.finish_pass(now_ns);
        }
        let Some(pass) = &mut self.pass else {
            self.phase = Phase::Idle;
            return Next::Step;
        };
        let (manager, number) = (self.manager, pass.zone);
        let platform = manager.platform();
        let Some(zone) = manager.zones().get(number) else {
            if !reports_pools || pass.pool >= manager.hugetlb().lists() {
                return self.finish_pass(now_ns);
            }
            self.loan = pass.lend(manager, self.capacity);
            return if self.loan.is_empty() {
                Next::Step
            } else {
                self.submit(Source::Pool, now_ns)
            };
        };
        let Some(goal) = pass.goal(platform, zone, self.capacity) else {
            pass.left_over |= zone.has_unreported(platform, pass.order);
            pass.next_zone(platform, zone);
            return Next::Step;
        };
        pass.before = pass.cursor;
        let collected = zone.collect(platform, goal, &mut pass.cursor, &mut self.batch);
        if self.batch.len() == 0 {
            match collected {
                // The search looked at many entries and released the lock in between.
                Collected::Some => return Next::Step,
                Collected::Short => {
                    // Free memory has to change first; the idle check notices that.
                    add(&self.registration.reporting.tally.skipped, 1);
                }
                Collected::All => {}
            }
            pass.next_zone(platform, zone);
            return Next::Step;
        }
        pass.spend(self.batch.pages());
        self.submit(Source::Zone(number), now_ns)
    }

    fn submit(&mut self, source: Source, now_ns: u64) -> Next {
        let mut count = 0;
        match source {
            Source::Zone(_) => {
                for (place, piece) in self.ranges.iter_mut().zip(self.batch.pieces()) {
                    (*place, count) = (piece.range.to_phys(), count + 1);
                }
            }
            Source::Pool => {
                for (place, range) in
                    self.ranges.iter_mut().zip(self.manager.hugetlb().loan_ranges(&self.loan))
                {
                    (*place, count) = (range, count + 1);
                }
            }
        }
        self.range_count = count;
        // From here on the device may have the memory, even if `submit` unwinds.
        self.registration.in_use = true;
        // SAFETY: these frames are in the state *reporting* or in use by this loan. They belong to
        // nobody until the device has answered (invariant 35), and only one submission is out at a
        // time.
        match unsafe { self.device.submit(&self.ranges[..count]) } {
            Ok(()) => {
                self.out = Some((source, now_ns));
                add(&self.registration.reporting.tally.calls, 1);
                Next::Step
            }
            Err(error) => {
                self.registration.in_use = false;
                let busy = error == SubmitError::Busy;
                let returned = if busy { Returned::Unasked } else { Returned::Refused };
                self.give_back(source, &|_| returned);
                if !busy {
                    return self.fail(now_ns, false);
                }
                add(&self.registration.reporting.tally.busy, 1);
                if let Some(pass) = &mut self.pass {
                    pass.left_over = true;
                    if matches!(source, Source::Zone(_)) {
                        // Memory that is found by address lies behind the cursor.
                        pass.cursor = pass.before;
                    }
                }
                self.not_before_ns = now_ns + BUSY_NS;
                Next::Wait(self.not_before_ns)
            }
        }
    }

    /// Asks the device about the submission that is out.
    fn ask(&mut self, source: Source, since_ns: u64, now_ns: u64) -> Next {
        let acknowledged = match self.device.poll() {
            Progress::Pending => {
                let waited_ns = now_ns.saturating_sub(since_ns);
                if !self.silent && waited_ns >= u64::from(self.reporting().timeout_ms()) * MS {
                    self.silent = true;
                    add(&self.registration.reporting.tally.timeouts, 1);
                    self.note(Event::Silent { pages: self.out_pages() });
                }
                return Next::Wait(now_ns + if self.silent { ASK_SILENT_NS } else { ASK_NS });
            }
            Progress::Done(acknowledged) => Some(acknowledged),
            Progress::Failed => None,
        };
        let tally = &self.registration.reporting.tally;
        add(&tally.device_ns, now_ns.saturating_sub(since_ns));
        let ranges = self.range_count as u64;
        let heard = acknowledged.unwrap_or(Acknowledged::NONE);
        let told = self.ranges().enumerate().filter(|&(number, _)| heard.has(number));
        let (told_ranges, told_pages) = told.fold((0, 0), |(ranges, pages), (_, range)| {
            (ranges + 1, pages + range.size() / PAGE_SIZE)
        });
        add(&tally.reported_ranges, told_ranges);
        add(&tally.reported_pages, told_pages);
        if matches!(source, Source::Pool) {
            add(&tally.pool_pages, told_pages);
        }
        if acknowledged.is_some() {
            add(&tally.refused_ranges, ranges - told_ranges);
        }
        let zero = self.device.content() == Content::Zero;
        let stops = self.closing || self.reporting().is_paused() && !self.is_flushing();
        let is_part = matches!(source, Source::Pool)
            && told_ranges == ranges
            && self.manager.hugetlb().advance_loan(&mut self.loan);
        let more = is_part && !stops;
        if more {
            // A page that goes out in parts stays out between them.
            (self.out, self.registration.in_use) = (None, false);
        } else {
            self.take_back(source, &|range| {
                // A page of which only a part went out counts as not reported.
                let reported = heard.has(range) && !is_part;
                if reported { Returned::Reported { zero } } else { Returned::Refused }
            });
        }
        if core::mem::replace(&mut self.silent, false) {
            self.note(Event::Answered);
        }
        if told_ranges != ranges {
            return self.fail(now_ns, acknowledged.is_some());
        }
        if more {
            return self.submit(source, now_ns);
        }
        Next::Step
    }

    fn go_on_resetting(&mut self, now_ns: u64) -> Next {
        if !self.device.reset() {
            return Next::Wait(now_ns + ASK_NS);
        }
        self.resetting = false;
        self.silent = false;
        if let Some((source, _)) = self.out {
            self.take_back(source, &|_| Returned::Unasked);
        }
        if self.is_flushing() {
            // The flush is still wanted.
            self.flushes_begun = self.flushes_begun.wrapping_sub(1);
        }
        self.end_pass();
        add(&self.registration.reporting.tally.resets, 1);
        self.note(Event::Reset);
        Next::Step
    }

    /// Takes back the memory of a submission that the device is done with.
    fn take_back(&mut self, source: Source, returned: &dyn Fn(usize) -> Returned) {
        self.out = None;
        self.registration.in_use = false;
        match source {
            // Whatever the device answered, the host had the memory.
            Source::Zone(number) if self.is_forgotten() => {
                if let Some(zone) = self.manager.zones().get(number) {
                    self.manager.take_back_unaccepted(zone, &mut self.batch);
                    self.manager.note_free();
                }
            }
            _ => self.give_back(source, returned),
        }
    }

    fn give_back(&mut self, source: Source, returned: &dyn Fn(usize) -> Returned) {
        match source {
            Source::Zone(number) => {
                if let Some(zone) = self.manager.zones().get(number) {
                    zone.give_back(self.manager.platform(), &mut self.batch, returned);
                    self.manager.note_free();
                }
            }
            Source::Pool => {
                self.manager.hugetlb().return_loan(&mut self.loan, &|page| {
                    matches!(returned(page), Returned::Reported { .. })
                });
            }
        }
    }
}
