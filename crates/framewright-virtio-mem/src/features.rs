//! What device and driver agree on (virtio 1.2, 5.15.3; the last feature is more recent).

use framewright_virtio::VERSION_1;

bitflags::bitflags! {
    /// Feature bits, with the names of the virtio specification. All of them are accepted if they
    /// are offered.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// The device's node is valid.
        const ACPI_PXM = 1 << 0;
        /// Unplugged memory may not even be read. The adopters of this driver never do that.
        const UNPLUGGED_INACCESSIBLE = 1 << 1;
        /// Plugged memory survives a suspend. Without this feature a guest must not suspend.
        const PERSISTENT_SUSPEND = 1 << 2;
        /// Version 1 of the protocol.
        const VERSION_1 = VERSION_1;
    }
}
