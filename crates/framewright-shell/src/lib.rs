//! A command interpreter over a [`Manager`](framewright::Manager): control files, allocations,
//! workloads.
//!
//! A [`Shell`] runs text, command by command, and writes to any [`core::fmt::Write`]. It has no
//! heap, no threads and no clock: its [`Host`] provides what it needs of those, and it keeps the
//! list of its allocations in a table that its owner provides. An [`Editor`] assembles lines from
//! what is typed on a terminal or arrives over a serial line.
//!
//! ```
//! # use framewright::{Manager, Platform};
//! use framewright::procfs::{FileSystem, Source};
//! use framewright_shell::{Host, Run, Shell};
//!
//! struct OneCpu;
//! impl Host for OneCpu {}
//!
//! fn show<P: Platform>(manager: &Manager<P>, out: &mut dyn core::fmt::Write) -> u8 {
//!     let ours = manager.files();
//!     let sources: [&dyn Source; 1] = [&ours];
//!     let mut held = [Run::NOTHING; 64];
//!     // SAFETY: no command below frees by address, and there is no window.
//!     let mut shell =
//!         unsafe { Shell::new(manager, FileSystem::new(&sources), &OneCpu, &mut held) };
//!     let mut errors = String::new();
//!     shell.run("alloc 3 10; cat /proc/buddyinfo; free all", out, &mut errors)
//! }
//! ```
//!
//! # The language
//!
//! Commands end at `;` or at the end of the line. Words are separated by blanks; `'...'`, `"..."`
//! and a backslash quote blanks and other characters, `#` begins a comment, `$?` is the status of
//! the last command. `> FILE` and `>> FILE` write a command's output to a control file. Nothing
//! else of a Unix shell is supported; characters that have a meaning only there are refused. Status
//! 0 is success, 1 failure, 2 a wrong command line, 127 an unknown command, 130 interrupted.
//!
//! # Monitoring
//!
//! [`Requests`] answers programs that read control files from outside, over a socket or a second
//! serial line.
//!
//! # More commands
//!
//! To add a command of your own, implement [`Command`] and pass it to [`Shell::with_commands`];
//! `help` lists it with the others.
#![no_std]

#[cfg(test)]
extern crate std;

mod commands;
mod editor;
mod held;
mod history;
mod host;
mod io;
mod owned;
mod requests;
mod shell;
mod size;
mod words;

pub use editor::{Editor, Event};
pub use held::Run;
pub use host::{Host, MovableMemory, SHARES, SpareMemory};
pub use io::{Failed, Io};
pub use requests::{LONGEST_REQUEST, Requests};
pub use shell::{Command, Shell};
pub use words::{LONGEST_LINE, MOST_WORDS, SyntaxError};
