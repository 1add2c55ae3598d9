//! Framewright for kernels in C: what `include/framewright.h` declares.
//!
//! ```console
//! $ cargo rustc --release -p framewright-c --crate-type staticlib -- --cfg framewright_archive
//! $ cc -ffreestanding -Icrates/framewright-c/include ... target/release/libframewright_c.a
//! ```
//!
//! The archive needs no runtime. What every kernel in C has is left to it: `memcpy`, `memmove`,
//! `memset`, `memcmp` and `bcmp`. A kernel with interrupts builds it for a target whose code leaves
//! the red zone and vector registers alone (`--target x86_64-unknown-none`).
//!
//! There is one manager, as there is one physical memory. Errors are numbers; [`fw_strerror`] has
//! words for them, and [`fw_platform::log`] is told what and where. Nothing here unwinds, and what
//! a caller gets wrong about arguments is an error.
//!
//! `examples/c-kernel` boots with it. The test `c` builds programs in C with every compiler that is
//! there and runs them under sanitisers; the test `header` compares the header with the sources.
#![no_std]
#![allow(non_camel_case_types, reason = "these are the names that C has")]

#[cfg(framewright_archive)]
mod archive;
mod bring_up;
mod error;
mod instance;
mod memory;
mod platform;

pub use bring_up::{fw_bring_up, fw_kind, fw_range, fw_span};
pub use error::{fw_error, fw_strerror};
pub use memory::{
    fw_add_memory, fw_allocate_layout, fw_allocate_order, fw_allocate_pages, fw_counters,
    fw_direct, fw_drain, fw_free_layout, fw_free_order, fw_free_pages, fw_get_counters, fw_release,
    fw_type, fw_verify,
};
pub use platform::{FW_IDENTITY_MAP, FW_VERSION, fw_check_platform, fw_platform, fw_version};
