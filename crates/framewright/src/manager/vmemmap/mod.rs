//! The vmemmap: page descriptors as the adopter reaches them (`pages`), memory that comes up after
//! bring-up (`deferred`), and giving the descriptors of huge pages back (`hvo`; `hvo_owned` for
//! pages that nobody else has, on their way into a pool).

pub(crate) mod deferred;
mod hvo;
mod hvo_owned;
mod pages;
