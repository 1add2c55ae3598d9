//! Memory maps and topologies as firmware gives them.

mod cases;
mod properties;
mod unaccepted;
