//! Errors as numbers, and words for them.

use core::ffi::c_char;
use framewright::firmware::MapError;
use framewright::manager::{HotplugError, PlatformFault, RangeError, ReleaseError};
use framewright::memblock::MemblockError;
use framewright::zone::FreeError;
use framewright::{AllocateError, BringUpError};

/// What a call returns.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fw_error {
    /// All is well.
    FW_OK = 0,
    /// A pointer that must not be null is null, or one is not aligned as what it points to.
    FW_NULL = 1,
    /// `fw_bring_up` has not succeeded yet.
    FW_NOT_UP = 2,
    /// `fw_bring_up` has succeeded before.
    FW_ALREADY_UP = 3,
    /// Another call of this kind is at work; nothing has changed.
    FW_BUSY = 4,
    /// The platform's `size` is not `sizeof(struct fw_platform)`.
    FW_WRONG_SIZE = 5,
    /// The platform's `version` is not `FW_VERSION`.
    FW_WRONG_VERSION = 6,
    /// The platform's `cpus` is 0.
    FW_NO_CPUS = 7,
    /// The platform lacks a function that it must have.
    FW_NULL_CALL = 8,
    /// The platform's `pin` gave a number that is not below `cpus`.
    FW_WRONG_CPU = 9,
    /// The platform's `direct_base` is null without `FW_IDENTITY_MAP`, or not null with it, or no
    /// multiple of the page size, or `direct_limit` is beyond the end of the address space.
    FW_WRONG_DIRECT_MAP = 10,
    /// The platform's `flags` have unknown bits.
    FW_WRONG_FLAGS = 11,
    /// A range of the map has no known kind.
    FW_WRONG_KIND = 12,
    /// Over 64 ranges that are used, or more of the map than there is room for: 256 always have
    /// room, in any order and however they overlap.
    FW_TOO_MANY_RANGES = 13,
    /// A range ends beyond the address space, or memory that is added beyond `direct_limit`.
    FW_BEYOND_ADDRESS_SPACE = 14,
    /// The map has no usable memory.
    FW_NO_USABLE_MEMORY = 15,
    /// There is no room for the tables.
    FW_NO_ROOM_FOR_TABLES = 16,
    /// Nothing is left to hand out once the tables are placed.
    FW_NOTHING_TO_MANAGE = 17,
    /// The command line is not UTF-8, or has 4096 bytes or more.
    FW_WRONG_TEXT = 18,
    /// There is not as much memory in one run.
    FW_OUT_OF_MEMORY = 19,
    /// No whole page, a size above 1 GiB that is larger than every zone, or an alignment above
    /// 1 GiB.
    FW_BAD_SIZE = 20,
    /// An order above 18, or an alignment that is no power of two.
    FW_BAD_ORDER = 21,
    /// No such migrate type, or one that nobody allocates.
    FW_BAD_TYPE = 22,
    /// An address is not aligned as the call wants it.
    FW_NOT_ALIGNED = 23,
    /// These pages are not allocated, or not as this call frees them.
    FW_NOT_ALLOCATED = 24,
    /// There is no memory at the address that the manager knows, or it is page 0.
    FW_NOT_MANAGED = 25,
    /// There is memory already.
    FW_PRESENT = 26,
    /// Memory that is added lies where no table reaches, or has frame 0.
    FW_NO_WINDOW = 27,
    /// The manager uses these pages itself.
    FW_IN_USE = 28,
    /// Something wrote to memory that was free.
    FW_DAMAGED = 29,
    /// The tables contradict each other.
    FW_FAULT = 30,
}

pub(crate) use fw_error::*;

impl fw_error {
    /// As C has it.
    pub(crate) const fn number(self) -> i32 {
        self as i32
    }
}

/// A result as C has it.
pub(crate) fn number(result: Result<(), fw_error>) -> i32 {
    result.err().unwrap_or(FW_OK).number()
}

/// Words, by number.
const WORDS: [&core::ffi::CStr; 31] = [
    c"no error",
    c"a pointer that must not be null is null, or a pointer is not aligned",
    c"memory is not up: fw_bring_up has not succeeded yet",
    c"memory is up already",
    c"another call of this kind is at work",
    c"the platform's size is not sizeof(struct fw_platform)",
    c"the platform's version is not FW_VERSION",
    c"the platform has no CPU",
    c"the platform lacks a function that it must have",
    c"the platform's pin gave a number that is not below its cpus",
    c"the platform's direct_base does not fit its flags, its direct_limit or the page size",
    c"the platform's flags have unknown bits",
    c"a range of the memory map has no known kind",
    c"there is no room for so many ranges",
    c"a range ends beyond the address space, or added memory beyond direct_limit",
    c"the memory map has no usable memory",
    c"there is no room for the manager's tables",
    c"nothing is left to hand out once the tables are placed",
    c"the command line is not UTF-8, or has 4096 bytes or more",
    c"out of memory",
    c"the size is 0 or larger than every zone, or the alignment is above 1 GiB",
    c"the order is above 18, or the alignment is not a power of two",
    c"there is no such migrate type, or it cannot be allocated",
    c"the address is not aligned as the call wants it",
    c"the pages are not allocated, or not in the way they are freed",
    c"there is no memory at the address that the manager knows, or it is page 0",
    c"there is memory already",
    c"no table reaches the memory, or it has frame 0",
    c"the manager uses these pages itself",
    c"something wrote to free memory",
    c"the tables contradict each other",
];

