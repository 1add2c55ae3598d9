//! Bring-up on machines of many kinds.

mod entropy;
mod gigabytes;
mod hot_pluggable;
mod is_linear;
mod stack;
mod takes_all;
