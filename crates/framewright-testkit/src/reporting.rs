//! A fake device for free page reports, and the host behind it.
//!
//! The host writes over everything that it was given, from the submission to the answer, and
//! remembers what it discarded. A test tells it of each frame that it allocates
//! ([`FakeHost::handed_out`]), which fails the test when the host may still discard the frame; and
//! it counts frames that are reported although nobody had them since their last report.

use crate::FakeMachine;
use framewright::Platform;
use framewright::debug::POISON;
use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the host leaves in memory that it promises nothing about.
pub const JUNK: u8 = 0xdb;

/// How the device answers a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// All is acknowledged after so many polls that find it pending.
    After(u32),
    /// Only these are acknowledged, after so many polls.
    Partly(Acknowledged, u32),
    /// It fails after so many polls.
    Fails(u32),
    /// It does not take the submission and says so.
    Refuses,
    /// It has no room.
    IsBusy,
    /// It never answers, until it is told otherwise ([`FakeHost::answer_now`]) or reset.
    Never,
    /// All is acknowledged at once and nothing is discarded, as by a host whose memory is locked.
    Lies,
}

/// What a device is like.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// See [`ReportDevice::capacity`].
    pub capacity: usize,
    /// See [`ReportDevice::order`].
    pub order: Option<Order>,
    /// See [`ReportDevice::content`].
    pub content: Content,
    /// Whether memory is written to, or only kept account of.
    pub writes: bool,
    /// Of so many frames of a range that follow one another the first is written to. 1: all are.
    pub stride: usize,
}

impl Default for Traits {
    fn default() -> Self {
        Self { capacity: 32, order: None, content: Content::Undefined, writes: true, stride: 1 }
    }
}

/// Nobody told the host anything.
const UNKNOWN: u8 = 0;
/// It may discard the frame at any moment.
const OUT: u8 = 1;
/// It has acknowledged the frame.
const DISCARDED: u8 = 2;

struct State {
    frames: Vec<u8>,
    usual: Answer,
    planned: VecDeque<Answer>,
    out: Vec<PhysRange>,
    /// How the submission that is out is answered.
    current: Answer,
    /// Polls since the submission.
    polls: u32,
    /// Calls of reset until it is done.
    reset_takes: u32,
    resets: u32,
    submissions: Vec<Vec<PhysRange>>,
    reported_twice: u64,
}

/// The host, shared by the device and the test.
pub struct FakeHost {
    machine: &'static FakeMachine,
    traits: Traits,
    state: Mutex<State>,
}

impl FakeHost {
    /// A host of `machine` that answers at once, and its device.
    #[must_use]
    pub fn new(machine: &'static FakeMachine, traits: Traits) -> (Arc<Self>, FakeReportDevice) {
        let end = machine.map().ranges().iter().map(|entry| entry.range.end).max().unwrap_or(0);
        let frames = vec![UNKNOWN; usize::try_from(end / PAGE_SIZE).expect("64-bit addresses")];
        let state = State {
            frames,
            usual: Answer::After(0),
            planned: VecDeque::new(),
            out: Vec::new(),
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

    /// A device of the same host, for a registration after the first.
    #[must_use]
    pub fn device(self: &Arc<Self>) -> FakeReportDevice {
        FakeReportDevice { host: Arc::clone(self) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How submissions are answered that are not planned.
    pub fn answer(&self, answer: Answer) {
        self.state().usual = answer;
    }

    /// How the next submissions are answered, before those that are not planned.
    pub fn plan(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state().planned.extend(answers);
    }

    /// What is out is acknowledged at the next poll.
    pub fn answer_now(&self) {
        self.state().current = Answer::After(0);
    }

    /// How many calls a reset takes beyond the first.
    pub fn reset_takes(&self, calls: u32) {
        self.state().reset_takes = calls;
    }

    /// Resets that were completed.
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.state().resets
    }

    /// A test has these frames from the allocator now.
    ///
    /// # Panics
    /// When the host may still discard one of them.
    pub fn handed_out(&self, range: PfnRange) {
        let mut state = self.state();
        for frame in frames(range) {
            assert!(
                state.frames[frame] != OUT,
                "pfn {frame:#x} was handed out while the host may discard it"
            );
            state.frames[frame] = UNKNOWN;
        }
    }

    /// Pages that the host may discard at this moment.
    #[must_use]
    pub fn out_pages(&self) -> u64 {
        self.state().frames.iter().filter(|&&frame| frame == OUT).count() as u64
    }

    /// Pages that it has discarded and that nobody had since.
    #[must_use]
    pub fn discarded_pages(&self) -> u64 {
        self.state().frames.iter().filter(|&&frame| frame == DISCARDED).count() as u64
    }

    /// Whether it has discarded all of these and nobody had them since.
    #[must_use]
    pub fn has_discarded(&self, range: PfnRange) -> bool {
        let state = self.state();
        frames(range).all(|frame| state.frames[frame] == DISCARDED)
    }

    /// Pages of blocks of 2 MiB, or of smaller ranges, that were reported again although nobody had
    /// had any of them.
    #[must_use]
    pub fn reported_twice(&self) -> u64 {
        self.state().reported_twice
    }

    /// What was submitted since the last call.
    pub fn take_submissions(&self) -> Vec<Vec<PhysRange>> {
        std::mem::take(&mut self.state().submissions)
    }

    /// Writes over memory as a host may that has it.
    fn write(&self, ranges: &[PhysRange], byte: u8) {
        if !self.traits.writes {
            return;
        }
        for range in ranges {
            for frame in frames(range.whole_frames()).step_by(self.traits.stride) {
                let page = self.machine.direct(Pfn(frame as u64).address());
                // SAFETY: a whole frame of usable memory that is with the host, so that nobody else
                // may use it; a test that does is what this finds.
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

/// See the module documentation.
pub struct FakeReportDevice {
    host: Arc<FakeHost>,
}

impl FakeReportDevice {
    /// Ends a submission: ranges that are `told` are discarded, the others may hold anything.
    fn finish(&self, state: &mut State, told: Acknowledged, discards: bool) {
        let out = std::mem::take(&mut state.out);
        for (number, range) in out.iter().enumerate() {
            let heard = told.has(number);
            if discards {
                let keeps_poison = self.host.traits.content == Content::Poison;
                self.host.write(
                    &[*range],
                    if heard || keeps_poison { self.host.leaves() } else { JUNK },
                );
            }
            for frame in frames(range.whole_frames()) {
                state.frames[frame] = if heard { DISCARDED } else { UNKNOWN };
            }
        }
    }
}

// SAFETY: memory is written to only between a submission and its answer, failure or reset, under
// the lock of the host's state; what is acknowledged was filled with what the traits say, except by
// `Lies`, which tests use with devices that promise nothing, or to show what trusting a promise
// means.
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
        assert!(state.out.is_empty(), "a second submission while one is out");
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
                    assert!(state.frames[frame] != OUT, "pfn {frame:#x} is in two ranges");
                    state.frames[frame] = OUT;
                }
            }
        }
        assert!(bytes <= 64 << 20, "{bytes} bytes are out of circulation at once");
        state.out = ranges.to_vec();
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
        assert!(!state.out.is_empty(), "polled with nothing out");
        let polls = state.polls;
        state.polls += 1;
        match state.current {
            Answer::After(after) if polls >= after => {
                self.finish(&mut state, Acknowledged::ALL, true);
                Progress::Done(Acknowledged::ALL)
            }
            Answer::Partly(told, after) if polls >= after => {
                self.finish(&mut state, told, true);
                Progress::Done(told)
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
