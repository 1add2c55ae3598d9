//! Where the linker put the parts of this program. The symbols are those of `linker.ld`.

use framewright::units::PhysRange;

unsafe extern "C" {
    static image_start: u8;
    static constants_start: u8;
    static data_start: u8;
    static init_start: u8;
    static boot_tables_start: u8;
    static boot_tables_end: u8;
    static stack_guard: u8;
    static stack_bottom: u8;
    static image_end: u8;
}

/// Defines a function that returns a part of the image. Its physical addresses are its virtual
/// ones.
macro_rules! part {
    ($(#[$text:meta])* $name:ident, $start:ident, $end:ident) => {
        $(#[$text])*
        pub fn $name() -> PhysRange {
            PhysRange::new((&raw const $start).addr() as u64, (&raw const $end).addr() as u64)
        }
    };
}

part!(
    /// The whole image, including the stack and zeroed data.
    whole, image_start, image_end
);
part!(
    /// Code, readable and executable.
    code, image_start, constants_start
);
part!(
    /// Constants, readable.
    constants, constants_start, data_start
);
part!(
    /// Data, readable and writable.
    data, data_start, init_start
);
part!(
    /// The tables of `boot.s`, readable and writable until they are released.
    boot_tables, boot_tables_start, boot_tables_end
);
part!(
    /// Data that only boot needs, readable and writable until it is released.
    init, init_start, boot_tables_start
);
part!(
    /// Data that starts as zeros, up to the page below the stack, readable and writable.
    zeroed, boot_tables_end, stack_guard
);
part!(
    /// The page below the stack, not mapped.
    guard, stack_guard, stack_bottom
);
part!(
    /// The stack, readable and writable.
    stack, stack_bottom, image_end
);

/// The parts that only boot needs.
pub fn boot_only() -> [PhysRange; 2] {
    [boot_tables(), init()]
}
