//! Watching a machine from another process: whoever runs a shell listens on a socket of the user's
//! own, and answers who reads its control files.
//!
//! A thread of the process answers for a machine in it, the guest answers over its second serial
//! line for a virtual one ([`GuestLine`]); the language is that of [`framewright_shell::Requests`]
//! on both ways. Nothing can be written, and nobody waits for whoever asks.

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
pub use place::{MonitorPlace, Running, running, with_monitors};
pub use server::with_watchers;
