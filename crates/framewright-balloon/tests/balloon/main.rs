//! The driver against a device simulated by the test kit.

mod common;

mod hostile;
mod inflation;
mod managed;
mod platform;
mod random;
mod reporting;
mod start;
