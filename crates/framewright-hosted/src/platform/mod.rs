//! A Linux process in place of a machine.
//!
//! Physical memory is one reserved anonymous mapping: any number of addresses, of which only the
//! touched ones cost memory. CPUs are threads. There are no interrupts; turning them off is only
//! recorded, so that nesting can be checked.

mod accept;
mod barrier;
mod cpus;
mod entropy;
mod error;
mod host_nodes;
mod layout;
mod mapping;
mod own_process;
mod reclaimer;
mod resident;
mod stores;
mod vmemmap;

pub use error::HostedError;
pub use host_nodes::HostNodes;
pub use layout::Layout;

use accept::Acceptance;
use barrier::Barrier;
use cpus::Cpus;
use entropy::entropy;
use framewright::AcceptMemory;
use framewright::firmware::MemoryMap;
use framewright::platform::{IrqState, PinnedCpu, Platform};
use framewright::units::{BLOCK_SIZE, NodeId, PAGE_SIZE, PhysRange};
use framewright::vmemmap_space::{BlockRange, VmemmapSpace};
use layout::Runs;
use mapping::Mapping;
pub(crate) use own_process::OwnProcess;
use reclaimer::Reclaimer;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::time::Instant;
use vmemmap::Vmemmap;

/// How far an askew machine is shifted: an odd number of pages.
const SKEW: usize = 0x35_7000;

/// A Linux process as a machine. See the module documentation.
///
/// [`HostedPlatform::new`] makes one that lives as long as the process, as a manager needs it.
/// Programs that make many machines one after another use [`HostedPlatform::open`] and drop them,
/// because a process has addresses for only a few machines of many TiB.
#[derive(Debug)]
pub struct HostedPlatform {
    mapping: Mapping,
    runs: Runs,
    layout: Layout,
    /// Below this, offset and physical address are equal.
    identity_end: u64,
    /// Present memory, sorted, disjoint and joined.
    present: Vec<PhysRange>,
    limit: u64,
    cpus: Cpus,
    /// The node of each CPU. CPUs past its end are on node 0. If it is empty, the nodes are
    /// unknown.
    cpu_nodes: Vec<NodeId>,
    barrier: Barrier,
    /// Whether there are more CPUs than the host has, so that a busy wait must let other threads
    /// run.
    oversubscribed: bool,
    started: Instant,
    vmemmap: Option<Vmemmap>,
    acceptance: Option<Acceptance>,
    /// The thread that reclaims in the background.
    reclaimer: Reclaimer,
}

/// Proof that the calling thread is a CPU. It stays on its thread; dropping it gives the number
/// back.
#[derive(Debug)]
#[must_use = "dropping it gives the CPU number back"]
pub struct CpuToken<'a> {
    platform: &'a HostedPlatform,
    index: u32,
    /// The number belongs to the thread, so the token must not leave it.
    thread_bound: PhantomData<*mut ()>,
}

impl CpuToken<'_> {
    /// The number of the CPU.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for CpuToken<'_> {
    fn drop(&mut self) {
        self.platform.cpus.leave();
    }
}

