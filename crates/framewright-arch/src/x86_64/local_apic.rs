//! The local interrupt controller of each CPU, in its two forms: registers in memory (xAPIC,
//! identifiers of 8 bits) and model-specific registers (x2APIC, 32 bits).

use super::exceptions::EXCEPTIONS;
use super::msr;
use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::fmt;
use core::ptr::NonNull;

/// The largest identifier to which an xAPIC can send an interrupt; 255 means all CPUs.
pub const LARGEST_XAPIC_ID: u32 = 254;

// Offsets of registers in memory; divided by 16 they are the numbers of the model-specific
// registers, counted from 0x800.
const ID: usize = 0x20;
const TASK_PRIORITY: usize = 0x80;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS_VECTOR: usize = 0xf0;
const ERROR_STATUS: usize = 0x280;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const LOCAL_TIMER: usize = 0x320;
const LOCAL_LINE_0: usize = 0x350;
const LOCAL_LINE_1: usize = 0x360;
const LOCAL_ERROR: usize = 0x370;
const TIMER_START: usize = 0x380;
const TIMER_NOW: usize = 0x390;
const TIMER_DIVIDER: usize = 0x3e0;
const FIRST_X2APIC_REGISTER: u32 = 0x800;

const ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DELIVERY_PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
const NON_MASKABLE: u32 = 4 << 8;
/// The timer counts once every sixteen ticks of its clock.
const DIVIDE_BY_16: u32 = 3;
const BASE_ENABLED: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// How often to check an undelivered command before giving up: the machine is then beyond help.
const MAX_POLLS: u32 = 1 << 20;

/// Which form of the controller is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Registers in memory, mapped at this address.
    Memory(NonNull<u32>),
    /// Model-specific registers.
    X2Apic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "xAPIC",
            Self::X2Apic => "x2APIC",
        })
    }
}

/// The vectors of the controller's own interrupts: 32 or more, because lower ones belong to
/// exceptions.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// The vector of the timer.
    pub timer: u8,
    /// The vector for an error in sending or receiving an interrupt.
    pub error: u8,
    /// The vector for an interrupt that was withdrawn before it was taken. Such an interrupt must
    /// not be acknowledged.
    pub spurious: u8,
}

/// The local controller of the CPU that uses this value.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic {
    mode: Mode,
}

// SAFETY: every CPU that reads or writes the registers reaches its own controller.
unsafe impl Send for LocalApic {}
// SAFETY: as for `Send`.
unsafe impl Sync for LocalApic {}

/// Whether this CPU has an x2APIC.
#[must_use]
pub fn has_x2apic() -> bool {
    __cpuid(1).ecx & 1 << 21 != 0
}

/// The physical address of this CPU's controller registers in memory.
///
/// # Safety
/// The code runs at the highest privilege.
#[must_use]
pub unsafe fn registers_address() -> u64 {
    // SAFETY: every 64-bit CPU has this register.
    unsafe { msr::read(msr::APIC_BASE) & BASE_ADDRESS }
}

/// The identifier that this CPU's controller had initially, whatever its mode.
#[must_use]
pub fn initial_id() -> u32 {
    if __cpuid(0).eax >= 0xb {
        let leaf = __cpuid_count(0xb, 0);
        if leaf.ebx != 0 {
            return leaf.edx;
        }
    }
    __cpuid(1).ebx >> 24
}

impl LocalApic {
    /// Creates an accessor for controllers in this mode.
    ///
    /// # Safety
    /// The code runs at the highest privilege; the mode is one that all CPUs have; registers in
    /// memory are mapped uncached, for ever, at the mode's address, and nobody else uses them.
    #[must_use]
    pub const unsafe fn new(mode: Mode) -> Self {
        Self { mode }
    }

    /// The form of the controller.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Turns this CPU's controller on: its own interrupts use `vectors`, the timer stands still,
    /// and the pins of the old interrupt controller are masked.
    ///
    /// # Panics
    /// When a vector belongs to an exception (below 32).
    pub fn enable(&self, vectors: Vectors) {
        let [timer, error, spurious] =
            [vectors.timer, vectors.error, vectors.spurious].map(interrupt);
        // SAFETY: `new` was promised the privilege, and every 64-bit CPU has this register.
        let base = unsafe { msr::read(msr::APIC_BASE) };
        let mode = if self.mode == Mode::X2Apic { BASE_X2APIC } else { 0 };
        // SAFETY: as for the read; this turns on what `new` was promised to be there.
        unsafe { msr::write(msr::APIC_BASE, base | BASE_ENABLED | mode) };
        self.write(TASK_PRIORITY, 0);
        self.write(LOCAL_LINE_0, MASKED);
        self.write(LOCAL_LINE_1, MASKED);
        self.write(LOCAL_TIMER, MASKED | timer);
        self.write(SPURIOUS_VECTOR, ENABLED | spurious);
        // Only now: while the previous register disables the controller, all of these stay masked
        // whatever is written (Intel SDM 3A, "Local APIC State After It Has Been Software
        // Disabled").
        self.write(LOCAL_ERROR, error);
        self.write(ERROR_STATUS, 0);
        // An interrupt that was in service when a previous program ended must not block ours.
        self.end_of_interrupt();
    }

