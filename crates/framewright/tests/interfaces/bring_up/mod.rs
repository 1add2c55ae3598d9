//! Bring-up on machines of many kinds.

mod entropy;
mod gigabytes;
mod hot_pluggable;
mod is_linear;
mod takes_all;
