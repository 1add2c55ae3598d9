//! CPUs whose TLBs keep everything about real page tables that hardware may keep until a flush
//! names it.
//!
//! Every CPU caches translations and steps of walks and drops none by itself. Odd CPUs cache large
//! pages as 4 KiB pages, as real ones may. With contexts (PCID), each context of a CPU has its own
//! translations and steps, and a CPU may change context at each access. CPUs sleep between any two
//! accesses and do their deferred flushes before the next. Each cached entry records the generation
//! of its frame, so that a use after free of the frame is found.

use crate::common::table_memory::Memory;
use framewright::Platform;
use framewright::units::{PAGE_SIZE, Pfn};
use framewright_arch::paging::{Entry, PageSize, TableMemory, index_of};
use framewright_arch::paging::{FlushRequest, FlushTlb, LocalFlush, LocalTlb, MAX_RANGES};
use framewright_testkit::{AccessFault, FakeMachine, FrameLedger};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SECTION: u64 = PageSize::Medium.bytes();
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = (1 << 52) - (1 << 12);
const KNOWN: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | 1 << 8 | NO_EXECUTE | ADDRESS;

/// A page as a CPU has cached it.
#[derive(Clone, Copy)]
struct Page {
    frame: Pfn,
    write: bool,
    generation: u64,
}

/// A step of a walk: a section's table, and whether anything below it may be written.
#[derive(Clone, Copy)]
struct Step {
    table: Pfn,
    write: bool,
    generation: u64,
}

/// What one CPU has cached in one context.
#[derive(Clone, Default)]
struct Tlb {
    /// By address.
    pages: HashMap<u64, Page>,
    /// By address; each of the 512 pages.
    large: HashMap<u64, Vec<Page>>,
    steps: HashMap<u64, Step>,
}

impl Tlb {
    fn forget_page(&mut self, address: u64) {
        self.pages.remove(&address);
        self.large.remove(&(address & !(SECTION - 1)));
    }
}

/// One CPU.
struct Cpu {
    /// By context.
    tlbs: Vec<Tlb>,
    /// The context the CPU is in.
    current: usize,
    /// Whether the CPU slept while translations changed, so that it flushes everything when it
    /// wakes.
    is_behind: bool,
}

impl Cpu {
    fn new(contexts: usize) -> Self {
        Self { tlbs: vec![Tlb::default(); contexts], current: 0, is_behind: false }
    }

    fn forget_all(&mut self) {
        self.tlbs.fill(Tlb::default());
    }

    /// Does what [`LocalTlb::flush_local`] does on a CPU with contexts. INVLPG does what the manual
    /// promises and no more. The vmemmap's pages are global.
    fn forget_in_contexts(&mut self, request: FlushRequest<'_>) {
        match LocalTlb::cheapest(request, true, true) {
            LocalFlush::Everything => self.forget_all(),
            LocalFlush::NotGlobal => panic!("the vmemmap's pages are global"),
            LocalFlush::Pages(ranges) => {
                for address in ranges.iter().flat_map(|range| range.addresses()) {
                    self.tlbs.iter_mut().for_each(|tlb| tlb.forget_page(address));
                    self.tlbs[self.current].steps.clear();
                }
            }
        }
    }
}

/// What flushes fail to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgets {
    /// Nothing.
    Nothing,
    /// Everything.
    Everything,
    /// Telling the other CPUs.
    OtherCpus,
    /// Flushing the last page of a range.
    LastPage,
    /// Flushing cached steps of walks.
    Steps,
    /// Waking sleeping CPUs where that is needed.
    Sleepers,
}

/// A flush that was requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A number of ranges and their number of pages in all.
    Ranges(usize, u64),
    /// All.
    Everything,
}

/// See the module documentation.
pub struct SoftwareCpus {
    memory: Memory,
    ledger: FrameLedger,
    root: u64,
    forgets: Forgets,
    contexts: usize,
    cpus: Mutex<Vec<Cpu>>,
    asked: Mutex<Vec<Asked>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SoftwareCpus {
    /// Creates all CPUs of the machine, on the tables at `root`.
    pub fn new(
        machine: &'static FakeMachine,
        ledger: FrameLedger,
        root: u64,
        forgets: Forgets,
    ) -> Self {
        let cpus = Mutex::new((0..machine.cpus()).map(|_| Cpu::new(1)).collect());
        Self {
            memory: Memory(machine),
            ledger,
            root,
            forgets,
            contexts: 1,
            cpus,
            asked: Mutex::default(),
        }
    }

    /// Gives each CPU this many contexts and lets it flush as [`LocalTlb`] tells it to.
    pub fn with_contexts(mut self, contexts: usize) -> Self {
        self.contexts = contexts;
        lock(&self.cpus).iter_mut().for_each(|cpu| *cpu = Cpu::new(contexts));
        self
    }

    /// Returns the flushes that were requested since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut lock(&self.asked))
    }

