//! The only unsafe code of the crate: a borrowed job in the hands of other threads, and the cell of
//! the first error.

mod first;
mod post;

pub(crate) use first::FirstError;
pub use post::Post;
pub(crate) use post::{Ended, Recruits, Work, with_recruits};
