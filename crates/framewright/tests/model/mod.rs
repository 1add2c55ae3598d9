//! A tiny machine for the model checkers: every execution brings it up anew, does a few things on a
//! few CPUs, and accounts for every page.
//!
//! A thread of the model is a CPU. Tables and caches lie in memory that the executions use one
//! after the other, and each finds what the previous one left there. Maps and lists change only
//! under the zone lock, so threads interleave only at the lock and at the ownership of caches,
//! however many frames a block has. Blocks therefore have their full size here.
//!
//! Counters and tables that are read without the lock are the processor's own atomics
//! (`sync::atomics`): the checker never switches threads at an access to one, and all threads see
//! these accesses in one order. An error that only their memory orderings prevent is out of reach
//! of every model here.
#![allow(dead_code, reason = "each test file uses its part")]

use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, MemoryKind, Topology};
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::zone::MigrateType;
use framewright::{
    AcceptError, AcceptMemory, BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform, Request,
};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering as StdOrdering};

#[cfg(loom)]
use loom::{sync::Notify, thread};
#[cfg(shuttle)]
use shuttle::thread;

/// The frame of the first block: 4 GiB, so that there is one zone.
pub const START: u64 = 1 << 20;
/// The number of frames behind the blocks for tables, including those that bring-up leaves unused.
const TABLE_PAGES: u64 = 64;

/// The machine's manager.
pub type Model = Manager<Machine>;

/// The ways to give frames back: a copy of the testkit's type, which the model checkers do not
/// have.
pub trait Owner {
    /// `Manager::free`, past the caches.
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError>;
    /// `Manager::free`.
    fn give_back_any(&self, range: PfnRange) -> Result<(), FreeError>;
    /// `Manager::free_order`.
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError>;
}

impl Owner for Model {
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: an execution owns all memory of its machine and touches none of it (invariant
        // 42).
        unsafe { self.free_past_caches(range) }
    }

    fn give_back_any(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: as above (invariant 42).
        unsafe { self.free(range) }
    }

    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: as above (invariant 42).
        unsafe { self.free_order(start, order) }
    }
}

#[cfg(loom)]
loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
    static IRQ_DEPTH: Cell<usize> = Cell::new(0);
}
#[cfg(shuttle)]
shuttle::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
    static IRQ_DEPTH: Cell<usize> = Cell::new(0);
}

/// The size of a machine.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The number of whole blocks, from [`START`] on.
    pub blocks: u64,
    pub cpus: u32,
    /// The number of blocks before [`START`], which are a zone of their own.
    pub below: u64,
    /// All of the memory lies 1 GiB higher, and those blocks are a part of the same zone.
    pub divided: bool,
    /// The number of blocks, from the first one on, that have to be accepted.
    pub unaccepted: u64,
    /// The one of these blocks that cannot be accepted.
    pub failing: Option<u64>,
}

impl Shape {
    /// A machine of one zone.
    pub const fn new(blocks: u64, cpus: u32) -> Self {
        Self { blocks, cpus, below: 0, divided: false, unaccepted: 0, failing: None }
    }

    /// Returns the start of the blocks.
    const fn border(self) -> u64 {
        if self.divided { START + (1 << 18) } else { START }
    }

    const fn start(self) -> u64 {
        self.border() - self.below * 512
    }

    const fn end(self) -> u64 {
        self.border() + self.blocks * 512 + TABLE_PAGES
    }
}

/// Memory that one execution after the other uses.
#[derive(Clone, Copy)]
pub struct Memory(NonNull<u8>);

// SAFETY: a pointer to memory that lives for ever; one execution at a time uses it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(shape: Shape) -> Self {
        let bytes = usize::try_from((shape.end() - shape.start()) << 12).expect("small");
        let layout = Layout::from_size_align(bytes, 4096).expect("small");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Self(NonNull::new(start).expect("there is memory"))
    }
}

