//! Pages: each CPU's cache of free pages, and the descriptor of each page.
//!
//! `cache` is a CPU's own store of free pages. It is made of `words`, stacks and `odd` runs, and
//! `limits` gives its size; `near` and `away` tell whose frames it keeps, and `emptying` is how
//! these leave it. `record` is a page's descriptor, for adopters that want one; `array` and
//! `inside` are the two places where it may be, and `fill` writes its initial value. `partial`
//! notes which frames are managed in blocks that are not wholly managed.
//!
//! Pages of split blocks are taken and given back under the zone lock, by `zone`.

mod array;
mod away;
mod cache;
mod emptying;
mod fill;
mod inside;
mod limits;
mod near;
mod odd;
mod partial;
mod record;
mod words;

pub(crate) use array::Array;
pub(crate) use cache::{CpuCache, Flow};
pub(crate) use fill::Fill;
pub(crate) use inside::{BlockPages, DESCRIPTOR_FRAMES, DescriptorFrames, Descriptors};
pub(crate) use limits::{MOST_RETURNED, MOST_RUNS, MOST_WORDS};
pub(crate) use near::Near;
pub(crate) use partial::{Partial, Partials, frames_of, in_block};
pub use record::{Page, PartOf};
pub(crate) use words::{Put, Runs};
