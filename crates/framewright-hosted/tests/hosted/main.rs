//! A process as a machine, and the information that a system gives about itself.

mod common;

mod known_answers;
mod many_nodes;
mod platform;
mod random_text;
mod reporting;
mod system_trees;
mod unaccepted;
mod vmemmap;
