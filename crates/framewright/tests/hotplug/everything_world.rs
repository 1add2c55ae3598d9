//! A world in which memory comes and goes at places whose state the test knows, and is allocated
//! and freed in every form.

use crate::add::node;
use crate::common::{Fake, order};
use crate::everything_owners::{GONE, NOBODY, Owners, lock, to_usize};
use crate::files::write;
use framewright::manager::{Budget, HotplugError, HotplugEvent, HotplugNotifier, Removal, Veto};
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType, Presence};
use framewright::{Platform, Request};
use framewright_testkit::Owner;
use framewright_testkit::workload::Random;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub const BLOCK: u64 = 2 << 20;

/// A notifier that vetoes now and then, allocates, and counts.
#[derive(Default)]
pub struct Told {
    pub manager: Mutex<Option<&'static Fake>>,
    turn: AtomicU64,
    /// The number of changes that have begun and not ended.
    pub open: Mutex<Vec<PhysRange>>,
}

impl HotplugNotifier for Told {
    fn notify(&self, event: HotplugEvent) -> Result<(), Veto> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let manager = lock(&self.manager).expect("set");
        if let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Unmovable) {
            manager.give_back_order(page, Order::PAGE).expect("ours");
        }
        let mut open = lock(&self.open);
        match event {
            HotplugEvent::GoingOnline(range) | HotplugEvent::GoingOffline(range) => {
                assert!(open.is_empty(), "{open:?} is under way");
                open.push(range);
                if turn % 17 == 3 { Err(Veto) } else { Ok(()) }
            }
            HotplugEvent::Online(range)
            | HotplugEvent::CancelOnline(range)
            | HotplugEvent::Offline(range)
            | HotplugEvent::CancelOffline(range) => {
                assert_eq!(open.pop(), Some(range));
                Ok(())
            }
            _ if turn % 19 == 5 => Err(Veto),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum How {
    Filled(u8),
    Unplugged,
    Accepted,
}

/// A part of the address space where memory comes and goes.
pub struct Place {
    pub range: PhysRange,
    pub node: usize,
    /// Blocks that hold tables.
    pub tables: u64,
    pub blocks: Vec<(Presence, How)>,
}

pub struct World {
    pub manager: &'static Fake,
    pub owners: &'static Owners,
    pub accepts: bool,
    pub forgets: bool,
}

impl World {
    /// The host takes memory that was removed; returns in which way.
    pub fn went(&self, range: PhysRange, random: &mut Random) -> How {
        self.owners.change(range.whole_frames(), NOBODY, GONE);
        let machine = self.manager.platform();
        if self.accepts {
            let device = machine.accept();
            for at in (range.start..range.end).step_by(2 << 20) {
                let block = PhysRange::with_size(at, BLOCK);
                if self.forgets {
                    device.forget(block);
                } else if device.is_accepted(Pfn::containing(at)) {
                    // SAFETY: it was removed.
                    unsafe { machine.plug(block, 0x6d) };
                }
            }
            return How::Accepted;
        }
        // Most of a large range has never been written.
        if range.size() > 256 << 20 || random.one_in(2) {
            // SAFETY: as above.
            unsafe { machine.unplug(range) };
            return How::Unplugged;
        }
        let byte = [0xff, 0xa5, 0x11, 0x44][random.index(4)];
        crate::fill(self.manager, range, byte);
        How::Filled(byte)
    }

    /// The host gives the memory back.
    fn comes(&self, place: &Place, range: PhysRange) {
        let machine = self.manager.platform();
        for at in (range.start..range.end).step_by(2 << 20) {
            let block = PhysRange::with_size(at, BLOCK);
            match place.blocks[to_usize((at - place.range.start) / BLOCK)].1 {
                How::Filled(byte) => {
                    let start = machine.direct(at);
                    // SAFETY: the host's memory.
                    let all = unsafe { std::slice::from_raw_parts(start.as_ptr(), 2 << 20) };
                    assert!(all.iter().all(|&found| found == byte), "{block:?} was touched");
                }
                // SAFETY: as above.
                How::Unplugged => unsafe { machine.plug(block, 0x33) },
                How::Accepted => {}
            }
        }
        self.owners.change(range.whole_frames(), GONE, NOBODY);
    }

    fn set(place: &mut Place, range: PhysRange, to: Presence, how: How) {
        let first = to_usize((range.start - place.range.start) / BLOCK);
        for block in &mut place.blocks[first..first + to_usize(range.size() / BLOCK)] {
            *block = (to, how);
        }
    }

    fn are(place: &Place, range: PhysRange, what: impl Fn(Presence) -> bool) -> bool {
        let first = to_usize((range.start - place.range.start) / BLOCK);
        let blocks = &place.blocks[first..first + to_usize(range.size() / BLOCK)];
        blocks.iter().all(|block| what(block.0))
    }

    pub fn step(&self, place: &mut Place, random: &mut Random) {
        let manager = self.manager;
        let hotplug = manager.hotplug();
        let hotplug = if random.one_in(2) { hotplug.by(self.owners) } else { hotplug };
        let is_large = place.tables != 0;
        let blocks = place.range.size() / BLOCK;
        let first = random.below(blocks);
        let count = 1 + random.below((blocks - first).min(24));
        let mut range = PhysRange::with_size(place.range.start + first * BLOCK, count * BLOCK);
        if is_large && random.one_in(3) || random.one_in(8) {
            range = place.range;
        }
        let grade =
            random.choose(&[Grade::Any, Grade::MovableOnly, Grade::Removable]).expect("some");
        let budget = if random.one_in(4) { Budget::UNLIMITED } else { Budget::runs(64) };
        let was_absent = Self::are(place, range, |it| it == Presence::Absent);
        let was_offline = Self::are(place, range, |it| it == Presence::Offline);
        let was_online = Self::are(place, range, |it| it == Presence::Online);
        let was_there = Self::are(place, range, |it| it != Presence::Absent);
        let on = node(place.node);
        match random.below(8) {
            0..=2 => {
                if !was_absent {
                    // SAFETY: it fails.
                    let wrong = unsafe { hotplug.add(range, on, grade) };
                    assert!(wrong.is_err(), "{range:?}");
                    return;
                }
                self.comes(place, range);
                let online = random.below(3) != 0;
                let added = if online {
                    // SAFETY: the machine has it and nobody uses it.
                    unsafe { hotplug.add(range, on, grade) }
                } else {
                    // SAFETY: as above.
                    unsafe { hotplug.add_offline(range, on) }
                };
                match added {
                    Ok(added) => {
                        let to = if online { Presence::Online } else { Presence::Offline };
                        if !online {
                            self.owners.change(range.whole_frames(), NOBODY, GONE);
                        }
                        Self::set(place, range, to, How::Accepted);
                        if is_large && range.start == place.range.start {
                            let tables = PhysRange::with_size(range.start, place.tables * BLOCK);
                            Self::set(place, tables, Presence::Online, How::Accepted);
                            if !online {
                                self.owners.change(tables.whole_frames(), GONE, NOBODY);
                            }
                        }
                        assert_eq!(added.range, range);
                    }
                    Err(HotplugError::Veto(_) | HotplugError::Tables(_)) => {
                        let how = self.went_again(range, random);
                        Self::set(place, range, Presence::Absent, how);
                    }
                    Err(error) => panic!("{range:?}: {error}"),
                }
            }
            3 => {
                let has_tables = is_large && range.start < place.range.start + place.tables * BLOCK;
                if !was_offline || has_tables {
                    assert!(hotplug.online(range, grade).is_err());
                    return;
                }
                self.owners.change(range.whole_frames(), GONE, NOBODY);
                match hotplug.online(range, grade) {
                    Ok(_) => Self::set(place, range, Presence::Online, How::Accepted),
                    Err(HotplugError::Veto(_)) => {
                        self.owners.change(range.whole_frames(), NOBODY, GONE);
                    }
                    Err(error) => panic!("{range:?}: {error}"),
                }
            }
            4 => {
                let result = hotplug.offline(range, budget);
                if let Ok(removed) = result {
                    assert!(was_online, "{removed:?}");
                    self.owners.change(range.whole_frames(), NOBODY, GONE);
                    Self::set(place, range, Presence::Offline, How::Accepted);
                }
            }
            5 => {
                // SAFETY: nothing looks up descriptors by number.
                let result = unsafe { hotplug.remove(range, budget) };
                if result.is_ok() {
                    assert!(was_there);
                    self.removed(place, range, random);
                }
            }
            6 => {
                let (most, align) = ((1 + random.below(16)) * BLOCK, BLOCK << random.below(3));
                // SAFETY: as above.
                let some =
                    unsafe { hotplug.remove_some(place.range, most.max(align), align, budget) };
                if let Ok(Removal::Run(run)) = some {
                    assert!(Self::are(place, run, |it| it != Presence::Absent), "{run:?}");
                    self.removed(place, run, random);
                }
            }
            _ => {
                // Uses a file where the range is a memory block.
                let block = place.range.start >> 27;
                if place.range.size() != 128 << 20 {
                    return;
                }
                let path = format!("/sys/devices/system/memory/memory{block}/state");
                let words = ["offline", "online", "online_movable", "online_kernel"];
                let word = random.choose(&words).expect("some");
                let all = place.range;
                let before = place.blocks.clone();
                if word == "offline" {
                    if write(manager, &path, word).is_ok() {
                        assert!(before.iter().all(|it| it.0 != Presence::Absent));
                        for at in (all.start..all.end).step_by(2 << 20) {
                            let one = PhysRange::with_size(at, BLOCK);
                            if Self::are(place, one, |it| it == Presence::Online) {
                                self.owners.change(one.whole_frames(), NOBODY, GONE);
                                Self::set(place, one, Presence::Offline, How::Accepted);
                            }
                        }
                    }
                } else {
                    // Afterwards all memory of the place is online, except what a veto stopped.
                    let offline: Vec<_> = (all.start..all.end)
                        .step_by(2 << 20)
                        .map(|at| PhysRange::with_size(at, BLOCK))
                        .filter(|&one| Self::are(place, one, |it| it == Presence::Offline))
                        .collect();
                    for one in &offline {
                        self.owners.change(one.whole_frames(), GONE, NOBODY);
                    }
                    let _ = write(manager, &path, word);
                    for one in offline {
                        if hotplug.presence_of(one.start) == Presence::Online {
                            Self::set(place, one, Presence::Online, How::Accepted);
                        } else {
                            self.owners.change(one.whole_frames(), NOBODY, GONE);
                        }
                    }
                }
            }
        }
        self.compare(place, range);
    }

    /// The host takes memory again that could not be added.
    fn went_again(&self, range: PhysRange, random: &mut Random) -> How {
        if self.accepts {
            self.owners.change(range.whole_frames(), NOBODY, GONE);
            return How::Accepted;
        }
        self.went(range, random)
    }

    pub fn removed(&self, place: &mut Place, range: PhysRange, random: &mut Random) {
        // Memory that was offline already has no owner.
        for at in (range.start..range.end).step_by(2 << 20) {
            let one = PhysRange::with_size(at, BLOCK);
            if Self::are(place, one, |it| it == Presence::Offline) {
                self.owners.change(one.whole_frames(), GONE, NOBODY);
            }
        }
        let how = self.went(range, random);
        Self::set(place, range, Presence::Absent, how);
    }

    pub fn compare(&self, place: &Place, range: PhysRange) {
        for at in (range.start..range.end).step_by(2 << 20) {
            let known = place.blocks[to_usize((at - place.range.start) / BLOCK)].0;
            assert_eq!(self.manager.hotplug().presence_of(at), known, "{at:#x}");
        }
    }

    pub fn allocate(&self, random: &mut Random, held: &mut Vec<Held>) {
        let manager = self.manager;
        let types = [MigrateType::Movable, MigrateType::Movable, MigrateType::Unmovable];
        let migrate_type = random.choose(&types).expect("some");
        let is_movable = migrate_type == MigrateType::Movable;
        let level = random.choose(&[0, 0, 1, 2, 3, 4, 6, 8, 9, 9, 10, 12]).expect("some");
        let choices = [
            NodeChoice::Any,
            NodeChoice::Any,
            NodeChoice::Preferred(node(random.index(3))),
            NodeChoice::Exact(node(random.index(3))),
        ];
        let request = |pages| Request {
            migrate_type,
            node: choices[to_usize(pages % 4)],
            zeroed: pages % 7 == 3,
            fail_fast: pages % 5 == 4,
            ..Request::pages(pages)
        };
        let got = match random.below(5) {
            0 => {
                let start = manager.allocate_order(order(level), migrate_type);
                start.ok().map(|start| {
                    (PfnRange { start, end: start.add(1 << level) }, Back::Order(order(level)))
                })
            }
            1 => manager.allocate(&request(1 << level)).ok().map(|it| (it, Back::Range)),
            2 => {
                let most = random.choose(&[9, 300, 1500]).expect("some");
                let pages = 1 + random.below(most);
                let got = manager.allocate(&request(pages)).ok();
                if let Some(got) = got.filter(|_| pages % 7 == 3) {
                    let word = manager.platform().direct(got.start.address()).cast::<u64>();
                    // SAFETY: the run is the test's own.
                    assert_eq!(unsafe { word.read() }, 0, "{got:?} is zero");
                }
                got.map(|it| (it, Back::Range))
            }
            3 => {
                let mut pages = [Pfn(0); 40];
                let wanted = 1 + random.index(40);
                let got = manager.allocate_bulk(&request(1), &mut pages[..wanted]).unwrap_or(0);
                let owners = pages[..got].iter().map(|&page| {
                    self.owners.take(PfnRange { start: page, end: page.add(1) }, is_movable)
                });
                held.push(Held { owners: owners.collect(), back: Back::Bulk });
                None
            }
            _ => {
                let pages = 1 + random.below(20);
                let got = manager.allocate_pages(pages, order(0)).ok();
                got.map(|it| (it, Back::Pages))
            }
        };
        if let Some((range, back)) = got {
            let is_movable = is_movable || back == Back::Pages;
            held.push(Held { owners: vec![self.owners.take(range, is_movable)], back });
        }
    }

    pub fn free(&self, held: Held, random: &mut Random) {
        let manager = self.manager;
        let ranges: Vec<_> = held.owners.iter().map(|&it| self.owners.give_up(it)).collect();
        if held.back == Back::Bulk {
            let pages: Vec<_> = ranges.iter().map(|range| range.start).collect();
            manager.give_back_bulk(&pages).expect("ours");
            return;
        }
        for range in ranges {
            match held.back {
                // Moved memory is in as many pieces as before.
                Back::Order(order) => {
                    manager.give_back_order(range.start, order).expect("ours");
                }
                Back::Pages => {
                    manager.give_back_pages(range.start, range.pages()).expect("ours");
                }
                _ if range.pages() > 1 && random.one_in(4) => {
                    let cut = range.start.add(1 + random.below(range.pages() - 1));
                    manager.give_back(PfnRange { end: cut, ..range }).expect("ours");
                    manager.give_back(PfnRange { start: cut, ..range }).expect("ours");
                }
                _ => manager.give_back(range).expect("ours"),
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Back {
    Order(Order),
    Range,
    Pages,
    Bulk,
}

pub struct Held {
    pub owners: Vec<u32>,
    back: Back,
}
