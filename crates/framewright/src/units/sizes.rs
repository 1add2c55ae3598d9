//! The sizes of pages, blocks, sections and addresses.

/// log2 of the bytes in a page.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page (4 KiB).
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Order of a block: 2 MiB, the pageblock of Linux.
pub const BLOCK_ORDER: u8 = 9;
/// Frames in a block.
pub const PAGES_PER_BLOCK: u64 = 1 << BLOCK_ORDER;
/// log2 of the bytes in a block.
pub const BLOCK_SHIFT: u32 = PAGE_SHIFT + BLOCK_ORDER as u32;
/// Bytes in a block (2 MiB).
pub const BLOCK_SIZE: u64 = 1 << BLOCK_SHIFT;
/// The largest order that the allocator hands out as one piece: 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// Frames in a memory section (128 MiB), the grain of deferred initialisation.
pub const PAGES_PER_SECTION: u64 = 1 << 15;
/// The largest width of a physical address that is accepted.
pub const PHYSICAL_ADDRESS_BITS: u32 = 52;
/// One past the last physical address that can exist.
pub const PHYSICAL_ADDRESS_END: u64 = 1 << PHYSICAL_ADDRESS_BITS;
/// The most nodes that the manager supports: 1024 with the feature `many-nodes`, otherwise 64, and
/// one without `numa`.
pub const MAX_NODES: usize =
    if cfg!(feature = "numa") { framewright_jobs::MAX_NODES as usize } else { 1 };