/// The platform of one execution.
pub struct Machine {
    memory: Memory,
    shape: Shape,
    /// The frames that acceptance was asked for, by block.
    asked: [AtomicU64; 8],
    /// A waiting CPU sleeps until another has released something: two CPUs that only yield to each
    /// other would do so for ever.
    #[cfg(loom)]
    bells: Vec<Notify>,
}

impl Machine {
    #[cfg(loom)]
    fn new(memory: Memory, shape: Shape) -> Self {
        // With two CPUs, one never waits, so yielding is enough, unless each attempt of the waiter
        // takes many steps.
        let is_long = shape.cpus > 2 || shape.unaccepted != 0;
        let bells = if is_long { shape.cpus } else { 0 };
        let bells = (0..bells).map(|_| Notify::new()).collect();
        Self { memory, shape, asked: [const { AtomicU64::new(0) }; 8], bells }
    }

    #[cfg(shuttle)]
    fn new(memory: Memory, shape: Shape) -> Self {
        Self { memory, shape, asked: [const { AtomicU64::new(0) }; 8] }
    }

    #[cfg(loom)]
    pub fn ring(&self) {
        for (cpu, bell) in (0..).zip(&self.bells) {
            if cpu != this_cpu() {
                bell.notify();
            }
        }
    }

    #[cfg(shuttle)]
    #[expect(
        clippy::unused_self,
        reason = "shuttle's schedulers are fair enough to those who yield"
    )]
    pub fn ring(&self) {}
}

fn this_cpu() -> u32 {
    CPU.with(Cell::get)
}

// SAFETY: the memory lives for ever, one execution at a time uses it, and it is seen at one offset;
// a thread is a CPU of its own number, and there are no interrupts. The owner of a cache has a
// fence of its own in a model, so that one here is a barrier.
unsafe impl Platform for Machine {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let start = self.shape.start() << 12;
        assert!(start <= pa && pa < self.shape.end() << 12, "direct({pa:#x})");
        let offset = usize::try_from(pa - start).expect("small");
        // SAFETY: the offset is inside the memory.
        unsafe { self.memory.0.add(offset) }
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(this_cpu())
    }

    unsafe fn unpin(&self, cpu: PinnedCpu) {
        assert_eq!(cpu.index(), this_cpu(), "unpinned on another CPU");
        self.ring();
    }

    fn irq_save(&self) -> IrqState {
        IRQ_DEPTH.with(|depth| IrqState(depth.replace(depth.get() + 1)))
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        IRQ_DEPTH.with(|depth| {
            assert_eq!(depth.get(), state.0 + 1, "interrupts restored out of order");
            depth.set(state.0);
        });
        self.ring();
    }

    fn cpus(&self) -> u32 {
        self.shape.cpus
    }

    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        (self.shape.unaccepted != 0).then_some(self)
    }

    fn can_wait(&self) -> bool {
        IRQ_DEPTH.with(Cell::get) == 0
    }

    fn cpu_barrier(&self) {
        assert!(self.can_wait(), "cpu_barrier was called where waiting is not allowed");
        #[cfg(loom)]
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn relax(&self) {
        #[cfg(loom)]
        if let Some(bell) = self.bells.get(this_cpu() as usize) {
            return bell.wait();
        }
        thread::yield_now();
    }
}

// SAFETY: the memory is memory all the time.
unsafe impl AcceptMemory for Machine {
    fn accept(&self, range: PfnRange) -> Result<(), AcceptError> {
        assert_eq!(IRQ_DEPTH.with(Cell::get), 0, "{range:?} is accepted with a lock held");
        let first = (range.start.0 - START) / 512;
        assert!(range.start.0.is_multiple_of(512) && range.end.0.is_multiple_of(512));
        for block in first..first + range.pages() / 512 {
            assert!(block < self.shape.unaccepted, "block {block} needs no accepting");
            let index = usize::try_from(block).expect("few blocks");
            let before = self.asked[index].fetch_add(1, StdOrdering::Relaxed);
            assert_eq!(before, 0, "block {block} is accepted a second time");
            if self.shape.failing == Some(block) {
                return Err(AcceptError { accepted_pages: (block - first) * 512 });
            }
        }
        Ok(())
    }
}

