//! A command interpreter over a [`Manager`](framewright::Manager): control files, allocations,
//! workloads.
//!
//! A [`Shell`] runs text, command by command, and writes to whatever takes text. It has no heap, no
//! thread and no clock: what it needs of those its [`Host`] brings, and what it holds it keeps in a
//! table that its owner gives it. An [`Editor`] makes lines out of what is typed on a terminal or
//! comes down a serial line.
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
//!     let mut shell = Shell::new(manager, FileSystem::new(&sources), &OneCpu, &mut held);
//!     let mut errors = String::new();
//!     shell.run("alloc 3 10; cat /proc/buddyinfo; free all", out, &mut errors)
//! }
//! ```
//!
//! # The language
//!
//! Commands end at `;` or at the end of the line. Words are separated by blanks; `'…'` and `"…"`
//! and a backslash keep blanks and other signs, `#` begins a comment, `$?` is the status of the
//! command before. `> FILE` and `>> FILE` write what the command says to a control file. Nothing
//! else of a Unix shell is there; signs that would mean more there are refused. A status of 0 is
//! success, 1 failure, 2 a wrong command line, 127 no such command, 130 interrupted.
//!
//! # Who watches
//!
//! [`Requests`] answers who reads control files from outside, over a socket or a second serial
//! line.
//!
//! # More commands
//!
//! Whoever has a command of their own implements [`Command`] and passes it to
//! [`Shell::with_commands`]; `help` shows it with the others.
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
pub use host::Host;
pub use io::{Failed, Io};
pub use requests::{LONGEST_REQUEST, Requests};
pub use shell::{Command, Shell};
pub use words::{LONGEST_LINE, MOST_WORDS, SyntaxError};
