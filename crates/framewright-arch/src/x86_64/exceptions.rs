//! The interrupt descriptor table, and exceptions: the first 32 vectors, each on a stack for its
//! kind, all handled by one Rust function.
//!
//! The function does not return, because it repairs no fault. Nothing is restored, therefore, and
//! vector registers need not be saved. A kernel that repairs a fault gives its vector an entry of
//! its own ([`Table::set_entry`]).
//!
//! Orders of memory: the handler is stored with Release and loaded with Acquire, so that a CPU that
//! calls it sees everything that was prepared for it.

use super::interrupts;
use super::segments::{CODE_SELECTOR, TablePointer, table_limit};
use core::arch::{asm, naked_asm};
use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The number of vectors that the CPU itself raises.
pub const EXCEPTIONS: usize = 32;
/// The number of all vectors: the others belong to interrupts.
pub const VECTORS: usize = 256;
/// The interrupt stack of most vectors.
pub const COMMON_STACK: u8 = 1;
/// The interrupt stack of the double fault, which may occur while [`COMMON_STACK`] is in use.
pub const DOUBLE_FAULT_STACK: u8 = 2;
/// The interrupt stack of vectors that may occur at any moment: the non-maskable interrupt and the
/// machine check.
pub const ASYNCHRONOUS_STACK: u8 = 3;

/// The registers that the CPU and the entry code pushed on the stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the registers' own names say what they are")]
pub struct Frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    /// The number of the exception.
    pub vector: u64,
    /// The error code; 0 if the exception has none.
    pub error_code: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// The function that handles every exception.
pub type Handler = fn(&Frame) -> !;

static HANDLER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// The interrupt descriptor table.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Table {
    gates: [[u64; 2]; VECTORS],
}

impl Table {
    /// Creates a table without any gate.
    #[must_use]
    pub const fn new() -> Self {
        Self { gates: [[0; 2]; VECTORS] }
    }

    /// Fills the table: from now on `handler` gets every exception. Unused vectors have no gate, so
    /// that an interrupt with such a vector raises an exception.
    pub fn fill(&mut self, handler: Handler) {
        HANDLER.store(handler as *mut (), Ordering::Release);
        for (vector, (gate, stub)) in self.gates.iter_mut().zip(STUBS).enumerate() {
            let stack = match vector {
                2 | 18 => ASYNCHRONOUS_STACK,
                8 => DOUBLE_FAULT_STACK,
                _ => COMMON_STACK,
            };
            *gate = encode_gate(stub as usize as u64, stack);
        }
        for (vector, entry) in interrupts::ENTRIES {
            self.gates[usize::from(vector)] =
                encode_gate(entry as usize as u64, interrupts::INTERRUPT_STACK);
        }
    }

    /// Gives a vector a different entry from the one that [`fill`](Self::fill) set, on the same
    /// stack.
    ///
    /// # Safety
    /// The entry is code that follows the CPU's convention for this vector: it ends with `iretq`,
    /// after restoring every register, or it never ends.
    pub unsafe fn set_entry(&mut self, vector: u8, entry: unsafe extern "C" fn()) {
        let gate = &mut self.gates[usize::from(vector)];
        *gate = encode_gate(entry as usize as u64, (gate[0] >> 32).to_le_bytes()[0] & 7);
    }

    /// Makes this CPU use the table.
    ///
    /// # Safety
    /// [`Segments::load`](super::segments::Segments::load) was called with at least four stacks,
    /// the table is filled, and the code runs at the highest privilege.
    pub unsafe fn load(&'static self) {
        let pointer = TablePointer {
            limit: table_limit::<[[u64; 2]; VECTORS]>(),
            base: self.gates.as_ptr().addr() as u64,
        };
        // SAFETY: the table is static and complete, its entries name code that follows the CPU's
        // convention, and the caller promises the stacks.
        unsafe {
            asm!(
                "lidt [{}]",
                in(reg) &raw const pointer,
                options(readonly, nostack, preserves_flags),
            )
        };
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// An interrupt gate: present, for the kernel, with interrupts off.
const fn encode_gate(handler: u64, stack: u8) -> [u64; 2] {
    let low = handler & 0xffff | (CODE_SELECTOR as u64) << 16 | (stack as u64) << 32 | 0x8e << 40;
    [low | (handler >> 16 & 0xffff) << 48, handler >> 32]
}

/// The name of a vector.
#[must_use]
pub const fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range exceeded",
        6 => "invalid opcode",
        7 => "device not available",
        8 => "double fault",
        10 => "invalid task state",
        11 => "segment not present",
        12 => "stack segment fault",
        13 => "general protection fault",
        14 => "page fault",
        16 => "x87 floating-point error",
        17 => "alignment check",
        18 => "machine check",
        19 => "vector floating-point error",
        20 => "virtualisation exception",
        21 => "control protection exception",
        28 => "hypervisor injection exception",
        29 => "VMM communication exception",
        30 => "security exception",
        _ => "reserved exception",
    }
}

