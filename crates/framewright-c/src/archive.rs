//! What a program without the standard library has to have, for the archive that C links.

use crate::instance::platform;
use core::panic::PanicInfo;

/// A defect of the manager: logged, then the machine stops.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    if let Some(platform) = platform() {
        platform.say(format_args!("framewright: {info}"));
        platform.halt();
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Named by the precompiled core library, never called: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
