//! The init program, and only program, of the Linux with which Framewright is compared.
//!
//! As process 1 it mounts what it reads, runs `/script` and powers the machine off. As any other
//! process it runs the script that its first argument names, so that it can be tested without a
//! machine. Its lines begin with `@`, those of the kernel with `[`.

#![no_std]
#![no_main]

mod commands;
mod console;
mod faults;
mod runtime;
mod scatter;
mod system;

use core::ffi::{CStr, c_char};
use core::panic::PanicInfo;
use system::File;

/// The most bytes of a script.
const SCRIPT_BYTES: usize = 16 << 10;

/// The entry point. `stack` points to the number of arguments, followed by pointers to them.
pub(crate) extern "C" fn begin(stack: *const usize) -> ! {
    say!("@init");
    let is_first = system::pid() == 1;
    let done = if is_first {
        for (kind, folder) in [(c"proc", c"/proc"), (c"sysfs", c"/sys")] {
            if let Err(error) = system::mount(kind, folder) {
                say!("@failed mount {}: error {}", folder.to_str().unwrap_or_default(), error.0);
            }
        }
        follow("/script")
    } else {
        match first_argument(stack) {
            Some(name) => follow(name),
            None => {
                say!("@failed: the first argument names a script");
                false
            }
        }
    };
    if done {
        say!("@over");
    }
    if is_first {
        system::power_off();
    }
    system::exit(u8::from(!done));
}

/// The first argument of this process.
fn first_argument(stack: *const usize) -> Option<&'static str> {
    // SAFETY: the kernel puts the number of arguments there.
    let count = unsafe { stack.read() };
    if count < 2 {
        return None;
    }
    let place = stack.wrapping_add(2).cast::<*const c_char>();
    // SAFETY: the number is followed by the program's name and, as there are two, the first
    // argument.
    let argument = unsafe { place.read() };
    // SAFETY: the kernel's arguments end in a zero byte and stay where they are.
    unsafe { CStr::from_ptr(argument) }.to_str().ok()
}

/// Runs a script to its end.
fn follow(name: &str) -> bool {
    let mut bytes = [0; SCRIPT_BYTES];
    let mut length = 0;
    let read = File::read_only(name).and_then(|file| {
        loop {
            let room = bytes.get_mut(length..).unwrap_or_default();
            match file.read(room)? {
                0 => return Ok(()),
                more => length += more,
            }
        }
    });
    if let Err(error) = read {
        say!("@failed script {name}: error {}", error.0);
        return false;
    }
    if length == SCRIPT_BYTES {
        say!("@failed script {name}: too long");
        return false;
    }
    match core::str::from_utf8(bytes.get(..length).unwrap_or_default()) {
        Ok(script) => {
            script.lines().for_each(commands::run);
            true
        }
        Err(_) => {
            say!("@failed script {name}: no text");
            false
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say!("@failed: {info}");
    if system::pid() == 1 {
        system::power_off();
    }
    system::exit(101)
}