/// Returns the pages that are free, or will be when they are accepted.
fn free_pages(model: &Model) -> u64 {
    let totals = model.totals();
    totals.free_pages + totals.unaccepted_pages
}

/// Brings the machine up, runs `body` on CPU 0, gives back the runs that it returns, and accounts
/// for every page.
pub fn execute(memory: Memory, shape: Shape, body: &dyn Fn(&'static Model) -> Vec<PfnRange>) {
    let machine = Box::into_raw(Box::new(Machine::new(memory, shape)));
    // SAFETY: it lives until the end of this function, and the manager is dropped before.
    let platform: &'static Machine = unsafe { &*machine };
    let manager = Box::into_raw(bring_up(platform));
    // SAFETY: as above; threads are joined in `body`.
    let model: &'static Model = unsafe { &*manager };
    let free = set_aside(model);
    settle(model, free);

    let held = body(model);
    assert_disjoint(&held);
    let held_pages: u64 = held.iter().map(|range| range.pages()).sum();
    let lost = model.acceptance().lost_pages();
    let free = free - lost;
    assert_eq!(
        free_pages(model) + model.caches().pages() + held_pages,
        free,
        "pages are lost or there twice"
    );
    for range in held {
        model.give_back(range).expect("it is held");
    }
    settle(model, free);
    // SAFETY: nobody has it any more.
    drop(unsafe { Box::from_raw(manager) });
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(machine) });
}

/// The stack of CPU 0, in words; loom's threads have only 32 KiB by default. Bring-up takes about
/// as much when the compiler moves a manager (5 KB) from stack frame to stack frame.
#[cfg(loom)]
const STACK_WORDS: usize = 1 << 14;

#[inline(never)]
fn bring_up(platform: &'static Machine) -> Box<Model> {
    let mut ranges = [MapRange::EMPTY; 4];
    let mut builder = MapBuilder::new(&mut ranges);
    let start = platform.shape.start();
    builder
        .add(start << 12, (platform.shape.end() - start) << 12, MemoryKind::Conventional)
        .expect("a map");
    let unaccepted = platform.shape.unaccepted * 512;
    builder.add(START << 12, unaccepted << 12, MemoryKind::Unaccepted).expect("a map");
    let map = builder.finish().expect("a map");
    let mut claims = [MemoryAffinity::EMPTY; 2];
    let mut topology = Topology::new(&mut claims);
    for _ in 0..platform.shape.cpus {
        topology.add_cpu(NodeId::ZERO).expect("few CPUs");
    }
    let mut parameters = parameters();
    parameters.zone_parts = platform.shape.divided.then_some(2);
    let mut storage = Box::new(MemblockStorage::new());
    // SAFETY: the memory is the model's, and the manager of the execution before is gone.
    let early = unsafe { Memblock::new(platform, &mut storage, map, &topology) }.expect("early");
    let input = BringUp { parameters: &parameters, started_ns: None };
    Box::new(Manager::bring_up(early, &input).expect("bring-up"))
}

/// Removes all watermarks: ordinary requests can get every page.
#[inline(never)]
fn parameters() -> Box<Parameters> {
    let line = "min_free_kbytes=0 watermark_scale_factor=1";
    Box::new(Parameters::parse(line, &mut |problem| panic!("{problem}")))
}

/// Takes the table frames that bring-up left unused out of the game; returns how many pages are
/// free then.
fn set_aside(model: &Model) -> u64 {
    let shape = model.platform().shape;
    let end = shape.border() + shape.blocks * 512;
    let mut left = [Pfn(0); 64];
    let managed = end - shape.start();
    let spare = free_pages(model) - managed;
    let spare = usize::try_from(spare).expect("the tables fit behind the blocks");
    // The fullest block is used first, which is this one, in the part that the last CPU asks first.
    CPU.with(|cpu| cpu.set(shape.cpus - 1));
    let taken = model.allocate_bulk(&Request::pages(1), &mut left[..spare]).expect("they are free");
    CPU.with(|cpu| cpu.set(0));
    assert!(taken == spare && left[..spare].iter().all(|page| page.0 >= end), "{left:?}");
    managed
}