impl HostedPlatform {
    /// Makes a machine with the present memory of `map` and `cpus` CPUs. It is never dropped,
    /// because a manager refers to its platform for ever.
    ///
    /// # Errors
    /// As for [`HostedPlatform::open`].
    pub fn new(map: MemoryMap<'_>, cpus: u32) -> Result<&'static Self, HostedError> {
        Self::open(map, cpus).map(Self::leak)
    }

    /// Like [`HostedPlatform::new`], but owned: its addresses are released when it is dropped.
    ///
    /// # Errors
    /// [`HostedError::NoMemory`], [`HostedError::CpuCount`], [`HostedError::NoBarrier`];
    /// [`HostedError::CannotReserve`] if the memory does not fit the process's addresses even
    /// without its holes, and [`HostedError::CannotOpen`] if the system commits no memory to it.
    pub fn open(map: MemoryMap<'_>, cpus: u32) -> Result<Self, HostedError> {
        Self::open_at(map, cpus, 0, false)
    }

    /// Like [`HostedPlatform::open`], but with memory that could be shared with other processes, as
    /// that of virtual machines often is.
    ///
    /// # Errors
    /// As for [`HostedPlatform::open`].
    pub fn open_shared(map: MemoryMap<'_>, cpus: u32) -> Result<Self, HostedError> {
        Self::open_at(map, cpus, 0, true)
    }

    /// Like [`HostedPlatform::open`], but shifted, so that physical addresses have no more than
    /// page alignment in the process. Code that confuses the two kinds of address then fails.
    ///
    /// # Errors
    /// As for [`HostedPlatform::open`].
    pub fn open_askew(map: MemoryMap<'_>, cpus: u32) -> Result<Self, HostedError> {
        Self::open_at(map, cpus, SKEW, false)
    }

    fn open_at(
        map: MemoryMap<'_>,
        cpus: u32,
        skew: usize,
        shared: bool,
    ) -> Result<Self, HostedError> {
        if cpus == 0 || cpus > crate::source::MAX_CPUS {
            return Err(HostedError::CpuCount { cpus });
        }
        if map.present_bytes() == 0 {
            return Err(HostedError::NoMemory);
        }
        let barrier = Barrier::find(cpus).map_err(|error| HostedError::NoBarrier { error })?;
        let (runs, layout, mapping) = reserve(map, skew, shared)?;
        for block in layout::blocks(map, 0) {
            let offset = runs.offset(block.start).ok_or(HostedError::NotMemory { range: block })?;
            mapping
                .open(offset, block.size())
                .map_err(|error| HostedError::CannotOpen { range: block, error })?;
        }
        let host_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            identity_end: runs.identity_end(),
            mapping,
            runs,
            layout,
            present: present(map),
            limit: map.present_end(),
            cpus: Cpus::new(cpus),
            cpu_nodes: Vec::new(),
            barrier,
            oversubscribed: cpus as usize > host_cpus,
            started: Instant::now(),
            vmemmap: None,
            acceptance: None,
            reclaimer: Reclaimer::default(),
        })
    }

    /// Sets the node of each CPU, from CPU 0 on, as
    /// [`Machine::cpu_nodes`](crate::Machine::cpu_nodes) returns them. CPUs that are not named are
    /// on node 0.
    #[must_use]
    pub fn with_cpu_nodes(mut self, nodes: &[NodeId]) -> Self {
        self.cpu_nodes = nodes.iter().copied().take(self.cpus.count() as usize).collect();
        self
    }

    /// Gives the machine a vmemmap ([`Platform::vmemmap_space`]): addresses of this process for 64
    /// bytes a frame, backed when they are written. Unless `is_zeroed`, the manager assumes any
    /// content, as on a real machine. With `is_guarded` an access to an absent part stops the
    /// process; this costs a system call for each section and makes scattered parts slow.
    ///
    /// # Errors
    /// [`HostedError::CannotReserve`], [`HostedError::CannotOpen`].
    pub fn with_vmemmap(mut self, is_zeroed: bool, is_guarded: bool) -> Result<Self, HostedError> {
        self.vmemmap = Some(Vmemmap::reserve(self.limit, is_zeroed, is_guarded)?);
        Ok(self)
    }

    /// Returns how many bytes of the vmemmap the operating system backs now; 0 without a vmemmap.
    ///
    /// # Errors
    /// [`HostedError::CannotMeasure`] if `/proc/self/smaps` cannot be read.
    pub fn vmemmap_resident_bytes(&self) -> Result<u64, HostedError> {
        let bytes = self.vmemmap.as_ref().map_or(Ok(0), Vmemmap::resident_bytes);
        bytes.map_err(|error| HostedError::CannotMeasure { error })
    }

    /// Returns how many bytes a vmemmap for all present memory takes.
    #[must_use]
    pub fn vmemmap_bytes(&self) -> u64 {
        self.present.iter().map(|range| range.size() / PAGE_SIZE * 64).sum()
    }

    /// Fills the part of the vmemmap that describes present memory with `byte`, so that it is
    /// backed and dirty.
    ///
    /// # Safety
    /// No manager uses the vmemmap: none was brought up yet, or none uses it any more.
    pub unsafe fn prefault_vmemmap(&self, byte: u8) {
        let Some(vmemmap) = &self.vmemmap else { return };
        for blocks in self.present_blocks() {
            // SAFETY: the caller vouches that the vmemmap is not in use.
            unsafe { vmemmap.fill(blocks, byte) };
        }
    }

    /// Returns the address and size in bytes of each part of the vmemmap that describes present
    /// memory, ascending and disjoint; none without a vmemmap. They may be touched only while no
    /// manager uses the vmemmap.
    pub fn vmemmap_parts(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let vmemmap = self.vmemmap.as_ref();
        self.present_blocks().filter_map(move |blocks| vmemmap?.address(blocks))
    }

    /// Returns the blocks with present memory, ascending, each once.
    fn present_blocks(&self) -> impl Iterator<Item = BlockRange> + '_ {
        let mut next = 0;
        self.present.iter().filter_map(move |range| {
            let block = |address: u64| u32::try_from(address / BLOCK_SIZE).unwrap_or(u32::MAX);
            let (start, end) =
                (block(range.start).max(next), block(range.end.next_multiple_of(BLOCK_SIZE)));
            next = end.max(next);
            (start < end).then(|| BlockRange::new(start, end))
        })
    }

    /// Gives the memory behind the vmemmap back to the operating system. It reads as zero when next
    /// touched.
    ///
    /// # Safety
    /// As for [`prefault_vmemmap`](Self::prefault_vmemmap).
    ///
    /// # Errors
    /// What the operating system said.
    pub unsafe fn discard_vmemmap(&self) -> std::io::Result<()> {
        // SAFETY: the caller vouches that the vmemmap is not in use.
        self.vmemmap.as_ref().map_or(Ok(()), |vmemmap| unsafe { vmemmap.discard() })
    }

    /// Gives the memory behind the descriptors of some blocks back to the operating system, with
    /// one system call for each part. For measurements.
    ///
    /// # Safety
    /// No other code reads or writes these descriptors meanwhile or relies on their content: they
    /// belong to free memory and to no split block.
    ///
    /// # Errors
    /// What the operating system said.
    pub unsafe fn discard_vmemmap_parts(&self, parts: &[BlockRange]) -> std::io::Result<()> {
        let Some(vmemmap) = &self.vmemmap else { return Ok(()) };
        // SAFETY: the caller upholds it.
        parts.iter().try_for_each(|&blocks| unsafe { vmemmap.discard_part(blocks) })
    }

    /// Fills the descriptors of some blocks with `byte`, so that they are backed and dirty.
    ///
    /// # Safety
    /// As for [`discard_vmemmap_parts`](Self::discard_vmemmap_parts).
    pub unsafe fn prefault_vmemmap_parts(&self, parts: &[BlockRange], byte: u8) {
        if let Some(vmemmap) = &self.vmemmap {
            // SAFETY: the caller upholds it.
            parts.iter().for_each(|&blocks| unsafe { vmemmap.fill(blocks, byte) });
        }
    }

    /// Makes an owned machine live as long as the process.
    #[must_use]
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Makes the calling thread CPU `index` until the token is dropped. Waits for a thread that
    /// only borrows the number while it is pinned.
    ///
    /// A thread that never enters may use the machine, too: each outermost [`Platform::pin`]
    /// borrows a free number, preferably 0 on the thread that made the machine, and waits while
    /// none is free. So leave numbers free for threads that do not enter, let them enter, or
    /// [lend](Self::lend_cpu) them numbers. Helpers ([`HostedHelpers`](crate::HostedHelpers)) do
    /// not enter, and a thread that waits for its job lends nothing: it must not have entered
    /// unless a number stays free.
    ///
    /// # Errors
    /// [`HostedError::NoSuchCpu`], [`HostedError::CpuTaken`], and [`HostedError::AlreadyCpu`] if
    /// this thread is a CPU.
    pub fn enter_cpu(&self, index: u32) -> Result<CpuToken<'_>, HostedError> {
        self.cpus.enter(index)?;
        Ok(CpuToken { platform: self, index, thread_bound: PhantomData })
    }

    /// How physical addresses lie in the process.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How many bytes of the process's addresses the machine takes.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.runs.span()
    }

    /// Present memory: ascending, disjoint, in whole pages.
    #[must_use]
    pub fn present(&self) -> &[PhysRange] {
        &self.present
    }

    /// Whether this thread has interrupts on.
    #[must_use]
    pub fn interrupts_on(&self) -> bool {
        cpus::interrupts_on()
    }

    /// Fills `range` with `byte`, so that memory behind it is backed and dirty. Several threads may
    /// do this to ranges that do not overlap.
    ///
    /// # Safety
    /// No other code reads or writes the range meanwhile or relies on its content: no manager has
    /// been brought up over it, or the caller owns the frames.
    ///
    /// # Errors
    /// [`HostedError::NotMemory`]; nothing was written then.
    pub unsafe fn prefault(&self, range: PhysRange, byte: u8) -> Result<(), HostedError> {
        let offset = self.offset_of(range)?;
        // SAFETY: present memory is open, and the caller vouches for the rest.
        unsafe { self.mapping.fill(offset, range.size(), byte) }
            .map_err(|_| HostedError::NotMemory { range })
    }

    /// Gives the memory behind `range` back to the operating system. It reads as zero when next
    /// touched.
    ///
    /// # Safety
    /// As for [`HostedPlatform::prefault`].
    ///
    /// # Errors
    /// [`HostedError::Unaligned`], [`HostedError::NotMemory`], [`HostedError::CannotDiscard`].
    pub unsafe fn discard(&self, range: PhysRange) -> Result<(), HostedError> {
        if !range.start.is_multiple_of(PAGE_SIZE) || !range.end.is_multiple_of(PAGE_SIZE) {
            return Err(HostedError::Unaligned { range });
        }
        let offset = self.offset_of(range)?;
        // SAFETY: the caller vouches that the range is not in use.
        unsafe { self.mapping.discard(offset, range.size()) }
            .map_err(|error| HostedError::CannotDiscard { range, error })
    }

    /// Whether other processes could share the machine's memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.mapping.is_shared()
    }

    /// Gives advice that discards memory for at most 32 ranges. Returns a mask with a bit set for
    /// each range whose advice was taken.
    ///
    /// # Safety
    /// As for [`HostedPlatform::prefault`].
    pub(crate) unsafe fn advise(
        &self,
        ranges: &[PhysRange],
        advice: libc::c_int,
        process: &mut OwnProcess,
    ) -> u32 {
        // A range that is not wholly memory becomes an empty one, which is refused.
        let part = |&range: &PhysRange| {
            self.offset_of(range).map_or((0, 0), |offset| (offset, range.size()))
        };
        let parts: Vec<(u64, u64)> = ranges.iter().map(part).collect();
        // SAFETY: the caller vouches that the ranges are not in use.
        unsafe { self.mapping.advise(&parts, advice, process) }
    }

    /// Whether all of a range is memory of the machine, even if no manager was told of it.
    #[must_use]
    pub fn is_memory(&self, range: PhysRange) -> bool {
        self.offset_of(range).is_ok()
    }

    /// Returns how many bytes of the machine's memory the operating system backs now.
    ///
    /// # Errors
    /// [`HostedError::CannotMeasure`] if `/proc/self/smaps` cannot be read.
    pub fn resident_bytes(&self) -> Result<u64, HostedError> {
        resident::bytes(self.mapping.addresses())
            .map_err(|error| HostedError::CannotMeasure { error })
    }

    /// Returns the offset of a range of present memory in the reservation. A present range lies in
    /// one run, so it is contiguous there.
    fn offset_of(&self, range: PhysRange) -> Result<u64, HostedError> {
        let outside = HostedError::NotMemory { range };
        let index = self.present.partition_point(|known| known.end <= range.start);
        match self.present.get(index) {
            Some(known)
                if known.start <= range.start && range.end <= known.end && !range.is_empty() =>
            {
                self.runs.offset(range.start).ok_or(outside)
            }
            _ => Err(outside),
        }
    }
}

