//! The vmemmap: page descriptors as the adopter reaches them (`pages`), memory that becomes
//! available after bring-up (`deferred`), and giving back the descriptors of huge pages (`hvo`;
//! `hvo_owned` for pages that nobody else has, on their way into a pool).

pub(crate) mod deferred;
mod hvo;
mod hvo_owned;
mod pages;