    /// Reads 64 bits as CPU `cpu` does.
    pub fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        let page = self.translate(cpu, address)?;
        Ok(self.memory.0.load(page.frame.address() + address as u64 % PAGE_SIZE))
    }

    /// Writes 64 bits as CPU `cpu` does.
    pub fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        let page = self.translate(cpu, address)?;
        if !page.write {
            return Err(AccessFault::ReadOnly { cpu, address, frame: page.frame });
        }
        // SAFETY: the frame belongs to the vmemmap, since it is out and mapped writable; it is
        // reached by such words only.
        unsafe { self.memory.0.store(page.frame.address() + address as u64 % PAGE_SIZE, value) };
        Ok(())
    }

    fn generation(&self, frame: Pfn) -> u64 {
        // A frame never handed out gets 0, so that an entry that names a free frame is found, too.
        self.ledger.generation(frame).unwrap_or(0)
    }

    fn check(
        &self,
        cpu: u32,
        address: usize,
        frame: Pfn,
        generation: u64,
    ) -> Result<(), AccessFault> {
        if self.ledger.generation(frame) == Some(generation) {
            return Ok(());
        }
        Err(AccessFault::Stale { cpu, address, frame })
    }

    fn page(&self, frame: Pfn, write: bool) -> Page {
        Page { frame, write, generation: self.generation(frame) }
    }

    fn translate(&self, cpu: u32, address: usize) -> Result<Page, AccessFault> {
        let virtual_address = address as u64 & !(PAGE_SIZE - 1);
        let section = virtual_address & !(SECTION - 1);
        let mut cpus = lock(&self.cpus);
        self.look_at_sleepers(&cpus);
        let remembered = &mut cpus[cpu as usize];
        if std::mem::take(&mut remembered.is_behind) {
            remembered.forget_all();
        }
        remembered.current = (remembered.current + 1) % self.contexts;
        let tlb = &mut remembered.tlbs[remembered.current];
        let index = index_of(virtual_address, 1);
        let page = match (tlb.pages.get(&virtual_address), tlb.large.get(&section)) {
            (Some(page), _) => *page,
            (None, Some(pages)) => pages[index],
            (None, None) => self.walk(tlb, cpu, address)?,
        };
        self.check(cpu, address, page.frame, page.generation)?;
        Ok(page)
    }

    /// Walks from the deepest cached step, and caches every step on the way.
    fn walk(&self, tlb: &mut Tlb, cpu: u32, address: usize) -> Result<Page, AccessFault> {
        let virtual_address = address as u64 & !(PAGE_SIZE - 1);
        let section = virtual_address & !(SECTION - 1);
        let step = if let Some(step) = tlb.steps.get(&section) {
            *step
        } else {
            let (entry, write) = self.directory_entry(cpu, address)?;
            let frame = Pfn::containing(entry.address());
            if entry.is_page(2) {
                let pages: Vec<Page> =
                    (0..512).map(|offset| self.page(frame.add(offset), write)).collect();
                let page = pages[index_of(virtual_address, 1)];
                if cpu.is_multiple_of(2) {
                    tlb.large.insert(section, pages);
                } else {
                    tlb.pages.insert(virtual_address, page);
                }
                return Ok(page);
            }
            let step = Step { table: frame, write, generation: self.generation(frame) };
            tlb.steps.insert(section, step);
            step
        };
        self.check(cpu, address, step.table, step.generation)?;
        let entry =
            self.read(step.table.address(), index_of(virtual_address, 1), 1, cpu, address)?;
        let page = self.page(Pfn::containing(entry.address()), step.write && entry.access().write);
        tlb.pages.insert(virtual_address, page);
        Ok(page)
    }

    /// Returns the directory's entry, and whether anything below it may be written.
    fn directory_entry(&self, cpu: u32, address: usize) -> Result<(Entry, bool), AccessFault> {
        let (mut table, mut write) = (self.root, true);
        for level in [4, 3] {
            let entry = self.read(table, index_of(address as u64, level), level, cpu, address)?;
            assert!(!entry.is_page(level), "a page of level {level} at {address:#x}");
            write &= entry.access().write;
            table = entry.address();
            assert!(
                self.ledger.generation(Pfn::containing(table)).is_some(),
                "an upper table was freed"
            );
        }
        let entry = self.read(table, index_of(address as u64, 2), 2, cpu, address)?;
        Ok((entry, write && entry.access().write))
    }

    /// Reads an entry as the CPU demands it: no reserved bit set, and already marked as accessed,
    /// so that the CPU need not write.
    fn read(
        &self,
        table: u64,
        index: usize,
        level: u32,
        cpu: u32,
        address: usize,
    ) -> Result<Entry, AccessFault> {
        let entry = self.memory.read(table, index);
        if !entry.is_present() {
            return Err(AccessFault::Beyond { cpu, address });
        }
        assert_eq!(
            entry.0 & !KNOWN,
            0,
            "{entry:?} of level {level} has bits that are reserved or unknown"
        );
        assert_ne!(
            entry.0 & ACCESSED,
            0,
            "{entry:?} of level {level} would be written by a CPU that uses it"
        );
        if entry.is_page(level) {
            assert_ne!(entry.0 & NO_EXECUTE, 0, "{entry:?}: descriptors are no code");
            assert_eq!(
                entry.0 & DIRTY != 0,
                entry.access().write,
                "{entry:?}: dirty is for what may be written"
            );
            assert!(
                level == 1 || entry.address().is_multiple_of(SECTION),
                "{entry:?}: a large page is aligned"
            );
        }
        Ok(entry)
    }
}

