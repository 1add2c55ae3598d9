//! What people and programs see of bring-up: the boot log in Linux's style and a JSON object, the same on every platform.

mod json;
mod log;
mod pools;

pub use json::json;
pub use log::{BootLog, Intake, bring_up, deferred, firmware_map, parameter_problem, topology};
pub use pools::huge_pages;