    /// This CPU's identifier.
    #[must_use]
    pub fn id(&self) -> u32 {
        let id = self.read(ID);
        if self.mode == Mode::X2Apic { id } else { id >> 24 }
    }

    /// Whether an interrupt can be sent to the controller with this identifier.
    #[must_use]
    pub fn reaches(&self, id: u32) -> bool {
        self.mode == Mode::X2Apic && id != u32::MAX || id <= LARGEST_XAPIC_ID
    }

    /// Ends the interrupt that this CPU is serving.
    pub fn end_of_interrupt(&self) {
        self.write(END_OF_INTERRUPT, 0);
    }

    /// Interrupts CPU `id` with `vector`. Everything that this CPU wrote before is visible to the
    /// interrupted CPU.
    ///
    /// If interrupt handlers send interrupts too, the caller must have interrupts off: in memory a
    /// command takes two registers, and another command must not come in between.
    ///
    /// # Panics
    /// When the vector belongs to an exception (below 32).
    pub fn send(&self, id: u32, vector: u8) {
        self.command(id, ASSERT | interrupt(vector));
    }

    /// Resets CPU `id`, which then waits for [`start_up`](Self::start_up).
    ///
    /// # Safety
    /// That CPU runs nothing that is needed any more.
    pub unsafe fn init(&self, id: u32) {
        self.command(id, ASSERT | INIT);
    }

    /// Lets a CPU that was reset start at physical address `page * 4096`, in real mode.
    ///
    /// # Safety
    /// The code at that address is made for this.
    pub unsafe fn start_up(&self, id: u32, page: u8) {
        self.command(id, ASSERT | START_UP | u32::from(page));
    }

    /// Sends CPU `id` a non-maskable interrupt, in the same way as [`send`](Self::send). A CPU that
    /// has no vectors yet does not survive it.
    pub fn send_non_maskable(&self, id: u32) {
        self.command(id, ASSERT | NON_MASKABLE);
    }

    /// Returns and clears the errors that were recorded since the last call, as the controller
    /// encodes them.
    #[must_use]
    pub fn take_errors(&self) -> u32 {
        self.write(ERROR_STATUS, 0);
        self.read(ERROR_STATUS)
    }

    /// Lets the timer count down from its largest value without an interrupt, so that its rate can
    /// be measured.
    ///
    /// # Panics
    /// When the vector belongs to an exception (below 32).
    pub fn count_freely(&self, vector: u8) {
        self.write(LOCAL_TIMER, MASKED | interrupt(vector));
        self.write(TIMER_DIVIDER, DIVIDE_BY_16);
        self.write(TIMER_START, u32::MAX);
    }

    /// How far the timer has counted since [`count_freely`](Self::count_freely).
    #[must_use]
    pub fn counted(&self) -> u32 {
        u32::MAX - self.read(TIMER_NOW)
    }

    /// Lets the timer interrupt this CPU with `vector` every `counts` counts from now on.
    ///
    /// # Panics
    /// When the vector belongs to an exception (below 32).
    pub fn tick(&self, vector: u8, counts: u32) {
        let vector = interrupt(vector);
        self.write(TIMER_DIVIDER, DIVIDE_BY_16);
        self.write(LOCAL_TIMER, PERIODIC | vector);
        self.write(TIMER_START, counts.max(1));
    }

    /// Stops the timer.
    ///
    /// # Panics
    /// When the vector belongs to an exception (below 32).
    pub fn stop_timer(&self, vector: u8) {
        self.write(LOCAL_TIMER, MASKED | interrupt(vector));
        self.write(TIMER_START, 0);
    }

    /// Writes a command, which takes two registers in memory. No other command comes in between,
    /// because callers turn interrupts off wherever handlers send.
    fn command(&self, id: u32, low: u32) {
        match self.mode {
            Mode::X2Apic => {
                // The write to this register does not wait for earlier stores, which the
                // interrupted CPU must see.
                // SAFETY: fences change nothing.
                unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
                self.write_wide(u64::from(id) << 32 | u64::from(low));
            }
            Mode::Memory(_) => {
                self.write(COMMAND_HIGH, id << 24);
                self.write(COMMAND_LOW, low);
                for _ in 0..MAX_POLLS {
                    if self.read(COMMAND_LOW) & DELIVERY_PENDING == 0 {
                        break;
                    }
                    core::hint::spin_loop();
                }
            }
        }
    }

