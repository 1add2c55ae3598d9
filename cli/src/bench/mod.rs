//! `framewright bench`: measurements, as rows for people or for programs.

mod bring_up;

pub use bring_up::run;
