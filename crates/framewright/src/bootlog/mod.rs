//! What people and programs see of bring-up: the boot log in Linux's style and a JSON object, the
//! same on every platform.

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
