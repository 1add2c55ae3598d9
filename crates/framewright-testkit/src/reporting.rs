//! A fake device for free page reports, and the host behind it.
//!
//! From the submission to the answer, the host overwrites all memory that it was given, and it
//! remembers what it discarded. A test notes each frame that it allocates with
//! [`FakeHost::handed_out`], which fails if the host may still discard the frame. The host also
//! counts frames that are reported again although they were not in use since.

use crate::lock::lock;
use crate::machine::FakeMachine;
use framewright::debug::POISON;
use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use framewright::{AcceptMemory, Platform};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// The byte that the host leaves in memory whose content it does not promise.
pub const JUNK: u8 = 0xdb;

/// How the device answers a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Everything is acknowledged after this many polls.
    After(u32),
    /// Only these ranges are acknowledged, after this many polls.
    Partly(Acknowledged, u32),
    /// The submission fails after this many polls.
    Fails(u32),
    /// The device refuses the submission.
    Refuses,
    /// The device has no room.
    IsBusy,
    /// The device does not answer until [`FakeHost::answer_now`] or a reset.
    Never,
    /// Everything is acknowledged at once but nothing is discarded, as by a host whose memory is
    /// locked.
    Lies,
}

/// The properties of a device.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// See [`ReportDevice::capacity`].
    pub capacity: usize,
    /// See [`ReportDevice::order`].
    pub order: Option<Order>,
    /// See [`ReportDevice::content`].
    pub content: Content,
    /// Whether memory is overwritten rather than only recorded.
    pub writes: bool,
    /// One of this many consecutive frames is overwritten; 1 for all frames.
    pub stride: usize,
}

impl Default for Traits {
    fn default() -> Self {
        Self { capacity: 32, order: None, content: Content::Undefined, writes: true, stride: 1 }
    }
}

/// State of a frame: the host has no report about it.
const UNKNOWN: u8 = 0;
/// State of a frame: the host may discard it at any moment.
const IN_FLIGHT: u8 = 1;
/// State of a frame: the host has acknowledged its report.
const DISCARDED: u8 = 2;

struct State {
    frames: Vec<u8>,
    usual: Answer,
    planned: VecDeque<Answer>,
    in_flight: Vec<PhysRange>,
    /// How the submission in flight is answered.
    current: Answer,
    /// The number of polls since the submission.
    polls: u32,
    /// The number of calls until a reset is complete.
    reset_takes: u32,
    resets: u32,
    submissions: Vec<Vec<PhysRange>>,
    reported_twice: u64,
}

/// The host, which the device and the test share.
pub struct FakeHost {
    machine: &'static FakeMachine,
    traits: Traits,
    state: Mutex<State>,
}

impl FakeHost {
    /// Makes a host of `machine` that answers at once, and its device.
    #[must_use]
    pub fn new(machine: &'static FakeMachine, traits: Traits) -> (Arc<Self>, FakeReportDevice) {
        let end = machine.memory_end();
        let frames = vec![UNKNOWN; usize::try_from(end / PAGE_SIZE).expect("64-bit addresses")];
        let state = State {
            frames,
            usual: Answer::After(0),
            planned: VecDeque::new(),
            in_flight: Vec::new(),
            current: Answer::Never,
            polls: 0,
            reset_takes: 0,
            resets: 0,
            submissions: Vec::new(),
            reported_twice: 0,
        };
        let host = Arc::new(Self { machine, traits, state: Mutex::new(state) });
        (Arc::clone(&host), FakeReportDevice { host })
    }

