//! Virtual machines: QEMU's command line, the guest's image, one supervised run, and what the guest
//! says over its serial line.

pub mod attempts;
pub mod command;
pub mod encoding;
pub mod guest_image;
pub mod protocol;
pub mod run;
