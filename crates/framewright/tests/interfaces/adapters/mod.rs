//! The manager behind the traits of other crates.

#[cfg(all(
    feature = "bootloader_api",
    feature = "limine",
    feature = "multiboot2",
    feature = "uefi-raw"
))]
mod maps;
#[cfg(feature = "virtio-drivers")]
mod virtio;
#[cfg(feature = "x86_64")]
mod x86_64;
