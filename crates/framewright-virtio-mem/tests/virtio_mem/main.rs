//! The driver against a device simulated by the test kit.

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
