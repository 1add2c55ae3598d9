//! Segments and the task state, which in 64-bit mode exist to say on which stack an exception runs.
//!
//! The precompiled standard library keeps values below the stack pointer (the red zone). An
//! exception on the interrupted stack would write its frame there. Every vector therefore names one
//! of the stacks in the interrupt stack table.

use core::arch::asm;
use core::mem::size_of;

/// The selector of the code segment.
pub const CODE_SELECTOR: u16 = 0x08;
/// The selector of the data segment.
pub const DATA_SELECTOR: u16 = 0x10;
/// The selector of the task state.
const TASK_SELECTOR: u16 = 0x18;

/// The task state segment, of which only the interrupt stack table is used.
#[repr(C, packed(4))]
#[derive(Debug)]
pub struct TaskState {
    reserved_0: u32,
    privilege_stacks: [u64; 3],
    reserved_1: u64,
    /// The tops of the interrupt stacks; vectors call them 1 to 7.
    interrupt_stacks: [u64; 7],
    reserved_2: u64,
    reserved_3: u16,
    io_map_offset: u16,
}

/// The global descriptor table and the task state of one CPU.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Segments {
    descriptors: [u64; 5],
    task: TaskState,
}

/// The operand of `lgdt` and `lidt`.
#[repr(C, packed(2))]
pub(super) struct TablePointer {
    pub(super) limit: u16,
    pub(super) base: u64,
}

impl Segments {
    /// Creates segments without any interrupt stack.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the task state has 104 bytes")]
    pub const fn new() -> Self {
        Self {
            descriptors: [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0],
            task: TaskState {
                reserved_0: 0,
                privilege_stacks: [0; 3],
                reserved_1: 0,
                interrupt_stacks: [0; 7],
                reserved_2: 0,
                reserved_3: 0,
                io_map_offset: size_of::<TaskState>() as u16,
            },
        }
    }

    /// Makes this CPU use these segments, with `interrupt_stacks` (their tops, multiples of 16) as
    /// the stacks 1, 2, ... of exceptions.
    ///
    /// # Safety
    /// The stacks are used for nothing else, the code runs at the highest privilege, and this CPU
    /// uses no task state yet.
    pub unsafe fn load(&'static mut self, interrupt_stacks: &[u64]) {
        let mut tops = self.task.interrupt_stacks;
        for (slot, &top) in tops.iter_mut().zip(interrupt_stacks) {
            *slot = top;
        }
        self.task.interrupt_stacks = tops;
        [self.descriptors[3], self.descriptors[4]] =
            task_descriptor((&raw const self.task).addr() as u64);
        let pointer = TablePointer {
            limit: table_limit::<[u64; 5]>(),
            base: self.descriptors.as_ptr().addr() as u64,
        };
        // SAFETY: the table is static and never changes again except for the busy bit that `ltr`
        // sets. The far return loads the code selector and the moves load flat data selectors, so
        // addresses keep their meaning.
        unsafe {
            asm!(
                "lgdt [{pointer}]",
                "push {code}",
                "lea {scratch}, [rip + 2f]",
                "push {scratch}",
                "retfq",
                "2:",
                "mov ds, {data:x}",
                "mov es, {data:x}",
                "mov ss, {data:x}",
                "ltr {task:x}",
                pointer = in(reg) &raw const pointer,
                code = const CODE_SELECTOR as u64,
                data = in(reg) DATA_SELECTOR,
                task = in(reg) TASK_SELECTOR,
                scratch = out(reg) _,
            );
        }
    }
}

impl Default for Segments {
    fn default() -> Self {
        Self::new()
    }
}

/// One less than the size of a table, as the CPU wants it.
#[expect(clippy::cast_possible_truncation, reason = "descriptor tables have at most 4096 bytes")]
pub(super) const fn table_limit<T>() -> u16 {
    (size_of::<T>() - 1) as u16
}

/// The two words that describe a task state at `base`: present, available, 64-bit.
const fn task_descriptor(base: u64) -> [u64; 2] {
    let limit = table_limit::<TaskState>() as u64;
    [limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56, base >> 32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_state_has_the_layout_of_the_manual() {
        assert_eq!(size_of::<TaskState>(), 104);
        assert_eq!(core::mem::offset_of!(TaskState, interrupt_stacks), 36);
    }

    #[test]
    fn a_descriptor_carries_its_base_in_four_pieces() {
        let [low, high] = task_descriptor(0x1234_5678_9abc_def0);
        assert_eq!(high, 0x1234_5678);
        assert_eq!(low >> 16 & 0xff_ffff, 0xbc_def0);
        assert_eq!(low >> 56, 0x9a);
        assert_eq!(low & 0xffff, 103);
    }
}
