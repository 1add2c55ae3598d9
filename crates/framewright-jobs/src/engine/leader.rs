//! The caller's side of a job: the caller works like any worker, and in addition decides when
//! helpers are worth calling, and calls them.
//!
//! Memory ordering: Relaxed, except for the count of helpers in `missing`. What is stored here
//! before helpers are offered the job reaches them through their slots (Release in
//! `JobSlots::offer_reserved`, Acquire in `WorkerSlot::serve_with`); everything else is a hint.

use super::alone::Begun;
use super::pace::Pace;
use super::run::Asks;
use super::shared::{Local, Shared};
use super::track::{Rule, Track};
use crate::helpers::Helpers;
use crate::job::Placement;
use crate::nodes::{MAX_NODES, NodeSet};
use crate::plan;
use crate::raw::JobSlots;
use crate::scheduler::{MAX_HELPERS, Registration, Workers};
use crate::sync::atomic::Ordering;
use crate::token::Tally;
use crate::worker::Worker;
use core::ops::Range;

/// How many slots a caller that is short of helpers checks between two of its chunks.
const SLOTS_PER_LOOK: usize = 4;
/// With more helpers than this, the helpers that have already come wake the others too.
const WAKE_ALONE: u32 = 4;
/// A watched job is cut into this many chunks when one thread does all of it and no smallest chunk
/// is given.
const WATCHED_CHUNKS: u64 = 64;

/// The state of a job's caller while it works.
pub(super) struct Leader<'s, 'r, 'p, 'a, H: ?Sized, F, E> {
    shared: &'s Shared<'a, H, F, E>,
    job_slots: &'r mut JobSlots<'p>,
    registration: Option<Registration<'s>>,
    /// Whether helpers may be at work.
    together: bool,
    /// How many helpers the job is worth.
    target: u32,
    /// How many helpers the job may have; the platform is asked when the job wants one. If it may
    /// have none, a large job asks again, because the reason may pass while the job runs.
    allowance: u32,
    /// Where the next search for an idle slot begins.
    next_look: usize,
    asks: Asks,
}

