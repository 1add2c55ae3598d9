//! One CPU's share of the traffic.

use crate::check::is_as_asked;
use crate::failure::Failure;
use crate::random::Random;
use crate::shared::Shared;
use crate::stamp::Held;
use crate::tally::Tally;
use framewright::memblock::NodeChoice;
use framewright::units::{MAX_NODES, NodeId, Order, PHYSICAL_ADDRESS_END, Pfn, PfnRange};
use framewright::zone::MigrateType;
use framewright::zone::ZoneKind;
use framewright::{AllocateError, Manager, Platform, Request, Reserves};

/// Frames of one bulk request.
const BULK: usize = 48;
/// The largest run that is requested zeroed: clearing a GiB takes as long as a million other
/// operations.
const LARGEST_ZEROED_PAGES: u64 = 1024;
/// The migrate types of requests.
const TYPES: [MigrateType; 3] =
    [MigrateType::Unmovable, MigrateType::Movable, MigrateType::Reclaimable];

/// The phase of a worker. Memory fills and empties in turn, so that both plenty and shortage occur.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Grow,
    Churn,
    Shrink,
}

impl Mood {
    /// How many steps out of sixteen allocate.
    const fn allocations(self) -> u64 {
        match self {
            Self::Grow => 11,
            Self::Churn => 8,
            Self::Shrink => 4,
        }
    }
}

/// One CPU's share of the traffic; see the crate documentation. Used by one CPU at a time.
pub struct Worker<'a, P: Platform> {
    manager: &'a Manager<P>,
    shared: &'a Shared,
    random: Random,
    held: &'a mut [Held],
    count: usize,
    mood: Mood,
    tally: Tally,
}

impl<'a, P: Platform> Worker<'a, P> {
    /// Makes a worker that holds nothing yet and can hold at most `room.len()` runs. Equal seeds
    /// make equal choices, so workers on one manager should have different seeds.
    #[must_use]
    pub fn new(
        manager: &'a Manager<P>,
        shared: &'a Shared,
        room: &'a mut [Held],
        seed: u64,
    ) -> Self {
        Self {
            manager,
            shared,
            random: Random::new(seed),
            held: room,
            count: 0,
            mood: Mood::Grow,
            tally: Tally::default(),
        }
    }