/// Reserves addresses for all memory: linearly if the machine's highest address and the process
/// allow it, otherwise without the holes.
fn reserve(
    map: MemoryMap<'_>,
    skew: usize,
    shared: bool,
) -> Result<(Runs, Layout, Mapping), HostedError> {
    if map.present_end() <= layout::LINEAR_END {
        let runs = Runs::linear(map);
        if let Ok(mapping) = Mapping::reserve(runs.span(), skew, shared) {
            return Ok((runs, Layout::Linear, mapping));
        }
    }
    let runs = Runs::compact(map);
    let mapping = Mapping::reserve(runs.span(), skew, shared)?;
    Ok((runs, Layout::Compact, mapping))
}

/// Returns present memory, with touching ranges of different kinds joined.
fn present(map: MemoryMap<'_>) -> Vec<PhysRange> {
    let mut out: Vec<PhysRange> = Vec::new();
    for entry in map.ranges().iter().filter(|entry| entry.kind.is_present()) {
        match out.last_mut() {
            Some(last) if last.end == entry.range.start => last.end = entry.range.end,
            _ => out.push(entry.range),
        }
    }
    out
}

// SAFETY: present memory is an anonymous mapping of this process that no other code knows. `direct`
// is linear within a present range, because one run holds the whole range, and never changes
// (invariants 1 and 15). There are no interrupt handlers. A number has one thread at a time, by
// compare-and-swap, and a pinned thread keeps it. membarrier is a full barrier on every thread that
// runs.
unsafe impl Platform for HostedPlatform {
    /// # Panics
    /// If no run holds the address. A manager never asks for such an address.
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        // Offset and address are equal for nearly all addresses of nearly all machines.
        if pa < self.identity_end
            && let Some(address) = self.mapping.at(pa)
        {
            return address;
        }
        match self.runs.offset(pa).and_then(|offset| self.mapping.at(offset)) {
            Some(address) => address,
            None => no_memory_there(pa),
        }
    }

    #[inline]
    fn pin(&self) -> PinnedCpu {
        self.cpus.pin()
    }

    #[inline]
    unsafe fn unpin(&self, cpu: PinnedCpu) {
        if !cpu.is_nested() {
            self.cpus.unpin(cpu.index());
        }
    }

    #[inline]
    fn irq_save(&self) -> IrqState {
        IrqState(usize::from(cpus::interrupts_off()))
    }

    #[inline]
    unsafe fn irq_restore(&self, state: IrqState) {
        cpus::interrupts_restore(state.0 != 0);
    }

    fn direct_limit(&self) -> u64 {
        self.limit
    }

    fn cpus(&self) -> u32 {
        self.cpus.count()
    }

    #[inline]
    fn cpu_node(&self, cpu: u32) -> NodeId {
        self.cpu_nodes.get(cpu as usize).copied().unwrap_or_default()
    }

    /// Returns how many CPUs the node has, at least 1, or the number of all CPUs if their nodes are
    /// unknown.
    fn init_threads(&self, node: NodeId) -> u32 {
        if self.cpu_nodes.is_empty() {
            return self.cpus();
        }
        let own = (0..self.cpus()).filter(|&cpu| self.cpu_node(cpu) == node).count();
        u32::try_from(own).unwrap_or(u32::MAX).max(1)
    }

    /// Returns true unless interrupts are off on this thread.
    fn can_wait(&self) -> bool {
        cpus::interrupts_on()
    }

    /// Returns the number of the calling thread.
    fn current_task(&self) -> Option<NonZeroU64> {
        Some(cpus::task())
    }

    /// Unparks the thread set with [`set_reclaimer`](HostedPlatform::set_reclaimer).
    fn wake_reclaim(&self, _: NodeId) {
        self.reclaimer.wake();
    }

    /// # Panics
    /// If a system call fails that worked at creation: going on would corrupt memory silently.
    fn cpu_barrier(&self) {
        self.barrier.run();
    }

    /// Returns the nanoseconds since the machine was made, by `CLOCK_MONOTONIC`.
    fn now_ns(&self) -> Option<u64> {
        u64::try_from(self.started.elapsed().as_nanos()).ok()
    }

    /// Uses the kernel's generator (`getrandom`).
    fn entropy(&self) -> Option<u64> {
        entropy()
    }

    fn accept_memory(&self) -> Option<&dyn AcceptMemory> {
        self.acceptor()
    }

    fn vmemmap_space(&self) -> Option<&dyn VmemmapSpace> {
        self.vmemmap.as_ref().map(|vmemmap| vmemmap as &dyn VmemmapSpace)
    }

    #[inline]
    fn relax(&self) {
        std::hint::spin_loop();
        if self.oversubscribed {
            std::thread::yield_now();
        }
    }

    /// What this thread waits for may need its number.
    fn yield_now(&self) {
        self.lend_cpu();
        std::thread::yield_now();
    }
}

#[cold]
fn no_memory_there(pa: u64) -> ! {
    panic!("direct({pa:#x}): the machine has no memory there")
}

/// Writes one line for a log: size, CPUs and layout.
impl fmt::Display for HostedPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present: u64 = self.present.iter().map(|range| range.size()).sum();
        write!(
            f,
            "{} MiB of memory in {} MiB of addresses",
            present >> 20,
            self.reserved_bytes() >> 20
        )?;
        let layout = match self.layout {
            Layout::Linear => "linear",
            Layout::Compact => "without holes",
        };
        write!(f, " ({layout}), {} CPUs", self.cpus.count())
    }
}
