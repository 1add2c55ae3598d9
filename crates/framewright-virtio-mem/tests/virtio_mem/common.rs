//! Shared by the driver's tests: memory that checks how it is used.

#![allow(dead_code, reason = "every test file uses a part of it")]

use framewright_testkit::virtio_mem::{Asked, FakeHal, FakeTransport, FakeVirtioMem};
use framewright_virtio_mem::{
    DeviceFault, PluggableMemory, Progress, Removal, Settings, StartError, VirtioMem,
};
use std::collections::{BTreeMap, BTreeSet};

/// The driver over the fakes.
pub type Driver = VirtioMem<FakeHal, FakeTransport>;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const BLOCK: u64 = 2 * MIB;
/// The start of the usual device's region.
pub const START: u64 = 4 * GIB;
pub const MS: u64 = 1_000_000;

/// Nothing else is anywhere.
pub fn nothing(_: u64, _: u64) -> bool {
    false
}

pub fn start(host: &FakeVirtioMem) -> Result<Driver, StartError> {
    Driver::new(host.transport(), Settings::default(), &mut nothing)
}

/// How a unit of memory is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Free,
    Movable,
    Pinned,
}

/// The adopter's memory, in units.
pub struct Memory {
    host: FakeVirtioMem,
    unit_bytes: u64,
    pub units: BTreeMap<u64, Use>,
    /// Units that were removed and have not come back.
    pub out: BTreeSet<u64>,
    /// How many more bytes `add` accepts.
    pub room_bytes: u64,
    /// Whether it may accept more later.
    pub may_take_more: bool,
    /// Whether it takes back memory that the device does not accept.
    pub takes_back: bool,
    /// Whether movable units can be vacated.
    pub can_move: bool,
    /// What `remove` returns instead, once.
    pub instead: Option<(u64, u64)>,
    pub put_back_instead: Vec<(u64, u64)>,
    pub added: Vec<(u64, u64)>,
    pub put_back: Vec<(u64, u64)>,
    pub removes: usize,
    /// Whether the host is honest, so that memory that is added is plugged.
    pub is_honest: bool,
}

impl Memory {
    pub fn of(host: &FakeVirtioMem) -> Self {
        Self::by(host, BLOCK)
    }

    pub fn by(host: &FakeVirtioMem, unit_bytes: u64) -> Self {
        Self {
            host: host.clone(),
            unit_bytes,
            units: BTreeMap::new(),
            out: BTreeSet::new(),
            room_bytes: u64::MAX,
            may_take_more: false,
            takes_back: true,
            can_move: true,
            instead: None,
            put_back_instead: Vec::new(),
            added: Vec::new(),
            put_back: Vec::new(),
            removes: 0,
            is_honest: true,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.units.len() as u64 * self.unit_bytes
    }

    pub fn use_unit(&mut self, index: usize, what: Use) {
        let unit = self.units.values_mut().nth(index).expect("a unit");
        *unit = what;
    }

    pub fn use_all(&mut self, what: Use) {
        self.units.values_mut().for_each(|unit| *unit = what);
    }

    fn split(&self, start: u64, size: u64) -> impl Iterator<Item = u64> + use<> {
        assert!(size > 0 && (start | size).is_multiple_of(self.unit_bytes), "{start:#x} {size:#x}");
        (start..start + size).step_by(usize::try_from(self.unit_bytes).expect("64 bits"))
    }

    /// Checks that all memory in use is plugged.
    pub fn check(&self) {
        if self.is_honest {
            for &unit in self.units.keys() {
                assert!(self.host.is_plugged(unit..unit + self.unit_bytes), "{unit:#x} is gone");
            }
        }
    }

    /// The largest run that `may_go`, the highest of several; then its upper end.
    fn largest(&self, most: u64, may_go: impl Fn(Use) -> bool) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut run: Option<(u64, u64)> = None;
        for (&unit, &what) in &self.units {
            run = match run {
                _ if !may_go(what) => None,
                Some((start, size)) if start + size == unit => {
                    Some((start, size + self.unit_bytes))
                }
                _ => Some((unit, self.unit_bytes)),
            };
            if let Some((start, size)) = run
                && best.is_none_or(|(_, best)| size.min(most) >= best.min(most))
            {
                best = Some((start, size));
            }
        }
        let (start, size) = best?;
        let taken = size.min(most / self.unit_bytes * self.unit_bytes);
        (taken > 0).then_some((start + size - taken, taken))
    }
}