impl<'s, 'r, 'p, 'a, H, F, E> Leader<'s, 'r, 'p, 'a, H, F, E>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
    E: Send,
{
    pub(super) fn new(shared: &'s Shared<'a, H, F, E>, job_slots: &'r mut JobSlots<'p>) -> Self {
        Self {
            shared,
            job_slots,
            registration: None,
            together: false,
            target: 0,
            allowance: 0,
            next_look: 0,
            asks: Asks::default(),
        }
    }

    /// Works until nothing is left to claim, continuing after the work that was `begun` alone, if
    /// any. Returns the caller's own failed chunk, if any, and what the caller knows about time.
    pub(super) fn lead(mut self, begun: Option<Begun>) -> (Option<Range<u64>>, Option<Pace>) {
        let shared = self.shared;
        let node = || shared.run.helpers.current_node();
        let mut own = shared.worker(0, &node);
        let timed = shared.run.job.is_guided() && self.could_have_helpers();
        let recorded = !shared.run.job.statistics.is_empty();
        let mut began = None;
        if let Some(Begun { pace, chunks, asks, .. }) = begun {
            own.tally = Tally { chunks, units: shared.size - shared.rest() };
            self.asks = asks;
            own.pace = Some(pace);
        } else {
            if timed || recorded {
                began = shared.run.helpers.now_ns();
            }
            own.pace = began.filter(|_| timed).map(|now| shared.run.first_pace(shared.size, now));
            self.call_at_once(&mut own);
        }
        if let Some(pace) = &mut own.pace {
            self.estimate(pace, shared.rest());
        }
        let mut failed = None;
        while !shared.stopped() {
            let claimed = if self.together {
                shared.claim_together(&mut own)
            } else {
                self.claim_alone(&mut own)
            };
            let Some(range) = claimed else { break };
            let units = range.end - range.start;
            if let Err(range) = shared.call(range, &mut own) {
                failed = Some(range);
                break;
            }
            self.reconsider(&mut own, units);
        }
        shared.finish(&own, began);
        (failed, own.pace)
    }

    fn could_have_helpers(&self) -> bool {
        self.shared.run.possible_threads() > 1
    }

    /// Calls helpers at once if the job says how many it is worth (it has a `min_chunk`) or if that
    /// cannot be measured (there is no clock), and fixes the size of its chunks.
    fn call_at_once(&mut self, own: &mut Local<'_>) {
        let shared = self.shared;
        let job = shared.run.job;
        if job.min_chunk.is_some() || own.pace.is_none() {
            let min_chunk = job.min_chunk.unwrap_or(0);
            let threads = plan::threads_wanted(shared.size, job.align, min_chunk, job.max_threads);
            self.target = threads - 1;
            let reserved = self.reserve();
            if !job.is_guided() {
                let chunk = plan::chunk_units(shared.size, 1 + reserved, job.align, min_chunk);
                shared.grid_chunk.store(chunk, Ordering::Relaxed);
            }
            self.offer(reserved, own.pace.as_mut());
        }
    }

    /// Claims while no helper takes part, with plain loads and stores.
    fn claim_alone(&self, own: &mut Local<'_>) -> Option<Range<u64>> {
        let shared = self.shared;
        let job = shared.run.job;
        let watched = job.cancel.is_some() || job.done.is_some();
        let could_have_helpers = self.could_have_helpers();
        shared.claim(own, |track: &Track, own| match shared.rule() {
            Rule::Grid(chunk) => track.claim_piece(chunk, false),
            Rule::Guided => track.claim_units(job.align, false, |rest| {
                let units = match &own.pace {
                    Some(pace) => pace.next_alone(shared.size, self.shared.run.possible_threads()),
                    None if could_have_helpers => rest / WATCHED_CHUNKS,
                    None if watched => shared.size / WATCHED_CHUNKS,
                    None => rest,
                };
                units.max(shared.floor)
            }),
        })
    }

    /// Runs after each of the caller's chunks: calls more helpers if the remaining work is worth
    /// them and some are idle.
    #[inline]
    fn reconsider(&mut self, own: &mut Local<'_>, units: u64) {
        if let Some(pace) = &mut own.pace {
            let shared = self.shared;
            let rest = shared.rest();
            if rest == 0 && shared.run.job.unit_cost().is_none() {
                return;
            }
            if let Some(now) = shared.run.helpers.now_ns() {
                pace.lap(now, units);
            }
            if rest == 0 {
                return;
            }
            self.estimate(pace, rest);
        }
        if self.registration.is_some() && self.shared.held.load(Ordering::Relaxed) < self.target {
            let reserved = self.look();
            self.offer(reserved, own.pace.as_mut());
        }
    }

    /// Calls as many helpers as the remaining work of an adaptive job now seems to be worth.
    fn estimate(&mut self, pace: &mut Pace, rest: u64) {
        let shared = self.shared;
        if shared.run.job.min_chunk.is_some() {
            return;
        }
        let worth = shared.run.worthwhile_helpers(pace, rest, &mut self.asks);
        // The estimate varies, so make few large calls rather than many small ones.
        if worth > self.target + self.target / 2 {
            self.target = worth;
            let reserved = self.reserve();
            self.offer(reserved, Some(pace));
        }
    }

    /// How many helpers the job may still get.
    fn missing(&mut self) -> u32 {
        let shared = self.shared;
        let Some(workers) = shared.run.workers.filter(|_| self.target > 0) else { return 0 };
        if self.allowance == 0 {
            let most = shared.run.helpers.allowance().min(workers.slots.len()).min(MAX_HELPERS);
            self.allowance = u32::try_from(most).unwrap_or(u32::MAX);
            if most == 0 {
                self.asks = Asks::IF_LARGE;
            }
        }
        self.target = self.target.min(self.allowance);
        let registration =
            self.registration.get_or_insert_with(|| Registration::new(workers.scheduler));
        let fair = if registration.others_hungry() {
            workers.scheduler.share(workers.slots.len())
        } else {
            u32::MAX
        };
        // Acquire pairs with the Release in `Shared::help`: a helper that replaces one that left
        // finds that helper's number free.
        self.target.min(fair).saturating_sub(shared.held.load(Ordering::Acquire))
    }

    /// Reserves idle slots, up to the number that the job may have, in the order of its placement.
    #[inline(never)]
    fn reserve(&mut self) -> u32 {
        let missing = self.missing();
        let Some(workers) = self.shared.run.workers else { return 0 };
        // Where to resume the search for each node; the last entry is for any node.
        let mut from = [0; MAX_NODES as usize + 1];
        let mut reserved = 0;
        while reserved < missing {
            let node = self.next_node(workers);
            let wanted =
                node.and_then(|node| self.first_idle(workers, from.get_mut(node as usize)?, node));
            let Some(helper) =
                wanted.or_else(|| self.first_idle(workers, from.last_mut()?, MAX_NODES))
            else {
                break;
            };
            self.job_slots.set_node(helper, node);
            self.shared.run.helpers.prepare(helper);
            reserved += 1;
        }
        reserved
    }

    /// Reserves the first idle slot whose helper runs on `node` or may run anywhere; if `node` is
    /// [`MAX_NODES`], any idle slot.
    fn first_idle(&mut self, workers: Workers<'_>, from: &mut u8, node: u32) -> Option<usize> {
        for helper in usize::from(*from)..workers.slots.len() {
            *from = u8::try_from(helper + 1).unwrap_or(u8::MAX);
            let fits = node == MAX_NODES
                || self.shared.run.helpers.node_of(helper).is_none_or(|at| at == node);
            if fits && self.job_slots.reserve(helper) {
                return Some(helper);
            }
        }
        None
    }

    /// Checks a few slots for ones that have become idle.
    #[inline(never)]
    fn look(&mut self) -> u32 {
        let missing = self.missing();
        let Some(workers) = self.shared.run.workers else { return 0 };
        let mut reserved = 0;
        for _ in 0..SLOTS_PER_LOOK.min(workers.slots.len()) {
            if reserved == missing {
                break;
            }
            let helper = self.next_look % workers.slots.len();
            self.next_look = helper + 1;
            if self.job_slots.reserve(helper) {
                let node = self.next_node(workers);
                self.job_slots.set_node(helper, node);
                self.shared.run.helpers.prepare(helper);
                reserved += 1;
            }
        }
        reserved
    }

    fn next_node(&self, workers: Workers<'_>) -> Option<u32> {
        let nodes = self.shared.run.helpers.nodes();
        match self.shared.run.job.placement {
            Placement::Node(node) => Some(node),
            Placement::Spread => workers.scheduler.cursor.next(nodes),
            Placement::Anywhere if self.shared.tracks.len() > 1 => {
                let parts: NodeSet = self.shared.tracks.iter().map(|track| track.node).collect();
                workers.scheduler.cursor.next(parts.and(nodes))
            }
            Placement::Anywhere => None,
        }
    }

    /// Offers the job in the reserved slots and wakes their helpers. The time that this takes is
    /// not counted in `pace`.
    #[inline(never)]
    fn offer(&mut self, reserved: u32, pace: Option<&mut Pace>) {
        let shared = self.shared;
        let Some(workers) = shared.run.workers else { return };
        if reserved != 0 {
            if let Some(now) = shared.run.helpers.now_ns() {
                shared.asked_ns.store(now, Ordering::Relaxed);
                if !self.together && pace.is_some() {
                    shared.called_ns.store(now, Ordering::Relaxed);
                }
            }
            if !self.together {
                shared.tracks.iter().for_each(Track::note_call);
                self.together = true;
            }
            shared.held.fetch_add(reserved, Ordering::Relaxed);
            shared.staying.fetch_add(reserved, Ordering::Relaxed);
            self.job_slots.offer_reserved(|offered| {
                if reserved > WAKE_ALONE {
                    shared.waking.store(0, Ordering::Relaxed);
                    shared.wake_on();
                } else {
                    offered.for_each(|helper| shared.run.helpers.wake(helper));
                }
            });
            if let Some(pace) = pace
                && let Some(now) = shared.run.helpers.now_ns()
            {
                pace.skip(now);
            }
        }
        let fair = self.target.min(workers.scheduler.share(workers.slots.len()));
        if let Some(registration) = &mut self.registration {
            registration.set_hungry(shared.held.load(Ordering::Relaxed) < fair);
        }
    }
}
