//! Decides what to ask the device next, and what its answers mean. It knows no transport.

use crate::configuration::{Configuration, Region, Sizes};
use crate::error::{DeviceFault, Rule};
use crate::map::{Map, Run};
use crate::memory::{PluggableMemory, Removal};
use crate::progress::{Counters, Obstacle, Progress};
use crate::request::{Answer, BlockState, RequestKind};
use crate::settings::{self, Backoff, Settings};
use crate::units::Units;
use core::cmp::Ordering;
use framewright_virtio::PrivateMemory;

/// The shortest and the longest wait between two looks for an answer. A look is an access to the
/// device, which a virtual machine leaves for.
const LOOK_NS: (u64, u64) = (50_000, 10_000_000);

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// Unplug everything that was plugged before this driver started.
    Clear,
    /// Plug the run, so that it becomes memory.
    Plug(Run),
    /// Unplug the run, which the adopter has taken out of use.
    Unplug(Run),
    /// Unplug the run, which the adopter does not use.
    Discard(Run),
    /// Ask what became of this request, which a reset has cut off.
    Ask(Cut),
}

/// A request that a reset has cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    Plug(Run),
    Unplug(Run),
    Discard(Run),
}

impl Cut {
    const fn run(self) -> Run {
        match self {
            Self::Plug(run) | Self::Unplug(run) | Self::Discard(run) => run,
        }
    }
}

/// Why nothing is asked at the moment, and until when; without a time, until an event.
#[derive(Clone, Copy, Debug)]
struct Pause {
    obstacle: Obstacle,
    until_ns: Option<u64>,
}

/// A request to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub kind: RequestKind,
    pub address: u64,
    pub blocks: u16,
}

/// The record of the device's memory, and of what is to be done next.
pub struct Plan<H: PrivateMemory> {
    region: Region,
    units: Units,
    map: Map<H>,
    sizes: Sizes,
    generation: u32,
    /// The purpose of the request in flight, and when it was sent.
    asked: Option<(Purpose, u64)>,
    cut: Option<Cut>,
    /// A run that is plugged but not in use: the adopter did not take it, or did not take it back.
    unused: Option<Run>,
    /// Something is plugged that this driver has not plugged.
    must_clear: bool,
    /// Everything was unplugged since the sizes were last read, so the usable part may have shrunk.
    may_shrink: bool,
    /// Set if the adopter took less than it was given: whether it may take more after a while.
    unwanted: Option<bool>,
    /// The device has announced something since the last look.
    has_event: bool,
    /// Since the last look the adopter has said that its memory changed, or the device was reset.
    has_changed: bool,
    pause: Option<Pause>,
    backoff: Backoff,
    answer_ns: u64,
    counters: Counters,
}

impl<H: PrivateMemory> Plan<H> {
    /// `None` if there is no memory.
    pub fn new(units: Units, configuration: Configuration, settings: &Settings) -> Option<Self> {
        let Configuration { region, sizes, generation } = configuration;
        Some(Self {
            region,
            units,
            map: Map::new(units.count)?,
            sizes,
            generation,
            asked: None,
            cut: None,
            unused: None,
            must_clear: sizes.plugged_bytes > 0,
            may_shrink: false,
            unwanted: None,
            has_event: false,
            has_changed: false,
            pause: None,
            backoff: Backoff::new(settings),
            answer_ns: settings::ns(settings.answer_ms),
            counters: Counters::default(),
        })
    }

    pub fn units(&self) -> Units {
        self.units
    }