    fn read(&self, register: usize) -> u32 {
        match self.mode {
            Mode::Memory(base) => {
                // SAFETY: `new` was promised 4 KiB of registers here, and every offset used is
                // below that.
                let register = unsafe { base.byte_add(register) };
                // SAFETY: as for the address; reading has no effect on memory.
                unsafe { register.read_volatile() }
            }
            #[expect(clippy::cast_possible_truncation, reason = "these registers have 32 bits")]
            // SAFETY: `new` was promised that the CPU has this mode, and these registers are part
            // of it.
            Mode::X2Apic => unsafe { msr::read(model_specific(register)) as u32 },
        }
    }

    fn write(&self, register: usize, value: u32) {
        match self.mode {
            Mode::Memory(base) => {
                // SAFETY: as in `read`.
                let register = unsafe { base.byte_add(register) };
                // SAFETY: as in `read`; the effects of the registers are the purpose of the
                // methods.
                unsafe { register.write_volatile(value) };
            }
            // SAFETY: as in `read`.
            Mode::X2Apic => unsafe { msr::write(model_specific(register), u64::from(value)) },
        }
    }

    /// Writes the command register of an x2APIC, which has 64 bits.
    fn write_wide(&self, command: u64) {
        // SAFETY: this is called in x2APIC mode only.
        unsafe { msr::write(model_specific(COMMAND_LOW), command) };
    }
}

/// The vector of an interrupt. With a vector of the CPU's own, an exception's entry would run, and
/// some of these entries expect an error code on the stack, which no interrupt pushes.
#[track_caller]
fn interrupt(vector: u8) -> u32 {
    assert!(usize::from(vector) >= EXCEPTIONS, "vector {vector} is an exception's");
    u32::from(vector)
}

#[expect(clippy::cast_possible_truncation, reason = "offsets are below 4096")]
const fn model_specific(register: usize) -> u32 {
    FIRST_X2APIC_REGISTER + (register / 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    #[test]
    fn registers_have_the_numbers_of_the_manual() {
        assert_eq!(model_specific(ID), 0x802);
        assert_eq!(model_specific(END_OF_INTERRUPT), 0x80b);
        assert_eq!(model_specific(COMMAND_LOW), 0x830);
        assert_eq!(model_specific(TIMER_DIVIDER), 0x83e);
    }

    #[test]
    fn vectors_of_exceptions_are_refused_before_anything_is_written() {
        let mut registers = [0_u32; 1024];
        let place = NonNull::from(&mut registers).cast();
        // SAFETY: the registers are this test's own memory, as many as a controller has.
        let apic = unsafe { LocalApic::new(Mode::Memory(place)) };
        let all = Vectors { timer: 236, error: 254, spurious: 255 };
        for vector in [0, 14, 17, 21, 29, 31] {
            let calls: [&dyn Fn(); 7] = [
                &|| apic.send(1, vector),
                &|| apic.tick(vector, 1000),
                &|| apic.count_freely(vector),
                &|| apic.stop_timer(vector),
                &|| apic.enable(Vectors { timer: vector, ..all }),
                &|| apic.enable(Vectors { error: vector, ..all }),
                &|| apic.enable(Vectors { spurious: vector, ..all }),
            ];
            for (number, call) in calls.into_iter().enumerate() {
                let call = std::panic::AssertUnwindSafe(call);
                let message = std::panic::catch_unwind(call).expect_err("it was taken");
                let message = message.downcast::<String>().expect("text");
                assert_eq!(*message, format!("vector {vector} is an exception's"), "{number}");
            }
        }
        let written = |register: usize| {
            // SAFETY: as for `new`; offsets are below 4096.
            unsafe { place.as_ptr().wrapping_byte_add(register).read_volatile() }
        };
        assert!((0..4096).step_by(4).all(|register| written(register) == 0));
        apic.send(1, 32);
        assert_eq!((written(COMMAND_HIGH), written(COMMAND_LOW)), (1 << 24, ASSERT | 32));
        apic.tick(32, 1000);
        assert_eq!((written(LOCAL_TIMER), written(TIMER_START)), (PERIODIC | 32, 1000));
    }

    #[test]
    fn wide_identifiers_need_the_wide_mode() {
        let registers = NonNull::<u32>::dangling();
        // SAFETY: no register is touched.
        let narrow = unsafe { LocalApic::new(Mode::Memory(registers)) };
        // SAFETY: no register is touched.
        let wide = unsafe { LocalApic::new(Mode::X2Apic) };
        assert!(narrow.reaches(254) && !narrow.reaches(255) && !narrow.reaches(1000));
        assert!(
            wide.reaches(254) && wide.reaches(255) && wide.reaches(1000) && !wide.reaches(u32::MAX)
        );
    }
}