impl SoftwareCpus {
    fn forget(&self, cpu: &mut Cpu, request: FlushRequest<'_>) {
        if self.contexts > 1 {
            return cpu.forget_in_contexts(request);
        }
        match request {
            FlushRequest::Everything => cpu.forget_all(),
            FlushRequest::Ranges(ranges) => {
                assert!(ranges.len() <= MAX_RANGES);
                let tlb = &mut cpu.tlbs[0];
                for range in ranges {
                    let skipped = if self.forgets == Forgets::LastPage { PAGE_SIZE } else { 0 };
                    for address in range.addresses().filter(|address| address + skipped < range.end)
                    {
                        tlb.forget_page(address);
                        // INVLPG of one page drops all cached steps.
                        if self.forgets != Forgets::Steps {
                            tlb.steps.clear();
                        }
                    }
                }
            }
        }
    }

    /// Whether flushes may leave a CPU asleep: odd CPUs sleep between any two accesses.
    fn sleeps(cpu: usize) -> bool {
        cpu % 2 == 1
    }

    /// Flushes on all CPUs but those that may stay asleep.
    fn tell(&self, request: FlushRequest<'_>, spares_sleepers: bool) {
        if self.forgets == Forgets::Everything {
            return;
        }
        let mut cpus = lock(&self.cpus);
        self.look_at_sleepers(&cpus);
        let count = if self.forgets == Forgets::OtherCpus { 1 } else { cpus.len() };
        for (number, cpu) in cpus[..count].iter_mut().enumerate() {
            if spares_sleepers && Self::sleeps(number) {
                cpu.is_behind = true;
            } else {
                self.forget(cpu, request);
            }
        }
        lock(&self.asked).push(match request {
            FlushRequest::Everything => Asked::Everything,
            FlushRequest::Ranges(ranges) => {
                Asked::Ranges(ranges.len(), ranges.iter().map(|range| range.pages()).sum())
            }
        });
    }

    /// A sleeping CPU may start walks speculatively, so the tables it has cached must still be
    /// tables.
    fn look_at_sleepers(&self, cpus: &[Cpu]) {
        let sleeping = cpus.iter().filter(|cpu| cpu.is_behind).flat_map(|cpu| &cpu.tlbs);
        for step in sleeping.flat_map(|tlb| tlb.steps.values()) {
            let generation = self.ledger.generation(step.table);
            assert_eq!(
                generation,
                Some(step.generation),
                "a sleeping CPU walks a table that was given away"
            );
        }
    }
}

// SAFETY: the CPUs are simulated, and nothing else accesses the vmemmap's addresses; the ledger
// catches those that flush less than asked.
unsafe impl FlushTlb for SoftwareCpus {
    fn flush(&self, request: FlushRequest<'_>) {
        self.tell(request, self.forgets == Forgets::Sleepers);
    }

    fn flush_pages(&self, request: FlushRequest<'_>) {
        self.tell(request, true);
    }
}
