//! Port input and output.

use core::arch::asm;

/// A port whose creator has promised that reading and writing it does no harm to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port(u16);

impl Port {
    /// Creates an accessor for port `number`.
    ///
    /// # Safety
    /// The code has the right to use ports, and no access to this one changes memory that Rust
    /// knows or takes the machine away from the caller, except where the caller wants that.
    #[must_use]
    pub const unsafe fn new(number: u16) -> Self {
        Self(number)
    }

    /// Reads 8 bits.
    #[must_use]
    pub fn read_u8(self) -> u8 {
        let value;
        // SAFETY: the creator of the port promised that using it is harmless.
        unsafe {
            asm!(
                "in al, dx",
                in("dx") self.0,
                out("al") value,
                options(nomem, nostack, preserves_flags),
            )
        };
        value
    }

    /// Reads 32 bits.
    #[must_use]
    pub fn read_u32(self) -> u32 {
        let value;
        // SAFETY: as in `read_u8`.
        unsafe {
            asm!(
                "in eax, dx",
                in("dx") self.0,
                out("eax") value,
                options(nomem, nostack, preserves_flags),
            )
        };
        value
    }

    /// Writes 8 bits.
    pub fn write_u8(self, value: u8) {
        // SAFETY: as in `read_u8`.
        unsafe {
            asm!(
                "out dx, al",
                in("dx") self.0,
                in("al") value,
                options(nomem, nostack, preserves_flags),
            )
        };
    }

    /// Writes 32 bits.
    pub fn write_u32(self, value: u32) {
        // SAFETY: as in `read_u8`.
        unsafe {
            asm!(
                "out dx, eax",
                in("dx") self.0,
                in("eax") value,
                options(nomem, nostack, preserves_flags),
            )
        };
    }
}
