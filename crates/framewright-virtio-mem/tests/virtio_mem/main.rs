//! The driver against a device that the test kit plays.

mod common;

mod account;
mod hostile;
mod plug;
mod random;
mod reset;
mod start;
mod unplug;