    pub fn plugged_bytes(&self) -> u64 {
        self.units.bytes(self.map.plugged())
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Records that the device has announced something.
    pub fn note_event(&mut self) {
        self.has_event = true;
    }

    /// Records that the adopter's memory has changed.
    pub fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Records that the device was reset and has no request any more.
    pub fn forget_request(&mut self) {
        match self.asked.take().map(|(purpose, _)| purpose) {
            // A cut-off request stays recorded in `cut` until the device has answered for it.
            None | Some(Purpose::Clear | Purpose::Ask(_)) => {}
            Some(Purpose::Plug(run)) => self.cut = Some(Cut::Plug(run)),
            Some(Purpose::Unplug(run)) => self.cut = Some(Cut::Unplug(run)),
            Some(Purpose::Discard(run)) => self.cut = Some(Cut::Discard(run)),
        }
    }

    /// Records that the device starts again with this configuration.
    pub fn restart(&mut self, configuration: Configuration) {
        // A reset may shrink the usable part, just as UNPLUG_ALL may.
        self.may_shrink = true;
        self.generation = configuration.generation;
        self.has_changed = true;
    }

    /// Processes the device's present configuration; `None` means that it changed all the time.
    pub fn look(&mut self, read: Option<(Sizes, u32)>, now_ns: u64) -> Result<(), DeviceFault> {
        let Some((sizes, generation)) = read else {
            let until_ns = now_ns.saturating_add(self.backoff.least_ns());
            let unsteady = Pause { obstacle: Obstacle::Unsteady, until_ns: Some(until_ns) };
            self.pause = Some(match self.pause {
                // An Unwanted pause stays: a steady configuration alone does not end it.
                Some(Pause { obstacle: Obstacle::Unwanted, until_ns: at_ns }) => {
                    let until_ns = at_ns.map(|at_ns| at_ns.max(until_ns));
                    Pause { obstacle: Obstacle::Unwanted, until_ns }
                }
                _ => unsteady,
            });
            return Ok(());
        };
        self.check(sizes).map_err(DeviceFault::Rule)?;
        let is_other = (sizes.requested_bytes, sizes.usable_bytes)
            != (self.sizes.requested_bytes, self.sizes.usable_bytes);
        if is_other || self.has_changed {
            self.unwanted = None;
            self.pause = None;
            self.backoff.reset();
        } else if self.has_event || generation != self.generation {
            // A device may announce what the driver itself has plugged and unplugged. For an
            // adopter that wants no more, an announcement therefore means nothing new; otherwise
            // plugging and unplugging would repeat for ever.
            if !self.is_unwanted() {
                self.backoff.reset();
            }
            self.pause = self.pause.filter(|pause| pause.obstacle == Obstacle::Unwanted);
        }
        (self.has_event, self.has_changed) = (false, false);
        self.sizes = sizes;
        self.generation = generation;
        self.may_shrink = false;
        Ok(())
    }

    /// Whether the adopter took less than it was given, and has not been offered memory since.
    fn is_unwanted(&self) -> bool {
        let waits = self.pause.is_some_and(|pause| pause.obstacle == Obstacle::Unwanted);
        self.unwanted.is_some() || waits
    }

    /// Checks that the sizes obey all rules. No request is in flight.
    fn check(&self, sizes: Sizes) -> Result<(), Rule> {
        let sizes = sizes.checked(&self.region)?;
        let (before_bytes, now_bytes) = (self.sizes.usable_bytes, sizes.usable_bytes);
        if now_bytes < before_bytes && !self.may_shrink {
            return Err(Rule::Shrank { before_bytes, now_bytes });
        }
        let (plugged_bytes, acknowledged_bytes) = (sizes.plugged_bytes, self.plugged_bytes());
        let is_known = !self.must_clear && self.cut.is_none();
        if is_known && plugged_bytes != acknowledged_bytes {
            return Err(Rule::Count { plugged_bytes, acknowledged_bytes });
        }
        Ok(())
    }

    /// Chooses the next request, which is then in flight. `None` if there is nothing to ask, or if
    /// something stands in the way.
    ///
    /// # Safety
    /// As for [`VirtioMem::work`](crate::VirtioMem::work).
    pub unsafe fn next(
        &mut self,
        memory: &mut dyn PluggableMemory,
        now_ns: u64,
    ) -> Option<Request> {
        if self.asked.is_some() {
            return None;
        }
        if let Some(pause) = self.pause {
            if pause.until_ns.is_none_or(|until_ns| now_ns < until_ns) {
                return None;
            }
            self.pause = None;
        }
        let purpose = if let Some(cut) = self.cut {
            Purpose::Ask(cut)
        } else if self.must_clear {
            Purpose::Clear
        } else if let Some(run) = self.unused {
            // One request can name this run, because it is part of a run that one request named.
            Purpose::Discard(run)
        } else {
            let goal = self.units.of_bytes(self.sizes.requested_bytes);
            match goal.cmp(&self.map.plugged()) {
                Ordering::Equal => return None,
                Ordering::Greater => Purpose::Plug(self.choose(goal, now_ns)?),
                // SAFETY: the caller keeps this function's promise.
                Ordering::Less => Purpose::Unplug(unsafe { self.take(goal, memory, now_ns)? }),
            }
        };
        self.asked = Some((purpose, now_ns));
        Some(self.request(purpose))
    }

    /// Chooses a run to plug towards `goal`.
    fn choose(&mut self, goal: u32, now_ns: u64) -> Option<Run> {
        match self.unwanted {
            Some(true) => {
                self.unwanted = None;
                return self.retry(Obstacle::Unwanted, now_ns);
            }
            Some(false) => return self.wait(Obstacle::Unwanted, None),
            None => {}
        }
        let end = self.region.start_bytes.saturating_add(self.sizes.usable_bytes);
        let wanted = goal.saturating_sub(self.map.plugged()).min(self.units.most());
        let Some(run) = self.map.find_unplugged(self.units.before(end), wanted) else {
            return self.wait(Obstacle::NoSpace, None);
        };
        if !self.map.prepare(run) {
            return self.retry(Obstacle::NoMemory, now_ns);
        }
        Some(run)
    }

    /// Lets the adopter take memory out of use, of which there is too much for `goal`.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    unsafe fn take(
        &mut self,
        goal: u32,
        memory: &mut dyn PluggableMemory,
        now_ns: u64,
    ) -> Option<Run> {
        let most = self.map.plugged().saturating_sub(goal).min(self.units.most());
        match memory.remove(self.units.bytes(most), self.units.unit_bytes) {
            Removal::Run { start_bytes, size_bytes } => {
                let run = self.units.run(start_bytes, size_bytes);
                let run = run.filter(|&run| run.count <= most && self.map.is_all(run, true));
                if run.is_none() {
                    // A run that is not put back is lost, because the device must not be asked to
                    // unplug it.
                    // SAFETY: the run was just returned, and nothing was done with it.
                    let _ = unsafe { memory.put_back(start_bytes, size_bytes) };
                    return self.retry(Obstacle::BadRun { start_bytes, size_bytes }, now_ns);
                }
                run
            }
            Removal::Nothing { obstacles } => self.retry(Obstacle::InUse { obstacles }, now_ns),
        }
    }

