//! Stacks of all CPUs but the first, in an address range of their own. The page below each stack is
//! not mapped, so that a stack overflow faults and the report names the stack.

use super::{MAX_CPUS, count};
use crate::direct_map::{KernelTables, STACKS};
use crate::platform::EarlyMemory;
use framewright::memblock::{MemblockRequest, NodeChoice};
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright_arch::paging::Access;
use framewright_arch::x86_64::segments::Segments;

/// The distance from one CPU's stacks to the next.
const STRIDE: u64 = 256 * 1024;
const KIB: u64 = 1024;
/// Each part of a CPU's range and its size: the ordinary stack, then the interrupt stacks in the
/// order of their numbers.
const PARTS: [(&str, u64); 5] = [
    ("stack", 64 * KIB),
    ("stack of exceptions", 16 * KIB),
    ("stack of double faults", 16 * KIB),
    ("stack of non-maskable interrupts", 16 * KIB),
    ("stack of interrupts", 32 * KIB),
];
/// The segments lie above the last stack.
const SEGMENTS_BYTES: u64 = PAGE_SIZE;

/// The stacks of one CPU.
#[derive(Clone, Copy)]
pub struct Stacks {
    /// One past the highest byte of each stack.
    pub tops: [u64; PARTS.len()],
    segments: u64,
}

/// Returns the first byte of part `part` of CPU `index`. The page below it is not mapped.
fn bottom(index: u32, part: usize) -> u64 {
    let below: u64 = PARTS.iter().take(part).map(|(_, bytes)| bytes + PAGE_SIZE).sum();
    STACKS + u64::from(index) * STRIDE + PAGE_SIZE + below
}

/// Makes stacks for CPU `index`, in memory of `node` if possible. Returns `None` if there is no
/// memory.
pub fn make(
    tables: &KernelTables,
    early: &mut EarlyMemory<'_>,
    index: u32,
    node: NodeId,
) -> Option<Stacks> {
    let total = PARTS.iter().map(|(_, bytes)| bytes).sum::<u64>() + SEGMENTS_BYTES;
    // The memory is cleared, because the segments begin as zeros.
    let request = MemblockRequest {
        node: NodeChoice::Preferred(node),
        ..MemblockRequest::new(total, PAGE_SIZE)
    };
    let memory = early.allocate(&request).ok()?;
    let mut physical = memory.start;
    let mut map = |address: u64, bytes: u64| {
        let range = PhysRange::with_size(physical, bytes);
        physical += bytes;
        tables.map(early, address, range, Access::DATA).ok()
    };
    let mut tops = [0; PARTS.len()];
    for (part, (top, (_, bytes))) in tops.iter_mut().zip(PARTS).enumerate() {
        map(bottom(index, part), bytes)?;
        *top = bottom(index, part) + bytes;
    }
    let segments = bottom(index, PARTS.len());
    map(segments, SEGMENTS_BYTES)?;
    Some(Stacks { tops, segments })
}

impl Stacks {
    /// Returns the stacks that [`make`] made for CPU `index`.
    pub fn of(index: u32) -> Self {
        let tops = core::array::from_fn(|part| bottom(index, part) + PARTS[part].1);
        Self { tops, segments: bottom(index, PARTS.len()) }
    }

    /// The tops of the interrupt stacks.
    pub fn interrupt_tops(&self) -> &[u64] {
        self.tops.get(1..).unwrap_or(&[])
    }

    /// Returns the segments, newly initialised.
    ///
    /// # Safety
    /// [`make`] made the stacks, and this is called once for each CPU.
    pub unsafe fn segments(&self) -> &'static mut Segments {
        const { assert!(size_of::<Segments>() as u64 <= SEGMENTS_BYTES, "the segments fit") };
        let place = core::ptr::with_exposed_provenance_mut::<Segments>(
            usize::try_from(self.segments).unwrap_or(0),
        );
        // SAFETY: mapped and aligned, and it belongs to the caller alone for ever.
        unsafe { place.write(Segments::new()) };
        // SAFETY: as for the write above, which has just initialised it.
        unsafe { &mut *place }
    }
}

/// Returns the CPU and the name of the stack that overflowed if `address` is in the page below a
/// stack.
pub fn overflowed(address: u64) -> Option<(u32, &'static str)> {
    let offset = address.checked_sub(STACKS)?;
    let index = u32::try_from(offset / STRIDE)
        .ok()
        .filter(|&index| index < count() && (index as usize) < MAX_CPUS)?;
    let part = (0..PARTS.len())
        .find(|&part| (bottom(index, part) - PAGE_SIZE..bottom(index, part)).contains(&address))?;
    Some((index, PARTS[part].0))
}

/// Whether the word at `address` can be read because it lies on a stack of a CPU.
pub fn is_on_stack(address: u64) -> bool {
    let Some(offset) = address.checked_sub(STACKS) else { return false };
    let Ok(index) = u32::try_from(offset / STRIDE) else { return false };
    super::cpu(index).is_some_and(super::Cpu::is_online)
        && (0..PARTS.len()).any(|part| {
            (bottom(index, part)..bottom(index, part) + PARTS[part].1).contains(&address)
        })
}