fn settle(model: &Model, free: u64) {
    model.drain().expect("only good frames are cached");
    let counts = model.verify().unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((counts, model.caches().pages()), (model.totals(), 0));
    assert_eq!(free_pages(model), free);
}

pub fn assert_disjoint(ranges: &[PfnRange]) {
    for (index, range) in ranges.iter().enumerate() {
        for other in &ranges[..index] {
            assert!(
                range.intersection(*other).is_empty(),
                "{range:?} and {other:?} were given both"
            );
        }
    }
}

pub fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Returns the frames `start..start + 2^of`, counted from the first block.
pub fn run(start: u64, of: u8) -> PfnRange {
    PfnRange::new(START + start, START + start + (1 << of))
}

/// Allocates through the cache, where the order has one.
pub fn take(model: &Model, of: u8, migrate_type: MigrateType) -> Option<PfnRange> {
    let start = model.allocate_order(order(of), migrate_type).ok()?;
    Some(PfnRange { start, end: start.add(1 << of) })
}

/// Allocates movable memory through the cache, where the order has one.
pub fn take_movable(model: &Model, of: u8) -> Option<PfnRange> {
    take(model, of, MigrateType::Movable)
}

/// Gives back a run from [`take`].
pub fn give(model: &Model, range: PfnRange) {
    model
        .give_back_order(range.start, Order::for_pages(range.pages()).expect("an order"))
        .expect("it is held");
}

/// Takes everything that can be allocated with one type.
pub fn take_all(model: &Model) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for of in (0..=18).rev() {
        while let Ok(range) = model.allocate_past_caches(&Request::new(order(of))) {
            taken.push(range);
        }
    }
    taken
}

/// Allocates a run from the zone, past the cache.
pub fn take_past(model: &Model, of: u8) -> PfnRange {
    model.allocate_past_caches(&Request::new(order(of))).expect("there is memory")
}

/// Starts a thread that is CPU `cpu`.
pub fn on<T: Send + 'static>(
    model: &'static Model,
    cpu: u32,
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::spawn(move || {
        CPU.with(|number| number.set(cpu));
        let result = body();
        // Wakes CPUs that wait for something released since the last bell.
        model.platform().ring();
        result
    })
}

/// Counts the executions in which a condition held and those in which it did not: an assertion that
/// allows two outcomes says little if only one of them ever happens.
pub struct BothWays([AtomicU64; 2]);

impl BothWays {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 2])
    }

    pub fn count(&self, holds: bool) {
        self.0[usize::from(holds)].fetch_add(1, StdOrdering::Relaxed);
    }

    /// Panics unless both happened.
    pub fn assert_both(&self) {
        let [not, held] = [&self.0[0], &self.0[1]].map(|count| count.load(StdOrdering::Relaxed));
        assert!(held != 0 && not != 0, "{held} executions one way, {not} the other");
    }
}

/// Runs every order of events that the memory model allows, with at most `preemptions` preemptions
/// of threads that could have gone on, if a number is given.
#[cfg(loom)]
pub fn explore(
    shape: Shape,
    preemptions: Option<usize>,
    body: impl Fn(&'static Model) -> Vec<PfnRange> + Send + Sync + 'static,
) {
    let memory = Memory::new(shape);
    let mut model = loom::model::Builder::new();
    // Without a bound here, the environment may still set one.
    model.preemption_bound = preemptions.or(model.preemption_bound);
    model.max_branches = 20_000;
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (counted, started) = (std::sync::Arc::clone(&executions), std::time::Instant::now());
    let body = std::sync::Arc::new(body);
    model.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let body = std::sync::Arc::clone(&body);
        // No thread waits for it: an execution ends when all of its threads have ended.
        thread::Builder::new()
            .stack_size(STACK_WORDS)
            .spawn(move || execute(memory, shape, &*body))
            .expect("a thread");
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions in {:.1} s", started.elapsed().as_secs_f64());
}
