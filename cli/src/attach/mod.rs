//! Watching a machine from another process: a process that runs a shell listens on a socket of the
//! user's own, and answers other processes that read its control files.
//!
//! For a machine in the process, one of its threads answers; for a virtual machine, the guest
//! answers over its second serial line ([`GuestLine`]). Both use the language of
//! [`framewright_shell::Requests`]. Nothing can be written, and the machine never waits for a
//! client.

mod answer;
mod choice;
mod client;
mod guest;
mod monitor;
mod peer;
mod place;
mod server;

pub use choice::Sort;
pub use client::{Client, ReadError};
pub use guest::GuestLine;
pub use monitor::{Monitor, MonitorError};
pub use place::{MonitorPlace, Running, own_folder, remove_own, running, with_monitors};
pub use server::with_watchers;