// SAFETY: these addresses are only numbers.
unsafe impl PluggableMemory for Memory {
    unsafe fn add(&mut self, start: u64, size: u64) -> u64 {
        assert!(!self.is_honest || self.host.is_plugged(start..start + size), "{start:#x}");
        self.added.push((start, size));
        let taken = size.min(self.room_bytes / self.unit_bytes * self.unit_bytes);
        self.room_bytes -= taken;
        if taken > 0 {
            for unit in self.split(start, taken) {
                self.out.remove(&unit);
                assert!(self.units.insert(unit, Use::Free).is_none(), "{unit:#x} is in use");
            }
        }
        taken
    }

    fn may_take_more(&self) -> bool {
        self.may_take_more
    }

    fn remove(&mut self, most: u64, unit_bytes: u64) -> Removal {
        self.removes += 1;
        assert_eq!(unit_bytes, self.unit_bytes);
        assert!(most > 0 && most.is_multiple_of(unit_bytes), "{most:#x}");
        if let Some((start_bytes, size_bytes)) = self.instead {
            return Removal::Run { start_bytes, size_bytes };
        }
        let free = self.largest(most, |what| what == Use::Free);
        let movable =
            || self.can_move.then(|| self.largest(most, |what| what == Use::Movable)).flatten();
        let Some((start_bytes, size_bytes)) = free.or_else(movable) else {
            return Removal::Nothing { obstacles: self.units.len() as u64 };
        };
        for unit in self.split(start_bytes, size_bytes) {
            assert!(self.units.remove(&unit).is_some());
            self.out.insert(unit);
        }
        Removal::Run { start_bytes, size_bytes }
    }

    unsafe fn put_back(&mut self, start: u64, size: u64) -> bool {
        if self.instead.take().is_some() {
            self.put_back_instead.push((start, size));
            return true;
        }
        if !self.takes_back {
            return false;
        }
        self.put_back.push((start, size));
        for unit in self.split(start, size) {
            assert!(self.out.remove(&unit), "{unit:#x} was not removed");
            assert!(self.units.insert(unit, Use::Free).is_none(), "{unit:#x} is in use");
        }
        true
    }
}

/// The driver's operations on a test's memory.
pub trait WithMemory {
    fn step(&mut self, memory: &mut Memory, now_ns: u64) -> Result<Progress, DeviceFault>;
}

impl WithMemory for Driver {
    fn step(&mut self, memory: &mut Memory, now_ns: u64) -> Result<Progress, DeviceFault> {
        // SAFETY: these addresses are only numbers; `Memory` complains if they are used wrongly.
        let progress = unsafe { self.work(memory, now_ns) };
        memory.check();
        progress
    }
}

/// Works, without any time passing, until nothing more happens by itself.
pub fn settle(device: &mut Driver, memory: &mut Memory, now_ns: u64) -> Progress {
    for _ in 0..10_000 {
        let progress = device.step(memory, now_ns).expect("a device that is well");
        let is_paused = progress.obstacle.is_some() && !progress.waiting;
        if progress.is_settled() || is_paused {
            return progress;
        }
    }
    panic!("memory does not settle: {device:?}")
}

pub const PLUG: u16 = 0;
pub const UNPLUG: u16 = 1;
pub const UNPLUG_ALL: u16 = 2;
pub const STATE: u16 = 3;

/// Returns the requests as kind, address and number of blocks.
pub fn requests(host: &FakeVirtioMem) -> Vec<(u16, u64, u16)> {
    let short = |asked: Asked| (asked.kind, asked.address, asked.blocks);
    host.asked().into_iter().map(short).collect()
}

/// Checks that all of the driver's memory was freed and that it was used as allowed.
pub fn nothing_is_left() {
    assert_eq!(FakeHal::pages(), 0, "pages are left");
    assert_eq!(FakeHal::violations(), [""; 0]);
}
