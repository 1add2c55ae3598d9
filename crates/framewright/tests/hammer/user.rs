//! A CPU that allocates and frees.

use crate::common::Fake;
use crate::model::{END, Model};
use framewright::hugetlb::PoolSize;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::zone::{MigrateType, ZoneKind};
use framewright::{Frames, Request, Reserves};
use framewright_testkit::workload::Random;
use framewright_testkit::{Owner, PoolOwner};
use std::alloc::Layout;
use std::sync::atomic::Ordering;

/// Something that a user owns.
#[derive(Clone, Copy)]
pub struct Held {
    pub range: PfnRange,
    pub kind: Kind,
    /// The pages have descriptors that hold the owner's words.
    pub described: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Frames,
    /// A counted run with one reference.
    Counted,
    Page(PoolSize),
}

pub struct User<'a> {
    pub model: &'a Model,
    pub owner: u8,
    pub random: Random,
    pub held: Vec<Held>,
}

impl User<'_> {
    fn manager(&self) -> &'static Fake {
        self.model.manager
    }

    fn now(&self) -> u64 {
        self.model.now.load(Ordering::SeqCst)
    }

    fn keep(&mut self, range: PfnRange, asked: u64, zeroed: bool) {
        self.model.got(self.owner, range, asked, zeroed);
        let described = self.model.describe(range, self.owner);
        self.held.push(Held { range, kind: Kind::Frames, described });
    }

    fn keep_asked(&mut self, request: &Request, range: PfnRange, asked: u64) {
        let order = Order::for_pages(request.pages).expect("granted").max(request.align);
        self.keep_aligned(request, range, order, asked);
    }

    fn keep_aligned(&mut self, request: &Request, range: PfnRange, order: Order, asked: u64) {
        let Request { pages, boundary_pages, node, zone, max_address, .. } = *request;
        let last = Pfn(range.end.0 - 1);
        let nodes = [range.start, last].map(|pfn| self.model.node_of(pfn));
        let on_node = match node {
            NodeChoice::Exact(node) => nodes == [node.index(); 2],
            _ => nodes[0] == nodes[1],
        };
        assert!(
            range.pages() == pages
                && range.start.is_aligned(order)
                && on_node
                && last < zone.reach()
                && range.end.address() <= max_address
                && (boundary_pages == 0
                    || range.start.0 / boundary_pages == last.0 / boundary_pages),
            "{request:?} got {range:?}"
        );
        self.keep(range, asked, request.zeroed);
    }

    fn order(&mut self) -> Order {
        let order = self.random.choose(&[0, 0, 0, 1, 2, 3, 4, 6, 8, 9, 9, 10, 12]).expect("some");
        Order::new(order).expect("an order")
    }

    fn migrate_type(&mut self) -> MigrateType {
        use MigrateType::{Movable, Reclaimable, Unmovable};
        self.random.choose(&[Movable, Movable, Unmovable, Reclaimable]).expect("some")
    }

    fn pages(&mut self) -> u64 {
        let usual = self
            .random
            .choose(&[1, 1, 1, 2, 3, 3, 5, 7, 8, 24, 64, 100, 256, 257, 280, 500, 511, 512, 513])
            .expect("some");
        if self.random.one_in(4) { 1 + self.random.below(usual) } else { usual }
    }

    fn request(&mut self, pages: u64) -> Request {
        let mut request = Request {
            migrate_type: self.migrate_type(),
            zeroed: self.random.one_in(4),
            reserves: if self.random.one_in(6) { Reserves::All } else { Reserves::None },
            fail_fast: self.random.one_in(2),
            ..Request::pages(pages)
        };
        let node = NodeId::new(self.random.index(3)).expect("a node");
        request.node = match self.random.below(6) {
            0 => NodeChoice::Preferred(node),
            1 | 2 => NodeChoice::Exact(node),
            _ => NodeChoice::Any,
        };
        if self.random.one_in(6) {
            request.align = self.order();
        }
        if self.random.one_in(6) {
            request.boundary_pages = pages.next_power_of_two() << self.random.below(3);
        }
        if self.random.one_in(5) {
            request.zone = self.random.choose(&ZoneKind::ALL).expect("some");
        }
        if self.random.one_in(5) {
            let most = if self.random.one_in(2) { 48 << 20 } else { END * PAGE_SIZE };
            request.max_address = most - self.random.below(32 << 20);
        }
        request
    }

    /// Does one random step.
    pub fn step(&mut self, depth: u32) {
        let room = self.held.len() < 200;
        match self.random.below(100) {
            0..14 if room => self.allocate_order(),
            14..34 if room => self.allocate(),
            34..37 if room => self.allocate_size(),
            37..42 if room => self.allocate_bulk(),
            42..45 if room => self.allocate_at(),
            45..47 if room => self.allocate_page(),
            47..50 if room => self.frames(),
            50..54 if depth == 0 => {
                let machine = self.model.machine();
                machine.interrupt(|| (0..4).for_each(|_| self.step(1)));
            }
            54..58 => self.start_count(),
            58 if self.random.one_in(6) => {
                self.manager().drain().expect("good frames");
            }
            59 if self.random.one_in(8) => self.change_vmemmap(),
            60..70 => self.give_back_many(),
            _ => self.give_back(),
        }
    }

    fn allocate_order(&mut self) {
        let (order, kind, asked) = (self.order(), self.migrate_type(), self.now());
        if let Ok(start) = self.manager().allocate_order(order, kind) {
            let range = PfnRange { start, end: start.add(order.pages()) };
            self.keep_asked(&Request::new(order), range, asked);
        }
    }

    fn allocate(&mut self) {
        let pages = self.pages();
        let (request, asked) = (self.request(pages), self.now());
        if let Ok(range) = self.manager().allocate(&request) {
            self.keep_asked(&request, range, asked);
        }
    }

    fn allocate_size(&mut self) {
        let (pages, align, asked) = (self.pages(), self.order(), self.now());
        let request = Request { align, ..Request::pages(pages) };
        let taken = if self.random.one_in(2) {
            self.manager().allocate_pages(pages, align)
        } else {
            let bytes = |pages: u64| usize::try_from(pages * PAGE_SIZE).expect("64 bits");
            let size = bytes(pages) - self.random.index(4096);
            let layout = Layout::from_size_align(size, bytes(align.pages())).expect("small");
            self.manager().allocate_layout(layout)
        };
        // A run that spans neighbouring blocks is only aligned as far as the request asked.
        if let Ok(range) = taken {
            if pages > Order::BLOCK.pages() {
                self.keep_aligned(&request, range, align, asked);
            } else {
                self.keep_asked(&request, range, asked);
            }
        }
    }

    fn allocate_bulk(&mut self) {
        let mut pages = [Pfn(0); 150];
        let (request, wanted, asked) = (self.request(1), 1 + self.random.index(150), self.now());
        // These frames are not checked.
        let looked_at = Request { align: Order::PAGE, boundary_pages: 0, ..request };
        if let Ok(done) = self.manager().allocate_bulk(&request, &mut pages[..wanted]) {
            for &start in &pages[..done] {
                self.keep_asked(&looked_at, PfnRange { start, end: start.add(1) }, asked);
            }
        }
    }

    fn allocate_at(&mut self) {
        let order = self.order();
        let near = self.held.get(self.random.index(self.held.len().max(1)));
        let frame = match near {
            Some(held) if self.random.one_in(2) => held.range.end.0,
            _ => {
                let memory = self.model.somewhere(&mut self.random);
                memory.start.0 + self.random.below(memory.pages())
            }
        };
        let start = Pfn(frame & !(order.pages() - 1));
        let (kind, asked) = (self.migrate_type(), self.now());
        if let Ok(range) = self.manager().allocate_at(start, order, kind) {
            assert_eq!(range.start, start);
            self.keep(range, asked, false);
        }
    }

    fn allocate_page(&mut self) {
        let (size, asked) = (PoolSize::TwoMib, self.now());
        if let Ok(range) = self.manager().pool(size).allocate(NodeChoice::Any, false) {
            self.model.got(self.owner, range, asked, false);
            self.held.push(Held { range, kind: Kind::Page(size), described: false });
        }
    }

    fn frames(&mut self) {
        let pages = self.pages();
        let (request, asked) = (self.request(pages), self.now());
        let Ok(mut frames) = self.manager().frames(&request) else { return };
        let range = frames.range();
        self.keep_asked(&request, range, asked);
        let Held { described, .. } = self.held.pop().expect("kept just now");
        let rest = frames.split_off(self.random.below(pages + 2));
        for part in core::iter::once(frames).chain(rest) {
            if self.random.one_in(2) {
                self.held.push(Held { range: part.into_range(), kind: Kind::Frames, described });
                continue;
            }
            self.let_go(part.range(), described, true);
            if self.random.one_in(2) {
                drop(part);
            } else {
                Frames::free(part).expect("ours");
            }
        }
    }

    fn start_count(&mut self) {
        let at = self.random.index(self.held.len().max(1));
        if let Some(&Held { range, kind: Kind::Frames, .. }) = self.held.get(at)
            && self.manager().begin_references(range).is_ok()
        {
            self.held[at].kind = Kind::Counted;
        }
    }

    fn change_vmemmap(&mut self) {
        let at = self.random.index(self.held.len().max(1));
        if self.model.shape.array
            && let Some(&Held { range, kind: Kind::Frames, described: false }) = self.held.get(at)
        {
            let _ = if self.random.one_in(3) {
                self.manager().restore_vmemmap(&[range])
            } else {
                self.manager().optimize_vmemmap(&[range])
            };
        }
    }

    fn let_go(&self, range: PfnRange, described: bool, clears: bool) {
        if described {
            self.model.described(range, self.owner, clears);
        }
        self.model.gives(self.owner, range, 0);
    }

    /// Takes single frames, and runs as single frames, in one call.
    fn give_back_many(&mut self) {
        let mut pages = Vec::new();
        let mut at = 0;
        while at < self.held.len() && pages.len() < 120 {
            let Held { range, kind, described } = self.held[at];
            let takes = range.pages() == 1 || range.pages() < 40 && self.random.one_in(6);
            if kind == Kind::Frames && takes {
                self.held.swap_remove(at);
                self.let_go(range, described, true);
                pages.extend(Model::frames(range).map(Pfn));
            } else {
                at += 1;
            }
        }
        for last in (1..pages.len()).rev() {
            pages.swap(last, self.random.index(last + 1));
        }
        self.manager().give_back_bulk(&pages).unwrap_or_else(|error| panic!("{pages:?}: {error}"));
    }

    /// Gives something back.
    pub fn give_back(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let Held { range, kind, described } =
            self.held.swap_remove(self.random.index(self.held.len()));
        let freed = match kind {
            Kind::Page(size) => {
                self.let_go(range, described, true);
                self.manager().pool(size).give_back_page(range.start).map_err(|e| e.to_string())
            }
            Kind::Counted => {
                let page = range.start.add(self.random.below(range.pages()));
                self.let_go(range, described, false);
                self.manager().give_back_reference(page).map_err(|error| error.to_string())
            }
            Kind::Frames if self.random.one_in(4) => {
                return self.give_back_in_parts(range, described);
            }
            Kind::Frames => {
                self.let_go(range, described, true);
                self.give_back_part(range)
            }
        };
        freed.unwrap_or_else(|error| panic!("{range:?}: {error}"));
    }

    fn give_back_part(&mut self, range: PfnRange) -> Result<(), String> {
        let freed = match (range.as_order(), self.random.below(4)) {
            (Some(order), 0 | 1) => self.manager().give_back_order(range.start, order),
            (_, 2) => self.manager().give_back_pages(range.start, range.pages()),
            _ => self.manager().give_back(range),
        };
        freed.map_err(|error| error.to_string())
    }

    /// Gives back a part of a run, or all of it in parts.
    fn give_back_in_parts(&mut self, range: PfnRange, described: bool) {
        let mut cuts = [range.start.0; 4];
        for cut in &mut cuts[1..] {
            *cut = range.start.0 + self.random.below(range.pages() + 1);
        }
        if self.random.one_in(3) {
            cuts.iter_mut().for_each(|cut| *cut &= !7);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).max(range.start.0));
        }
        cuts.sort_unstable();
        let ends = [cuts[1], cuts[2], cuts[3], range.end.0];
        for (start, end) in cuts.into_iter().zip(ends).filter(|(start, end)| start < end) {
            let part = PfnRange::new(start, end);
            if self.random.one_in(4) {
                self.held.push(Held { range: part, kind: Kind::Frames, described });
                continue;
            }
            self.let_go(part, described, true);
            self.give_back_part(part).unwrap_or_else(|error| panic!("{part:?}: {error}"));
        }
    }
}
