//! Virtual machines: QEMU's command line, the guest's image, one supervised run, and the protocol
//! on the guest's serial line.

pub mod attempts;
pub mod command;
pub mod encoding;
pub mod guest_image;
pub mod protocol;
pub mod run;
