//! The driver against a device that the test kit plays.

mod common;

mod account;
mod hostile;
#[cfg(feature = "manager")]
mod managed;
mod plug;
mod random;
mod reset;
mod start;
mod unplug;