    fn request(&mut self, purpose: Purpose) -> Request {
        let counters = &mut self.counters;
        let (kind, counter, run) = match purpose {
            Purpose::Clear => (RequestKind::UnplugAll, &mut counters.unplug_all, None),
            Purpose::Plug(run) => (RequestKind::Plug, &mut counters.plug, Some(run)),
            Purpose::Unplug(run) | Purpose::Discard(run) => {
                (RequestKind::Unplug, &mut counters.unplug, Some(run))
            }
            Purpose::Ask(cut) => (RequestKind::State, &mut counters.state, Some(cut.run())),
        };
        *counter += 1;
        let address = run.map_or(0, |run| self.units.address(run));
        let blocks = run.map_or(0, |run| self.units.blocks(run));
        Request { kind, address, blocks }
    }

    /// Processes the answer to the request in flight. Returns true if memory was plugged or
    /// unplugged.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    pub unsafe fn finish(
        &mut self,
        answer: Answer,
        memory: &mut dyn PluggableMemory,
        now_ns: u64,
    ) -> Result<bool, DeviceFault> {
        let Some((purpose, _)) = self.asked.take() else { return Ok(false) };
        match answer {
            // SAFETY: the caller keeps this function's promise.
            Answer::Done => Ok(unsafe { self.done(purpose, memory) }),
            // SAFETY: the caller keeps this function's promise.
            Answer::Blocks(state) => unsafe { self.resolve(purpose, state, memory) },
            Answer::Nack => {
                self.counters.nack += 1;
                self.pause = Some(Pause { obstacle: Obstacle::Nack, until_ns: None });
                Ok(false)
            }
            Answer::Busy => {
                self.counters.busy += 1;
                if let Purpose::Unplug(run) = purpose {
                    // SAFETY: `take` got the run from the adopter, and the device does not have it.
                    unsafe { self.put_back(run, memory) };
                }
                self.retry::<()>(Obstacle::Busy, now_ns);
                Ok(false)
            }
            // Nobody knows whether a run that was to be unplugged is still plugged, so nobody gets
            // it back.
            Answer::Error => {
                let request = match purpose {
                    Purpose::Clear => RequestKind::UnplugAll,
                    Purpose::Plug(_) => RequestKind::Plug,
                    Purpose::Unplug(_) | Purpose::Discard(_) => RequestKind::Unplug,
                    Purpose::Ask(_) => RequestKind::State,
                };
                Err(DeviceFault::Refused { request })
            }
        }
    }

    /// Processes the device's success.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    unsafe fn done(&mut self, purpose: Purpose, memory: &mut dyn PluggableMemory) -> bool {
        match purpose {
            Purpose::Clear => {
                (self.must_clear, self.may_shrink) = (false, true);
            }
            Purpose::Plug(run) => {
                self.map.set(run, true);
                let (start_bytes, size_bytes) =
                    (self.units.address(run), self.units.bytes(run.count));
                // SAFETY: the device has plugged the run, in its region, where nothing else is, as
                // the caller promises; nobody used it, as the map says.
                let taken_bytes = unsafe { memory.add(start_bytes, size_bytes) };
                let taken = self.units.of_bytes(taken_bytes).min(run.count);
                if taken < run.count {
                    self.unused = Some(Run { first: run.first + taken, count: run.count - taken });
                    self.unwanted = Some(memory.may_take_more());
                }
            }
            Purpose::Unplug(run) => self.map.set(run, false),
            Purpose::Discard(run) => {
                self.map.set(run, false);
                self.unused = None;
            }
            // The device has answered this with a state.
            Purpose::Ask(_) => return false,
        }
        // If the adopter did not take everything, this was not a success.
        if self.unwanted.is_none() {
            self.backoff.reset();
        }
        true
    }

    /// Processes the device's answer about a request that a reset has cut off.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    unsafe fn resolve(
        &mut self,
        purpose: Purpose,
        state: BlockState,
        memory: &mut dyn PluggableMemory,
    ) -> Result<bool, DeviceFault> {
        let Purpose::Ask(cut) = purpose else { return Ok(false) };
        let run = cut.run();
        self.cut = None;
        match (state, cut) {
            (BlockState::Mixed, _) => {
                Err(DeviceFault::Partial { start_bytes: self.units.address(run) })
            }
            (BlockState::Plugged, Cut::Plug(_)) => {
                // SAFETY: the caller keeps this function's promise.
                Ok(unsafe { self.done(Purpose::Plug(run), memory) })
            }
            (BlockState::Plugged, Cut::Unplug(_)) => {
                // SAFETY: `take` got the run from the adopter, and the device does not have it.
                unsafe { self.put_back(run, memory) };
                Ok(false)
            }
            (BlockState::Unplugged, Cut::Unplug(_)) => {
                self.map.set(run, false);
                Ok(true)
            }
            (BlockState::Unplugged, Cut::Discard(_)) => {
                self.map.set(run, false);
                self.unused = None;
                Ok(true)
            }
            // The request had no effect.
            (BlockState::Plugged, Cut::Discard(_)) | (BlockState::Unplugged, Cut::Plug(_)) => {
                Ok(false)
            }
        }
    }

    /// Gives the adopter back a run that stays plugged.
    ///
    /// # Safety
    /// [`take`](Self::take) got the run from the adopter, and this is the only time it is put back.
    unsafe fn put_back(&mut self, run: Run, memory: &mut dyn PluggableMemory) {
        let (start_bytes, size_bytes) = (self.units.address(run), self.units.bytes(run.count));
        // SAFETY: the caller keeps this function's promise.
        if !unsafe { memory.put_back(start_bytes, size_bytes) } {
            // This overwrites no other run: an unused run is unplugged before any other is taken.
            self.unused = Some(run);
        }
    }

    /// Asks nothing until an event, or until `until_ns`.
    fn wait<V>(&mut self, obstacle: Obstacle, until_ns: Option<u64>) -> Option<V> {
        self.pause = Some(Pause { obstacle, until_ns });
        None
    }

    /// Asks nothing for a while; the delay grows each time.
    fn retry<V>(&mut self, obstacle: Obstacle, now_ns: u64) -> Option<V> {
        let until_ns = self.backoff.until_ns(now_ns);
        self.wait(obstacle, Some(until_ns))
    }

    /// How far the driver has got.
    pub fn progress(&self, now_ns: u64, changed: bool) -> Progress {
        let waited_ns = self.asked.map(|(_, sent_ns)| now_ns.saturating_sub(sent_ns));
        let obstacle = match waited_ns {
            Some(waited_ns) if waited_ns >= self.answer_ns => Some(Obstacle::Silent),
            _ => self.pause.map(|pause| pause.obstacle),
        };
        Progress {
            requested_bytes: self.sizes.requested_bytes,
            plugged_bytes: self.plugged_bytes(),
            usable_bytes: self.sizes.usable_bytes,
            waiting: self.is_waiting(),
            obstacle,
            due_ns: match waited_ns {
                // As long again as the device has taken so far, so that the wait doubles.
                Some(waited_ns) => {
                    let wait_ns = waited_ns.clamp(LOOK_NS.0, LOOK_NS.1);
                    // A device is called silent on time; it may still answer afterwards.
                    let silent_ns = self.answer_ns.saturating_sub(waited_ns);
                    let wait_ns = if silent_ns == 0 { wait_ns } else { wait_ns.min(silent_ns) };
                    Some(now_ns.saturating_add(wait_ns))
                }
                None => self.pause.and_then(|pause| pause.until_ns),
            },
            changed,
        }
    }
}
