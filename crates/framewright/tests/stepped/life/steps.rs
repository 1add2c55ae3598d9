//! The steps of a life: every call of the manager's interface that takes or gives memory, or
//! changes who may have it.

use super::model::{Kind, Run};
use super::{Life, Stepped};
use framewright::hugetlb::PoolSize;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::ZoneKind;
use framewright::zone::{MigrateType, State};
use framewright::{Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::reporting::Answer;
use framewright_testkit::{Owner, PoolOwner};

const TYPES: [MigrateType; 3] =
    [MigrateType::Unmovable, MigrateType::Movable, MigrateType::Reclaimable];
/// The number of runs held at most.
const MOST_RUNS: usize = 400;
/// The number of pages of a bulk request.
const BULK: usize = 70;

impl Life {
    /// Does one random step.
    pub fn step(&mut self) {
        let full = self.runs.len() >= MOST_RUNS;
        match self.random.below(100) {
            0..24 if !full => self.allocate_order(),
            24..36 if !full => self.allocate(),
            36..40 if !full => self.allocate_bulk(),
            40..48 if !full => self.allocate_at(),
            48..50 => self.start_references(),
            50..54 => self.references(),
            54..58 if !full => self.take_from_pool(),
            58..60 => self.resize_pool(),
            60 => self.promise(),
            61 => self.demote(),
            62..64 => self.isolate(),
            64..66 => self.unisolate(),
            66 => self.claim(),
            67..70 => self.report(),
            70 => self.change_vmemmap(),
            71 => self.interrupted(|manager| {
                manager.drain().expect("good frames");
            }),
            72 => self.look(),
            73 => self.settings(),
            74 if self.random.one_in(8) => self.initialise_deferred(),
            75 => self.wrong_calls(),
            _ if !self.runs.is_empty() => {
                let index = self.random.index(self.runs.len());
                if self.random.one_in(6) {
                    self.give_back_part(index)
                } else {
                    self.give_back_run(index)
                }
            }
            _ => {}
        }
    }

    /// Runs an operation of the manager, now and then with an interrupt somewhere inside it.
    fn interrupted<R>(&mut self, operation: impl FnOnce(&Stepped) -> R) -> R {
        let manager = self.manager;
        if !self.random.one_in(6) {
            return operation(manager);
        }
        // A stop after an instruction takes some microseconds. Most operations end after a few
        // hundred instructions.
        let far = if self.random.one_in(12) { 8 } else { 4 };
        let most = 1 << (4 + self.random.below(far) + 1);
        let instruction = 1 + self.random.below(most);
        let (model, handler) = (&mut self.model, &mut self.handler);
        let mut interrupt = || handler.interrupt(manager, model);
        let (result, _) =
            manager.platform().interrupt_after(instruction, || operation(manager), &mut interrupt);
        // The host's books take a lock, which no handler may do.
        self.handler.runs().for_each(|range| self.host.handed_out(range));
        result
    }

    fn got(&mut self, range: PfnRange, kind: Kind) {
        self.model.got(range);
        self.host.handed_out(range);
        self.runs.push(Run { range, kind });
    }

    fn order(&mut self) -> Order {
        // Whole GiBs are few, and filling them takes long.
        let most = if self.random.one_in(if self.fills { 60 } else { 12 }) { 19 } else { 11 };
        let most = self.random.below(most);
        Order::new(u8::try_from(self.random.below(most + 1)).expect("small")).expect("an order")
    }

    fn migrate_type(&mut self) -> MigrateType {
        self.random.choose(&TYPES).expect("there are three")
    }

    fn some_frame(&mut self) -> Pfn {
        let near = self.random.index(self.runs.len());
        match self.runs.get(near) {
            Some(run) if self.random.one_in(2) => [run.range.start, run.range.end][near % 2],
            _ => Pfn(self.random.below(u64::from(self.model.blocks()) * PAGES_PER_BLOCK)),
        }
    }

    fn allocate_order(&mut self) {
        let small = self
            .random
            .choose(&[0, 0, 0, 1, 2, 3, 6, 8, 9])
            .and_then(Order::new)
            .expect("an order");
        let order = if self.random.one_in(4) { self.order() } else { small };
        let migrate_type = self.migrate_type();
        if let Ok(start) = self.interrupted(|manager| manager.allocate_order(order, migrate_type)) {
            assert!(start.is_aligned(order));
            self.got(PfnRange { start, end: start.add(order.pages()) }, Kind::Plain(Some(order)));
        }
    }

    fn allocate(&mut self) {
        let order = self.order();
        let pages = if self.random.one_in(2) {
            order.pages()
        } else {
            1 + self.random.below(order.pages())
        };
        let mut request = Request {
            migrate_type: self.migrate_type(),
            reserves: if self.random.one_in(3) { Reserves::Atomic } else { Reserves::None },
            zeroed: pages <= 600 && self.random.one_in(4),
            fail_fast: self.random.one_in(4),
            ..Request::pages(pages)
        };
        if self.random.one_in(4) {
            request.max_address = self.some_frame().address();
        }
        if self.random.one_in(4) {
            request.zone = self.random.choose(&ZoneKind::ALL).expect("there are some");
        }
        if self.random.one_in(4) {
            request.node = NodeChoice::Exact(NodeId::new(self.random.index(2)).expect("a node"));
        }
        if let Ok(range) = self.interrupted(|manager| manager.allocate(&request)) {
            assert_eq!(range.pages(), pages);
            let end = range.end.address();
            assert!(end <= request.max_address, "{range:?} ends above {:#x}", request.max_address);
            let whole = Order::for_pages(pages).filter(|order| order.pages() == pages);
            self.got(range, Kind::Plain(whole.filter(|&order| range.start.is_aligned(order))));
        }
    }

    fn allocate_bulk(&mut self) {
        let mut pages = [Pfn(0); BULK];
        let request = Request { migrate_type: self.migrate_type(), ..Request::pages(1) };
        let wanted = 1 + self.random.index(BULK);
        let room = &mut pages[..wanted];
        if let Ok(done) = self.interrupted(|manager| manager.allocate_bulk(&request, room)) {
            for &start in &pages[..done] {
                self.got(PfnRange { start, end: start.add(1) }, Kind::Plain(Some(Order::PAGE)));
            }
        }
    }

    fn allocate_at(&mut self) {
        let (order, migrate_type) = (self.order(), self.migrate_type());
        let start = Pfn(self.some_frame().0 & !(order.pages() - 1));
        if let Ok(range) =
            self.interrupted(|manager| manager.allocate_at(start, order, migrate_type))
        {
            assert_eq!(range, PfnRange { start, end: start.add(order.pages()) });
            self.got(range, Kind::Plain(Some(order)));
        }
    }

    /// Gives a run back in the way that its kind requires.
    pub fn give_back_run(&mut self, index: usize) {
        let Run { range, kind } = self.runs.swap_remove(index);
        match kind {
            Kind::Plain(order) => {
                self.model.gives(range);
                let order = order.filter(|_| !self.random.one_in(4));
                let freed = self.interrupted(|manager| match order {
                    Some(order) => manager.give_back_order(range.start, order),
                    None => manager.give_back(range),
                });
                freed.unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
            Kind::Counted(references) => {
                self.model.gives(range);
                for _ in 0..references {
                    self.manager
                        .give_back_reference(range.start)
                        .unwrap_or_else(|error| panic!("{range:?}: {error}"));
                }
            }
            Kind::Pool(size) => {
                self.model.gives(range);
                let freed =
                    self.interrupted(|manager| manager.pool(size).give_back_page(range.start));
                freed.unwrap_or_else(|error| panic!("{range:?}: {error}"));
            }
        }
    }

    /// Gives back a part from the middle of a run.
    fn give_back_part(&mut self, index: usize) {
        let Run { range, kind } = self.runs[index];
        if !matches!(kind, Kind::Plain(_)) || self.whole_frees {
            return self.give_back_run(index);
        }
        self.runs.swap_remove(index);
        let start = range.start.add(self.random.below(range.pages()));
        let end = start.add(1 + self.random.below(range.end.0 - start.0));
        let part = PfnRange { start, end };
        // Small runs carry a stamp in every frame, large runs only in some.
        self.model.look(range);
        self.model.stamp(part);
        self.model.gives(part);
        self.interrupted(|manager| manager.give_back(part))
            .unwrap_or_else(|error| panic!("{part:?}: {error}"));
        for rest in
            [PfnRange { start: range.start, end: start }, PfnRange { start: end, end: range.end }]
        {
            if !rest.is_empty() {
                self.model.stamp(rest);
                self.runs.push(Run { range: rest, kind: Kind::Plain(None) });
            }
        }
    }

    fn start_references(&mut self) {
        let index = self.random.index(self.runs.len());
        let Some(&Run { range, kind: Kind::Plain(Some(_)) }) = self.runs.get(index) else { return };
        if self.manager.begin_references(range).is_ok() {
            self.runs[index].kind = Kind::Counted(1);
        }
    }

    /// Asks for references to frames of all kinds: only frames of counted runs may give one.
    fn references(&mut self) {
        let frame = self.some_frame();
        let frame = Pfn(frame.0.min(u64::from(self.model.blocks()) * PAGES_PER_BLOCK - 1));
        let counted = self
            .runs
            .iter_mut()
            .find(|run| run.range.contains(frame) && matches!(run.kind, Kind::Counted(_)));
        let manager = self.manager;
        match (manager.references().try_get(frame), counted) {
            (Ok(()), Some(Run { kind: Kind::Counted(references), range })) => {
                *references += 1;
                assert_eq!(manager.references().count(frame), Ok(*references));
                assert_eq!(manager.references().run(frame), Ok(*range));
                manager.freeze_references(frame, *references).expect("all are ours");
                assert!(manager.references().try_get(frame).is_err(), "{frame} is frozen");
                manager.unfreeze_references(frame, *references).expect("it is frozen");
            }
            (Ok(()), _) => panic!("a reference to {frame}, which has no count"),
            (Err(error), Some(_)) => panic!("no reference to {frame}, which is counted: {error}"),
            (Err(_), None) => {}
        }
    }

    fn size(&mut self) -> PoolSize {
        if self.random.one_in(if self.fills { 40 } else { 6 }) {
            PoolSize::OneGib
        } else {
            PoolSize::TwoMib
        }
    }

    fn take_from_pool(&mut self) {
        let size = self.size();
        if let Ok(range) =
            self.interrupted(|manager| manager.pool(size).allocate(NodeChoice::Any, false))
        {
            assert_eq!(range.pages(), size.frames());
            self.got(range, Kind::Pool(size));
        }
    }

    fn resize_pool(&mut self) {
        let size = self.size();
        let most = match size {
            PoolSize::OneGib => 3,
            PoolSize::TwoMib if self.fills => 40,
            PoolSize::TwoMib => 200,
        };
        let pages = self.random.below(most);
        let node = NodeId::new(self.random.index(2)).expect("a node");
        let by_node = self.random.one_in(3);
        self.interrupted(|manager| {
            let pool = manager.pool(size);
            let resized = if by_node {
                pool.resize_node(node, pages, &NoHelpers)
            } else {
                pool.resize(pages, &NoHelpers)
            };
            resized.map(drop).expect("nobody else resizes");
        });
        if size == PoolSize::TwoMib {
            self.manager.pool(size).set_overcommit(self.random.below(5)).expect("not gigantic");
        }
    }

    fn promise(&mut self) {
        let size = self.size();
        let pool = self.manager.pool(size);
        let pages = 1 + self.random.below(4);
        if pool.reserve(pages, framewright::hugetlb::NodeMask::ALL).is_ok() {
            let taken = match pool.allocate(NodeChoice::Any, true) {
                Ok(taken) => taken,
                Err(error) => {
                    // Isolated pages stay in the pool, count as free, and are not handed out.
                    let free = pool.counts().all.free;
                    assert!(self.isolated_in_pool(size) >= free, "it is promised: {error}");
                    return pool.unreserve(pages).expect("it is promised still");
                }
            };
            if self.random.one_in(2) {
                pool.commit(taken.start).expect("it is ours");
                pool.unreserve(pages - 1).expect("it is promised");
                self.got(taken, Kind::Pool(size));
            } else {
                self.model.got(taken);
                self.host.handed_out(taken);
                self.model.gives(taken);
                pool.give_back_page(taken.start).expect("it is ours");
                pool.unreserve(pages).expect("it is promised again");
            }
        }
    }

    /// Returns the pool's pages that have no owner and are isolated.
    fn isolated_in_pool(&self, size: PoolSize) -> u64 {
        let blocks = self.isolated.iter().flat_map(|range| range.start.0..range.end.0);
        let is_page = |block: &BlockNumber| {
            let state = self.manager.block_state(*block);
            block.start().is_aligned(size.order())
                && state.is_some_and(|state| {
                    state.is(State::Pool) && state.order() == size.order() && state.is_isolated()
                })
                && !self.model.is_owned(block.start())
        };
        blocks.map(BlockNumber).filter(is_page).count() as u64
    }

    fn demote(&mut self) {
        if self.manager.pool(PoolSize::OneGib).demote(1).is_ok() && self.random.one_in(2) {
            self.resize_pool();
        }
    }

    /// Empties the pools at the end of a life.
    pub fn empty_pools(&mut self) {
        for size in PoolSize::ALL {
            let resized =
                self.manager.pool(size).resize(0, &NoHelpers).expect("nobody else resizes");
            assert_eq!(resized.reached, 0);
        }
    }

    /// Gives back what the handler holds at the end of a life.
    pub fn empty_handler(&mut self) {
        while let Some((range, order)) = self.handler.take() {
            self.model.gives(range);
            self.manager
                .give_back_order(range.start, order)
                .unwrap_or_else(|error| panic!("{range:?}: {error}"));
        }
    }

    fn isolate(&mut self) {
        let start =
            u32::try_from(self.random.below(u64::from(self.model.blocks()))).expect("small");
        let most = 1 << self.random.below(9);
        let blocks = 1 + u32::try_from(self.random.below(most)).expect("small");
        let end = (start + blocks).min(self.model.blocks());
        let range = BlockRange::new(start, end);
        if self.model.is_isolated(start, end) {
            return;
        }
        if self.interrupted(|manager| manager.isolation().isolate(range)).is_ok() {
            self.model.isolate(start, end, true);
            self.isolated.push(range);
        }
    }

    /// Puts isolated blocks back into circulation.
    pub fn unisolate(&mut self) {
        if self.isolated.is_empty() {
            return;
        }
        let range = self.isolated.swap_remove(self.random.index(self.isolated.len()));
        self.model.isolate(range.start.0, range.end.0, false);
        self.interrupted(|manager| manager.isolation().unisolate(range))
            .unwrap_or_else(|error| panic!("{range:?}: {error}"));
    }

    fn claim(&mut self) {
        let index = self.random.index(self.isolated.len());
        let Some(&range) = self.isolated.get(index) else { return };
        let manager = self.manager;
        if let Ok(claimed) = manager.isolation().claim(range) {
            assert_eq!(claimed, PfnRange { start: range.start.start(), end: range.end.start() });
            self.isolated.swap_remove(index);
            self.model.isolate(range.start.0, range.end.0, false);
            self.got(claimed, Kind::Plain(None));
        }
    }

    fn report(&mut self) {
        let Some(reporter) = &mut self.reporter else { return };
        if self.random.one_in(4) {
            let answers = [
                Answer::After(0),
                Answer::After(2),
                Answer::Fails(1),
                Answer::Refuses,
                Answer::IsBusy,
            ];
            self.host.plan(self.random.choose(&answers));
        }
        if self.random.one_in(20) {
            reporter.reset();
        }
        for _ in 0..1 + self.random.below(8) {
            self.now_ns += self.random.below(2_000_000_000);
            if reporter.poll(self.now_ns).is_none() {
                break;
            }
        }
    }

    /// Gives back the memory map of a run, or makes it present again.
    fn change_vmemmap(&mut self) {
        let index = self.random.index(self.runs.len());
        let Some(&Run { range, kind: Kind::Plain(_) }) = self.runs.get(index) else { return };
        let restore = self.random.one_in(3);
        self.interrupted(|manager| {
            let _ = if restore {
                manager.restore_vmemmap(&[range])
            } else {
                manager.optimize_vmemmap(&[range])
            };
        });
    }

    /// Makes calls that only read.
    fn look(&mut self) {
        let frame = self.some_frame();
        let manager = self.manager;
        let block = BlockNumber::containing(frame);
        let _ = (
            manager.block_state(block),
            manager.vmemmap().descriptor_frames(block),
            manager.debug().page_history(frame),
        );
        let _ = manager.isolation().survey(BlockRange::new(block.0, block.0 + 1));
        let _ = (manager.references().count(frame), manager.caches().cpu(0), manager.times());
        for zone in manager.views() {
            zone.shuffle();
        }
    }

    fn settings(&mut self) {
        let manager = self.manager;
        manager.sysctl().set_min_free_kbytes(1 << self.random.below(15)).expect("a number of KiB");
        manager.sysctl().set_watermark_scale_factor(1 + self.random.below(60)).expect("a factor");
        manager.hugetlb().set_optimize_vmemmap(self.random.one_in(2));
    }

    /// Brings up the memory that is still withheld.
    pub fn initialise_deferred(&mut self) {
        if self.deferred {
            self.deferred = false;
            self.manager.vmemmap().initialise_deferred(&NoHelpers);
        }
    }

    /// Makes calls that must always be refused: reversed ranges, empty ranges, and ranges far
    /// beyond memory.
    fn wrong_calls(&mut self) {
        let frame = self.some_frame();
        let manager = self.manager;
        let reversed = PfnRange { start: frame.add(2), end: frame };
        let far = Pfn(u64::MAX - self.random.below(1 << 20));
        let blocks = BlockRange { start: BlockNumber(9), end: BlockNumber(3) };
        assert!(manager.give_back(reversed).is_err(), "{reversed:?} is reversed");
        assert!(manager.give_back(PfnRange { start: frame, end: frame }).is_err(), "an empty run");
        assert!(manager.give_back_order(far, Order::PAGE).is_err(), "{far} is no memory");
        assert!(
            manager.isolation().isolate(blocks).is_err()
                && manager.isolation().unisolate(blocks).is_err()
                && manager.isolation().survey(blocks).is_err()
        );
        assert!(manager.isolation().claim(blocks).is_err());
        assert!(
            manager.begin_references(reversed).is_err()
                && manager.references().try_get(far).is_err()
        );
        assert!(manager.allocate_at(far, Order::BLOCK, MigrateType::Movable).is_err());
        assert!(manager.pool(PoolSize::TwoMib).give_back_page(far).is_err());
        assert!(manager.pool(PoolSize::TwoMib).poison(far).is_err());
    }
}
