//! The driver against a device that the test kit plays.

mod common;

mod hostile;
mod inflation;
mod managed;
mod platform;
mod random;
mod reporting;
mod start;
