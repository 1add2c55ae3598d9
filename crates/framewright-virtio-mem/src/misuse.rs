//! What safe code must not be able to do. Each example stands next to code that is allowed, which
//! shows that the first is refused for the right reason.
//!
//! Giving the device's memory to an arbitrary adopter, possibly to a different one each time:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_virtio_mem::{PluggableMemory, PrivateMemory, VirtioMem};
//! use virtio_drivers::transport::Transport;
//! fn step<H: PrivateMemory, T: Transport>(
//!     device: &mut VirtioMem<H, T>,
//!     memory: &mut dyn PluggableMemory,
//! ) {
//!     let _ = device.work(memory, 0);
//! }
//! ```
//! ```
//! use framewright_virtio_mem::{PluggableMemory, PrivateMemory, VirtioMem};
//! use virtio_drivers::transport::Transport;
//! unsafe fn step<H: PrivateMemory, T: Transport>(
//!     device: &mut VirtioMem<H, T>,
//!     memory: &mut dyn PluggableMemory,
//! ) {
//!     let _ = unsafe { device.work(memory, 0) };
//! }
//! ```
//!
//! Inventing memory, or putting back a run that somebody else has:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_virtio_mem::PluggableMemory;
//! fn make_up(memory: &mut dyn PluggableMemory) {
//!     memory.add(0, 2 << 20);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_virtio_mem::PluggableMemory;
//! fn make_up(memory: &mut dyn PluggableMemory) {
//!     let _ = memory.put_back(0, 2 << 20);
//! }
//! ```
//! ```
//! use framewright_virtio_mem::PluggableMemory;
//! unsafe fn pass_on(memory: &mut dyn PluggableMemory) {
//!     unsafe { memory.add(0, 2 << 20) };
//!     let _ = unsafe { memory.put_back(0, 2 << 20) };
//! }
//! ```
//!
//! An adopter that makes no promise:
//!
//! ```compile_fail,E0200
//! use framewright_virtio_mem::{PluggableMemory, Removal};
//! struct Nothing;
//! impl PluggableMemory for Nothing {
//!     unsafe fn add(&mut self, _: u64, _: u64) -> u64 { 0 }
//!     fn remove(&mut self, _: u64, _: u64) -> Removal { Removal::Nothing { obstacles: 0 } }
//!     unsafe fn put_back(&mut self, _: u64, _: u64) -> bool { true }
//! }
//! ```
//! ```
//! use framewright_virtio_mem::{PluggableMemory, Removal};
//! struct Nothing;
//! // SAFETY: it never takes or gives anything.
//! unsafe impl PluggableMemory for Nothing {
//!     unsafe fn add(&mut self, _: u64, _: u64) -> u64 { 0 }
//!     fn remove(&mut self, _: u64, _: u64) -> Removal { Removal::Nothing { obstacles: 0 } }
//!     unsafe fn put_back(&mut self, _: u64, _: u64) -> bool { true }
//! }
//! ```
