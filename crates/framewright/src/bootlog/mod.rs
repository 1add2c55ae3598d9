//! The reports of bring-up: the boot log in Linux's style for people and a JSON object for
//! programs, the same on every platform.

mod hugetlb;
mod json;
mod log;
mod memory;

pub use hugetlb::huge_pages;
pub use json::json;
pub use log::{
    BootLog, Intake, bring_up, deferred, firmware_map, mirrored, parameter_problem, topology,
};
pub use memory::{allocation_failure, show_memory};
