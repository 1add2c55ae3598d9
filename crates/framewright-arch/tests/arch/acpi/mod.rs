//! ACPI tables as firmware should write them, and as it should not.

mod changes;
mod fuzz;
mod topology;
