//! Tables as firmware writes them, and as it should not.

mod changes;
mod fuzz;
mod topology;
