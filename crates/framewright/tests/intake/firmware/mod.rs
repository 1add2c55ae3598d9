//! Memory maps and topologies as firmware provides them.

mod cases;
mod properties;
mod unaccepted;