    /// Makes another device of this host, for a later registration.
    #[must_use]
    pub fn device(self: &Arc<Self>) -> FakeReportDevice {
        FakeReportDevice { host: Arc::clone(self) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sets the answer to submissions without a planned answer.
    pub fn answer(&self, answer: Answer) {
        self.state().usual = answer;
    }

    /// Plans the answers to the next submissions.
    pub fn plan(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state().planned.extend(answers);
    }

    /// Acknowledges the submission in flight at the next poll.
    pub fn answer_now(&self) {
        self.state().current = Answer::After(0);
    }

    /// Sets how many calls a reset takes beyond the first.
    pub fn reset_takes(&self, calls: u32) {
        self.state().reset_takes = calls;
    }

    /// The number of completed resets.
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.state().resets
    }

    /// Notes that a test got these frames from the allocator.
    ///
    /// # Panics
    /// If the host may still discard one of them.
    pub fn handed_out(&self, range: PfnRange) {
        let mut state = self.state();
        for frame in frames(range) {
            assert!(
                state.frames[frame] != IN_FLIGHT,
                "pfn {frame:#x} was handed out while the host may discard it"
            );
            state.frames[frame] = UNKNOWN;
        }
    }

    /// The number of pages that the host may discard at this moment.
    #[must_use]
    pub fn out_pages(&self) -> u64 {
        let state = self.state();
        let submitted = state.in_flight.iter().flat_map(|range| frames(range.whole_frames()));
        submitted.filter(|&frame| state.frames[frame] == IN_FLIGHT).count() as u64
    }

    /// The number of pages that the host has discarded and that were not in use since.
    #[must_use]
    pub fn discarded_pages(&self) -> u64 {
        self.state().frames.iter().filter(|&&frame| frame == DISCARDED).count() as u64
    }

    /// Whether the host has discarded all of these pages and none was in use since.
    #[must_use]
    pub fn has_discarded(&self, range: PfnRange) -> bool {
        let state = self.state();
        frames(range).all(|frame| state.frames[frame] == DISCARDED)
    }

    /// The number of pages, in 2 MiB blocks or smaller ranges, that were reported again although no
    /// page of the range was in use since.
    #[must_use]
    pub fn reported_twice(&self) -> u64 {
        self.state().reported_twice
    }

    /// The submissions since the last call.
    pub fn take_submissions(&self) -> Vec<Vec<PhysRange>> {
        std::mem::take(&mut self.state().submissions)
    }

    /// Overwrites memory, as a host may that owns it.
    fn write(&self, ranges: &[PhysRange], byte: u8) {
        if !self.traits.writes {
            return;
        }
        for range in ranges {
            for frame in frames(range.whole_frames()).step_by(self.traits.stride) {
                let page = self.machine.direct(Pfn(frame as u64).address());
                // SAFETY: this is a whole frame of usable memory that the host owns, so it has no
                // other user; a test that still uses it has the bug that this finds.
                unsafe { page.write_bytes(byte, 4096) };
            }
        }
    }

    fn leaves(&self) -> u8 {
        match self.traits.content {
            Content::Undefined => JUNK,
            Content::Zero | Content::ZeroOrKept => 0,
            Content::Poison => POISON,
        }
    }
}

fn frames(range: PfnRange) -> impl Iterator<Item = usize> {
    (range.start.0..range.end.0).map(|frame| usize::try_from(frame).expect("64-bit addresses"))
}

/// A device for reports to a [`FakeHost`].
pub struct FakeReportDevice {
    host: Arc<FakeHost>,
}

impl FakeReportDevice {
    /// Ends a submission: `acknowledged` ranges are discarded, the others may hold anything.
    fn finish(&self, state: &mut State, acknowledged: Acknowledged, discards: bool) {
        let in_flight = std::mem::take(&mut state.in_flight);
        for (number, range) in in_flight.iter().enumerate() {
            let is_acknowledged = acknowledged.has(number);
            if discards {
                let keeps_poison = self.host.traits.content == Content::Poison;
                self.host.write(
                    &[*range],
                    if is_acknowledged || keeps_poison { self.host.leaves() } else { JUNK },
                );
            }
            let accepts = self.host.machine.accept_memory();
            if accepts.is_some_and(AcceptMemory::forgets) {
                self.host.machine.accept().forget(*range);
            }
            for frame in frames(range.whole_frames()) {
                state.frames[frame] = if is_acknowledged { DISCARDED } else { UNKNOWN };
            }
        }
    }
}

// SAFETY: memory is overwritten only between a submission and its answer, failure or reset, with
// the lock of the host's state held. Acknowledged memory was filled as the traits say, except with
// `Lies`, which tests use with devices that promise nothing, or to show the effect of a broken
// promise.
unsafe impl ReportDevice for FakeReportDevice {
    fn capacity(&self) -> usize {
        self.host.traits.capacity
    }

    fn order(&self) -> Option<Order> {
        self.host.traits.order
    }

    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        let mut state = self.host.state();
        let capacity = match self.host.traits.capacity {
            capacity @ 1..=32 => capacity,
            _ => 32,
        };
        assert!(!ranges.is_empty() && ranges.len() <= capacity, "{} ranges at once", ranges.len());
        assert!(state.in_flight.is_empty(), "a second submission while one is out");
        let answer = state.planned.pop_front().unwrap_or(state.usual);
        match answer {
            Answer::Refuses => return Err(SubmitError::Failed),
            Answer::IsBusy => return Err(SubmitError::Busy),
            _ => {}
        }
        let mut bytes = 0;
        for range in ranges {
            assert!(
                !range.is_empty() && range.whole_frames().to_phys() == *range,
                "{range:?} is not whole frames"
            );
            bytes += range.size();
            let all: Vec<usize> = frames(range.whole_frames()).collect();
            for block in all.chunks(512) {
                if block.iter().all(|&frame| state.frames[frame] == DISCARDED) {
                    state.reported_twice += block.len() as u64;
                }
                for &frame in block {
                    assert!(state.frames[frame] != IN_FLIGHT, "pfn {frame:#x} is in two ranges");
                    state.frames[frame] = IN_FLIGHT;
                }
            }
        }
        assert!(bytes <= 64 << 20, "{bytes} bytes are out of circulation at once");
        state.in_flight = ranges.to_vec();
        state.submissions.push(ranges.to_vec());
        (state.current, state.polls) = (answer, 0);
        if answer != Answer::Lies {
            let keeps_poison = self.host.traits.content == Content::Poison;
            self.host.write(ranges, if keeps_poison { POISON } else { JUNK });
        }
        Ok(())
    }

    fn poll(&mut self) -> Progress {
        let mut state = self.host.state();
        assert!(!state.in_flight.is_empty(), "polled with nothing out");
        let polls = state.polls;
        state.polls += 1;
        match state.current {
            Answer::After(after) if polls >= after => {
                self.finish(&mut state, Acknowledged::ALL, true);
                Progress::Done(Acknowledged::ALL)
            }
            Answer::Partly(acknowledged, after) if polls >= after => {
                self.finish(&mut state, acknowledged, true);
                Progress::Done(acknowledged)
            }
            Answer::Fails(after) if polls >= after => {
                self.finish(&mut state, Acknowledged::NONE, true);
                Progress::Failed
            }
            Answer::Lies => {
                self.finish(&mut state, Acknowledged::ALL, false);
                Progress::Done(Acknowledged::ALL)
            }
            _ => Progress::Pending,
        }
    }

    fn reset(&mut self) -> bool {
        let mut state = self.host.state();
        if state.reset_takes != 0 {
            state.reset_takes -= 1;
            return false;
        }
        self.finish(&mut state, Acknowledged::NONE, true);
        state.resets += 1;
        true
    }

    fn content(&self) -> Content {
        self.host.traits.content
    }
}
