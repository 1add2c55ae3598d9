//! A process as a machine, and what a system says about itself.

mod common;

mod known_answers;
mod many_nodes;
mod platform;
mod random_text;
mod reporting;
mod system_trees;
mod unaccepted;
mod vmemmap;