    /// Returns how many pages the worker holds.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs().iter().map(|held| held.range.pages()).sum()
    }

    /// Returns what the worker has done so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Does this many steps.
    ///
    /// # Errors
    /// The first [`Failure`] found.
    pub fn run(&mut self, operations: u64) -> Result<(), Failure> {
        self.shared.check(self.manager)?;
        for _ in 0..operations {
            self.step()?;
        }
        Ok(())
    }

    /// Frees everything that the worker holds.
    ///
    /// # Errors
    /// [`Failure::Stamp`], [`Failure::Free`].
    pub fn finish(mut self) -> Result<Tally, Failure> {
        while self.count != 0 {
            self.free_run(self.count - 1)?;
        }
        Ok(self.tally)
    }

    fn runs(&self) -> &[Held] {
        self.held.get(..self.count).unwrap_or(&[])
    }

    fn room(&self) -> usize {
        self.held.len() - self.count
    }

    /// Does one step.
    ///
    /// # Errors
    /// The first [`Failure`] found.
    pub fn step(&mut self) -> Result<(), Failure> {
        self.tally.operations += 1;
        match self.random.below(2048) {
            0 => self.drain(),
            1..5 => {
                self.mood = self
                    .random
                    .choose(&[Mood::Grow, Mood::Churn, Mood::Shrink])
                    .unwrap_or(Mood::Churn);
                Ok(())
            }
            5 if self.random.one_in(4) => self.take_everything(),
            6 if self.random.one_in(4) => {
                self.tally.recounts += 1;
                self.manager.verify().map(drop).map_err(Failure::Tables)
            }
            7..40 => self.call_wrongly(),
            40..160 => self.exchange(),
            _ if self.count == 0
                || self.room() > 2 && self.random.below(16) < self.mood.allocations() =>
            {
                self.allocate()
            }
            _ => self.free(),
        }
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.tally.drains += 1;
        self.manager.drain().map(drop).map_err(Failure::Drain)
    }

    /// Takes a run that another worker left, and leaves one in its place.
    fn exchange(&mut self) -> Result<(), Failure> {
        if self.room() == 0 {
            return Ok(());
        }
        let (index, slot) = (self.random.index(self.count), self.random.index(usize::MAX));
        let mine = if self.count == 0 { Held::NOTHING } else { self.remove(index) };
        let theirs = self.shared.exchange(self.manager.platform(), slot, mine);
        if !theirs.range.is_empty() {
            self.tally.exchanges += 1;
            theirs.check(self.manager.platform())?;
            self.insert(theirs);
        }
        Ok(())
    }

    fn insert(&mut self, held: Held) {
        if let Some(slot) = self.held.get_mut(self.count) {
            *slot = held;
            self.count += 1;
        }
    }

    fn remove(&mut self, index: usize) -> Held {
        self.count -= 1;
        self.held.swap(index, self.count);
        core::mem::replace(&mut self.held[self.count], Held::NOTHING)
    }

    /// Stamps a new run and keeps it, even if it was to be zero and is not.
    fn keep(&mut self, range: PfnRange, zeroed: bool) -> Result<(), Failure> {
        let held = Held::new(range, self.random.bits());
        let platform = self.manager.platform();
        // If a frame has another owner, this finds the other owner's stamp.
        let zero = if zeroed { held.check_zero(platform) } else { Ok(()) };
        held.write(platform);
        self.insert(held);
        self.tally.allocations += 1;
        zero
    }

    fn migrate_type(&mut self) -> MigrateType {
        self.random.choose(&TYPES).unwrap_or_default()
    }

    /// Returns an order: mostly a small one, but all orders occur.
    fn order(&mut self) -> Order {
        let most = self.random.below(19);
        let order = self.random.below(most + 1);
        u8::try_from(order).ok().and_then(Order::new).unwrap_or(Order::PAGE)
    }

    fn allocate(&mut self) -> Result<(), Failure> {
        match self.random.below(16) {
            0..7 => {
                let order = self
                    .random
                    .choose(&[0, 0, 0, 0, 1, 2, 3, 9])
                    .and_then(Order::new)
                    .unwrap_or(Order::PAGE);
                self.allocate_order(order)
            }
            7..10 => {
                let order = self.order();
                self.allocate_order(order)
            }
            10..14 => self.allocate_request(),
            14 => self.allocate_bulk(),
            _ => self.allocate_at(),
        }
    }

    /// Counts a refused request, which is a normal result, and sometimes begins to make room.
    fn refused(&mut self) {
        self.tally.refusals += 1;
        if self.random.one_in(4) {
            self.mood = Mood::Shrink;
        }
    }

    fn allocate_order(&mut self, order: Order) -> Result<(), Failure> {
        let migrate_type = self.migrate_type();
        let request = Request { migrate_type, ..Request::new(order) };
        match self.manager.allocate_order(order, migrate_type) {
            Ok(start) => {
                self.keep_asked(&request, PfnRange { start, end: start.add(order.pages()) })
            }
            Err(error) => self.not_served(&request, error),
        }
    }

    fn keep_asked(&mut self, request: &Request, range: PfnRange) -> Result<(), Failure> {
        if !is_as_asked(self.manager, request, range) {
            return Err(Failure::NotAsAsked { request: *request, range });
        }
        self.keep(range, request.zeroed)
    }

    fn not_served(&mut self, request: &Request, error: AllocateError) -> Result<(), Failure> {
        match error {
            AllocateError::OutOfMemory { .. } => {
                self.refused();
                Ok(())
            }
            error => Err(Failure::Allocate { request: *request, error }),
        }
    }

    fn allocate_request(&mut self) -> Result<(), Failure> {
        let request = self.request();
        match self.manager.allocate(&request) {
            Ok(range) => self.keep_asked(&request, range),
            Err(error) => self.not_served(&request, error),
        }
    }

    fn reserves(&mut self) -> Reserves {
        let some = [Reserves::Half, Reserves::Atomic, Reserves::All];
        let chosen = if self.random.one_in(4) { self.random.choose(&some) } else { None };
        chosen.unwrap_or_default()
    }

    /// Returns a random valid request.
    fn request(&mut self) -> Request {
        let order = self.order();
        let pages = if self.random.one_in(2) {
            order.pages()
        } else {
            1 + self.random.below(order.pages())
        };
        let mut request = Request {
            migrate_type: self.migrate_type(),
            reserves: self.reserves(),
            zeroed: pages <= LARGEST_ZEROED_PAGES && self.random.one_in(4),
            ..Request::pages(pages)
        };
        if self.random.one_in(4) {
            request.align = self.order();
        }
        if self.random.one_in(4) {
            request.boundary_pages = pages.next_power_of_two() << self.random.below(4);
        }
        if self.random.one_in(4) {
            request.zone = self.random.choose(&ZoneKind::ALL).unwrap_or(ZoneKind::Normal);
        }
        if self.random.one_in(4) {
            request.max_address =
                self.some_frame().address().saturating_add(self.random.below(4096));
        }
        let node = NodeId::new(self.random.index(self.manager.nodes().len())).unwrap_or_default();
        request.node = match self.random.below(8) {
            0 => NodeChoice::Exact(node),
            1 => NodeChoice::Preferred(node),
            _ => NodeChoice::Any,
        };
        request
    }

    /// Returns a frame of some zone, perhaps one in a hole.
    fn some_frame(&mut self) -> Pfn {
        let zones = self.manager.zones();
        let span = zones
            .get(self.random.index(zones.len()))
            .map_or(PfnRange::new(0, 1), |zone| zone.span());
        span.start.add(self.random.below(span.pages()))
    }

    fn allocate_bulk(&mut self) -> Result<(), Failure> {
        let mut pages = [Pfn(0); BULK];
        let wanted = (1 + self.random.index(BULK)).min(self.room());
        let request = Request {
            migrate_type: self.migrate_type(),
            reserves: self.reserves(),
            zeroed: self.random.one_in(8),
            ..Request::pages(1)
        };
        let Some(room) = pages.get_mut(..wanted) else { return Ok(()) };
        match self.manager.allocate_bulk(&request, room) {
            Ok(done) => {
                for &page in pages.iter().take(done) {
                    self.keep_asked(&request, PfnRange { start: page, end: page.add(1) })?;
                }
                Ok(())
            }
            Err(error) => self.not_served(&request, error),
        }
    }

    fn allocate_at(&mut self) -> Result<(), Failure> {
        let (order, migrate_type) = (self.order(), self.migrate_type());
        // Often next to a run that is held, where most changes happen.
        let near = self
            .random
            .choose(self.held.get(..self.count).unwrap_or(&[]))
            .filter(|_| self.random.one_in(2));
        let frame = near.map_or_else(|| self.some_frame(), |held| held.range.end);
        let start = Pfn(frame.0 & !(order.pages() - 1));
        let request = Request { migrate_type, align: order, ..Request::new(order) };
        match self.manager.allocate_at(start, order, migrate_type) {
            Ok(range) if range.start == start => self.keep_asked(&request, range),
            Ok(range) => Err(Failure::NotAsAsked { request, range }),
            Err(AllocateError::NotFree(_)) => {
                self.tally.refusals += 1;
                Ok(())
            }
            Err(error) => Err(Failure::Allocate { request, error }),
        }
    }

    /// Allocates until nothing is left, the largest runs first, so that other workers are refused.
    /// Then begins to make room again.
    fn take_everything(&mut self) -> Result<(), Failure> {
        for order in (0..=Order::MAX.get()).rev().filter_map(Order::new) {
            while self.room() > 2 {
                let request = Request {
                    reserves: Reserves::All,
                    migrate_type: self.migrate_type(),
                    ..Request::new(order)
                };
                match self.manager.allocate(&request) {
                    Ok(range) => self.keep_asked(&request, range)?,
                    Err(error) => {
                        self.not_served(&request, error)?;
                        break;
                    }
                }
            }
        }
        self.mood = Mood::Shrink;
        Ok(())
    }

    fn free(&mut self) -> Result<(), Failure> {
        let index = self.random.index(self.count);
        match self.random.below(8) {
            0 if self.room() >= 2 => self.free_part(index),
            _ => self.free_run(index),
        }
    }

    fn free_run(&mut self, index: usize) -> Result<(), Failure> {
        let held = self.remove(index);
        held.check(self.manager.platform())?;
        let range = held.range;
        let order = Order::for_pages(range.pages())
            .filter(|order| order.pages() == range.pages() && held.is_whole);
        self.tally.frees += 1;
        let freed = match order {
            // SAFETY: only this worker has owned the run since it allocated it or got it in an
            // exchange, and the run is no longer in its list (invariant 42).
            Some(order) if !self.random.one_in(4) => unsafe {
                self.manager.free_order(range.start, order)
            },
            // SAFETY: as for `free_order` (invariant 42).
            _ => unsafe { self.manager.free(range) },
        };
        freed.map_err(|error| Failure::Free { range, error })
    }

    /// Frees the middle of a run, and keeps both ends.
    fn free_part(&mut self, index: usize) -> Result<(), Failure> {
        let held = self.remove(index);
        let range = held.range;
        let start = range.start.add(self.random.below(range.pages()));
        let end = start.add(1 + self.random.below(range.end.0 - start.0));
        let part = held.part(start, end);
        part.check(self.manager.platform())?;
        self.tally.frees += 1;
        // SAFETY: this is a part of a run that only this worker owns and that is no longer in its
        // list (invariant 42).
        unsafe { self.manager.free(part.range) }
            .map_err(|error| Failure::Free { range: part.range, error })?;
        for rest in [held.part(range.start, start), held.part(end, range.end)] {
            if !rest.range.is_empty() {
                self.insert(rest);
            }
        }
        Ok(())
    }

    /// Makes calls that must be refused, whatever other workers do.
    fn call_wrongly(&mut self) -> Result<(), Failure> {
        self.tally.wrong_calls += 1;
        let manager = self.manager;
        let beyond = Pfn(Pfn::containing(PHYSICAL_ADDRESS_END).0 - 1 - self.random.below(1000));
        let (what, refused) = match self.random.below(8) {
            0 => ("a request for no page", manager.allocate(&Request::pages(0)).is_err()),
            1 => (
                "a run of more than 1 GiB",
                manager.allocate(&Request::pages(Order::MAX.pages() + 1)).is_err(),
            ),
            2 => {
                let request = Request { boundary_pages: 4, ..Request::pages(8) };
                ("a boundary inside the run", manager.allocate(&request).is_err())
            }
            3 => {
                let node = NodeChoice::Exact(NodeId::new(MAX_NODES - 1).unwrap_or_default());
                let exists = manager.nodes().len() == MAX_NODES;
                (
                    "a node that does not exist",
                    exists || manager.allocate(&Request { node, ..Request::pages(1) }).is_err(),
                )
            }
            4 => {
                // SAFETY: the range names no frame.
                (
                    "freeing nothing",
                    unsafe { manager.free(PfnRange { start: beyond, end: beyond }) }.is_err(),
                )
            }
            // SAFETY: there is no memory at this address that could have an owner.
            5 => (
                "freeing what is not memory",
                unsafe { manager.free_order(beyond, Order::BLOCK) }.is_err(),
            ),
            6 => {
                let start = Pfn(beyond.0 | 1);
                (
                    "a place that is not aligned",
                    manager.allocate_at(start, Order::BLOCK, MigrateType::Movable).is_err(),
                )
            }
            _ => {
                // The last frame of the last zone, which may be held, and the frame behind it.
                let end =
                    manager.zones().iter().map(|zone| zone.span().end).max().unwrap_or(beyond);
                let range = PfnRange { start: Pfn(end.0 - 1), end: end.add(1) };
                // SAFETY: the whole range is checked before anything changes, and its end is not
                // managed (invariant 13).
                ("freeing past the end", unsafe { manager.free(range) }.is_err())
            }
        };
        if refused { Ok(()) } else { Err(Failure::NotRefused { what }) }
    }
}
