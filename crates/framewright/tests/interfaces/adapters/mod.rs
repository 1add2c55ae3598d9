//! The manager behind the traits of other crates.

#[cfg(feature = "virtio-drivers")]
mod virtio;
#[cfg(feature = "x86_64")]
mod x86_64;