/// A page fault's error code, printed in words.
#[derive(Clone, Copy, Debug)]
pub struct PageFaultCode(pub u64);

impl fmt::Display for PageFaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |number: u32| self.0 >> number & 1 != 0;
        let access = match (bit(4), bit(1)) {
            (true, _) => "execution",
            (false, true) => "write",
            (false, false) => "read",
        };
        let mode = if bit(2) { "user" } else { "kernel" };
        let reason = if bit(3) {
            "a table entry has reserved bits set"
        } else if bit(0) {
            "the page does not allow it"
        } else {
            "no page is there"
        };
        write!(f, "{mode} {access}, {reason}")
    }
}

/// The Rust entry of all exceptions. Only `common_entry` calls it.
extern "C" fn dispatch(frame: &Frame) -> ! {
    let handler = HANDLER.load(Ordering::Acquire);
    if !handler.is_null() {
        // SAFETY: the only pointer ever stored is a `Handler`, and function pointers have a data
        // pointer's size here.
        let handler = unsafe { core::mem::transmute::<*mut (), Handler>(handler) };
        handler(frame)
    }
    super::registers::halt()
}

/// Saves the general registers below the vector and the error code. Together with what the CPU
/// pushed, they make up a [`Frame`]. Then calls [`dispatch`].
#[unsafe(naked)]
unsafe extern "C" fn common_entry() {
    naked_asm!(
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "cld",
        "mov rdi, rsp",
        // Ends the chain of frames for debuggers, and aligns the stack as a call requires.
        "xor ebp, ebp",
        "and rsp, -16",
        "call {dispatch}",
        "ud2",
        dispatch = sym dispatch,
    )
}

/// Defines one entry per vector, which pushes a zero if the CPU pushes no error code, and then the
/// vector.
macro_rules! stubs {
    ($($name:ident $vector:literal $has_code:literal;)*) => {
        $(
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    ".if {has_code} == 0", "push 0", ".endif",
                    "push {vector}",
                    "jmp {common}",
                    has_code = const $has_code,
                    vector = const $vector,
                    common = sym common_entry,
                )
            }
        )*
        const STUBS: [unsafe extern "C" fn(); EXCEPTIONS] = [$($name),*];
    };
}

stubs! {
    v0 0 0; v1 1 0; v2 2 0; v3 3 0; v4 4 0; v5 5 0; v6 6 0; v7 7 0;
    v8 8 1; v9 9 0; v10 10 1; v11 11 1; v12 12 1; v13 13 1; v14 14 1; v15 15 0;
    v16 16 0; v17 17 1; v18 18 0; v19 19 0; v20 20 0; v21 21 1; v22 22 0; v23 23 0;
    v24 24 0; v25 25 0; v26 26 0; v27 27 0; v28 28 0; v29 29 1; v30 30 1; v31 31 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_gate_carries_its_handler_in_three_pieces() {
        let [low, high] = encode_gate(0xffff_8000_1234_5678, 3);
        assert_eq!(high, 0xffff_8000);
        assert_eq!((low & 0xffff, low >> 48), (0x5678, 0x1234));
        assert_eq!(low >> 32 & 0xff, 3);
        assert_eq!(low >> 40 & 0xff, 0x8e);
        assert_eq!(low >> 16 & 0xffff, u64::from(CODE_SELECTOR));
    }

    #[test]
    fn page_fault_codes_read_as_words() {
        assert_eq!(PageFaultCode(0).to_string(), "kernel read, no page is there");
        assert_eq!(PageFaultCode(3).to_string(), "kernel write, the page does not allow it");
        assert_eq!(PageFaultCode(0x15).to_string(), "user execution, the page does not allow it");
        assert_eq!(
            PageFaultCode(0xb).to_string(),
            "kernel write, a table entry has reserved bits set"
        );
    }
}