/// Words for what a call returned, in one line, for ever. Never null: an unknown number has words
/// that say so.
#[unsafe(no_mangle)]
pub extern "C" fn fw_strerror(error: i32) -> *const c_char {
    let words = usize::try_from(error).ok().and_then(|error| WORDS.get(error));
    words.map_or(c"unknown error", |words| *words).as_ptr()
}

impl From<MapError> for fw_error {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Empty | MapError::NoUsableMemory => FW_NO_USABLE_MEMORY,
            MapError::TooManyRanges { .. } => FW_TOO_MANY_RANGES,
            MapError::BeyondAddressSpace { .. } => FW_BEYOND_ADDRESS_SPACE,
        }
    }
}

impl From<MemblockError> for fw_error {
    fn from(error: MemblockError) -> Self {
        match error {
            MemblockError::MisalignedDirectMap { .. } => FW_WRONG_DIRECT_MAP,
            _ => FW_NO_ROOM_FOR_TABLES,
        }
    }
}

impl From<BringUpError> for fw_error {
    fn from(error: BringUpError) -> Self {
        match error {
            BringUpError::NoRoomForTables { .. } => FW_NO_ROOM_FOR_TABLES,
            BringUpError::NothingToManage => FW_NOTHING_TO_MANAGE,
            BringUpError::Platform(PlatformFault::NoCpu) => FW_NO_CPUS,
            BringUpError::Platform(PlatformFault::CpuNumber { .. }) => FW_WRONG_CPU,
            BringUpError::Platform(PlatformFault::MisalignedDirectMap { .. }) => {
                FW_WRONG_DIRECT_MAP
            }
        }
    }
}

impl From<AllocateError> for fw_error {
    fn from(error: AllocateError) -> Self {
        match error {
            AllocateError::BadSize { .. } | AllocateError::BadBoundary { .. } => FW_BAD_SIZE,
            AllocateError::NotAligned { .. } => FW_NOT_ALIGNED,
            AllocateError::BadType(_) => FW_BAD_TYPE,
            AllocateError::Damaged(_) => FW_DAMAGED,
            _ => FW_OUT_OF_MEMORY,
        }
    }
}

impl From<FreeError> for fw_error {
    fn from(error: FreeError) -> Self {
        match error {
            FreeError::Empty(_) => FW_BAD_SIZE,
            FreeError::NotManaged(_) => FW_NOT_MANAGED,
            FreeError::NotAligned { .. } => FW_NOT_ALIGNED,
            _ => FW_NOT_ALLOCATED,
        }
    }
}

impl From<HotplugError> for fw_error {
    fn from(error: HotplugError) -> Self {
        match error {
            HotplugError::Empty(_) => FW_BAD_SIZE,
            HotplugError::NotAligned(_) | HotplugError::BadPieces { .. } => FW_NOT_ALIGNED,
            HotplugError::TooHigh(_) => FW_BEYOND_ADDRESS_SPACE,
            HotplugError::Present(_) | HotplugError::OtherNode(..) => FW_PRESENT,
            HotplugError::NoRoomForTables { .. } | HotplugError::Tables(_) => FW_NO_ROOM_FOR_TABLES,
            HotplugError::Busy | HotplugError::Veto(_) => FW_BUSY,
            HotplugError::Absent(_) | HotplugError::NotReached(_) => FW_NOT_MANAGED,
            HotplugError::Range(RangeError::Place(error)) => error.into(),
            _ => FW_NO_WINDOW,
        }
    }
}

impl From<ReleaseError> for fw_error {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Empty(_) => FW_BAD_SIZE,
            ReleaseError::NotMemory(_) | ReleaseError::Unaccepted(_) => FW_NOT_MANAGED,
            ReleaseError::Managed(_) => FW_PRESENT,
            ReleaseError::Manager(_) => FW_IN_USE,
            ReleaseError::TooManyPieces(_) => FW_NO_ROOM_FOR_TABLES,
            ReleaseError::Busy => FW_BUSY,
        }
    }
}
