//! The start information of the PVH boot protocol (`hvm_start_info`, versions 0 and 1).
//!
//! The boot loader leaves it in memory: it says where the memory map, the command line, the modules
//! and the ACPI root pointer are. Every count is bounded, every reference is checked, and
//! everything is copied, each byte once, when the information is read. The accessors therefore
//! cannot fail, and later changes of that memory have no effect here.

use crate::PhysicalMemory;
use crate::bytes::{u32_at, u64_at};
use crate::physical::Storage;
use core::fmt;
use framewright::firmware::MemoryKind;
use framewright::units::PhysRange;

/// The number with which the start information begins.
pub const MAGIC: u32 = 0x336e_c578;
/// The longest command line that is read, without its terminating zero.
pub const MAX_COMMAND_LINE_BYTES: usize = 4096;
/// The most memory-map entries that are read.
pub const MAX_MEMORY_ENTRIES: u32 = 4096;
/// The most modules that are read.
pub const MAX_MODULES: u32 = 256;

const VERSION_0_BYTES: usize = 40;
const VERSION_1_BYTES: usize = 56;
const MEMORY_ENTRY_BYTES: usize = 24;
const MODULE_BYTES: usize = 32;

/// What is wrong with the start information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PvhError {
    /// A part of it is at an address that cannot be read.
    Unreadable {
        /// Which part.
        what: &'static str,
        /// Where.
        address: u64,
    },
    /// It does not begin with [`MAGIC`].
    WrongMagic {
        /// The number with which it begins.
        found: u32,
    },
    /// It claims an implausible number of something.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
        /// The largest number that is accepted.
        most: u32,
    },
    /// The storage for copies is too small.
    NoRoom {
        /// For which part.
        what: &'static str,
        /// The number of bytes that it takes.
        length: usize,
        /// The number of bytes that were left.
        left: usize,
    },
    /// The command line has no terminating zero within [`MAX_COMMAND_LINE_BYTES`].
    EndlessCommandLine,
    /// The command line is not UTF-8.
    CommandLineNotText {
        /// The number of valid bytes at its beginning.
        valid_bytes: usize,
    },
}

impl fmt::Display for PvhError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { what, address } => {
                write!(f, "PVH: the {what} at {address:#x} cannot be read")
            }
            Self::WrongMagic { found } => {
                write!(f, "PVH: the start information begins with {found:#x} instead of {MAGIC:#x}")
            }
            Self::TooMany { what, count, most } => {
                write!(f, "PVH: {count} {what}, but at most {most} are accepted")
            }
            Self::NoRoom { what, length, left } => {
                write!(
                    f,
                    "PVH: there is no room to copy {length} bytes of {what} ({left} are left)"
                )
            }
            Self::EndlessCommandLine => {
                write!(f, "PVH: the command line is longer than {MAX_COMMAND_LINE_BYTES} bytes")
            }
            Self::CommandLineNotText { valid_bytes } => {
                write!(f, "PVH: the command line is not UTF-8 from byte {valid_bytes} on")
            }
        }
    }
}

impl core::error::Error for PvhError {}

/// One entry of the memory map, as given: nothing in it is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryEntry {
    /// The first byte.
    pub start: u64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
}

/// The start information. See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct StartInfo<'a> {
    /// The version: memory-map entries exist from version 1 on.
    pub version: u32,
    /// Where the ACPI root pointer (RSDP) is.
    pub rsdp: Option<u64>,
    /// The bytes of the start information itself.
    pub own_range: PhysRange,
    /// The bytes of the memory-map array.
    pub memory_map_range: PhysRange,
    /// The bytes of the module list, not of the modules.
    pub module_list_range: PhysRange,
    /// The bytes of the command line, including its terminating zero.
    pub command_line_range: PhysRange,
    command_line: &'a [u8],
    memory_map: &'a [u8],
    modules: &'a [u8],
}

impl<'a> StartInfo<'a> {
    /// The number of bytes of storage for a memory map of this many entries, 256 modules and the
    /// longest command line.
    #[must_use]
    pub const fn storage_bytes(memory_entries: usize) -> usize {
        memory_entries * MEMORY_ENTRY_BYTES
            + MAX_MODULES as usize * MODULE_BYTES
            + MAX_COMMAND_LINE_BYTES
    }

    /// Copies the start information at `address` and everything that it refers to into `storage`
    /// and checks it. [`storage_bytes`](Self::storage_bytes) says how much storage is enough.
    ///
    /// # Errors
    /// See [`PvhError`].
    pub fn read(
        memory: &impl PhysicalMemory,
        address: u64,
        storage: &'a mut [u8],
    ) -> Result<Self, PvhError> {
        let unreadable = PvhError::Unreadable { what: "start information", address };
        let mut storage = Storage::new(storage);
        let mut head = [0; VERSION_1_BYTES];
        let (first, second) = head.split_at_mut(VERSION_0_BYTES);
        if !memory.copy(address, first) {
            return Err(unreadable);
        }
        let number = |bytes: &[u8], offset| u32_at(bytes, offset).ok_or(unreadable);
        let wide = |bytes: &[u8], offset| u64_at(bytes, offset).ok_or(unreadable);
        let magic = number(first, 0)?;
        if magic != MAGIC {
            return Err(PvhError::WrongMagic { found: magic });
        }
        let version = number(first, 4)?;
        let (own_bytes, map) = if version >= 1 {
            let at = address.checked_add(VERSION_0_BYTES as u64).ok_or(unreadable)?;
            if !memory.copy(at, second) {
                return Err(unreadable);
            }
            (VERSION_1_BYTES, (wide(&head, 40)?, number(&head, 48)?))
        } else {
            (VERSION_0_BYTES, (0, 0))
        };
        let list = (wide(&head, 16)?, number(&head, 12)?);
        let entries = Array {
            what: "memory-map entries",
            each: MEMORY_ENTRY_BYTES,
            most: MAX_MEMORY_ENTRIES,
        };
        let (memory_map, memory_map_range) = entries.read(memory, map.0, map.1, &mut storage)?;
        let modules = Array { what: "modules", each: MODULE_BYTES, most: MAX_MODULES };
        let (modules, module_list_range) = modules.read(memory, list.0, list.1, &mut storage)?;
        let line_address = wide(&head, 24)?;
        let command_line = read_command_line(memory, line_address, &mut storage)?;
        let line_bytes = if line_address == 0 { 0 } else { command_line.len() as u64 + 1 };
        Ok(Self {
            version,
            rsdp: Some(wide(&head, 32)?).filter(|&rsdp| rsdp != 0),
            own_range: PhysRange::with_size(address, own_bytes as u64),
            memory_map_range,
            module_list_range,
            command_line_range: PhysRange::with_size(line_address, line_bytes),
            command_line,
            memory_map,
            modules,
        })
    }

    /// The command line; empty if there is none.
    ///
    /// # Errors
    /// [`PvhError::CommandLineNotText`].
    pub fn command_line(&self) -> Result<&'a str, PvhError> {
        core::str::from_utf8(self.command_line)
            .map_err(|error| PvhError::CommandLineNotText { valid_bytes: error.valid_up_to() })
    }

    /// The memory map in the order given, including entries of size 0.
    pub fn memory_map(&self) -> impl Iterator<Item = MemoryEntry> + use<'a> {
        self.memory_map.chunks_exact(MEMORY_ENTRY_BYTES).filter_map(|entry| {
            Some(MemoryEntry {
                start: u64_at(entry, 0)?,
                size_bytes: u64_at(entry, 8)?,
                kind: MemoryKind::from_e820(u32_at(entry, 16)?),
            })
        })
    }

    /// Where the modules are.
    pub fn modules(&self) -> impl Iterator<Item = PhysRange> + use<'a> {
        self.modules
            .chunks_exact(MODULE_BYTES)
            .filter_map(|module| Some(PhysRange::with_size(u64_at(module, 0)?, u64_at(module, 8)?)))
    }
}

/// An array that the start information refers to.
struct Array {
    what: &'static str,
    /// The size of one element in bytes.
    each: usize,
    /// The most elements that are accepted.
    most: u32,
}

impl Array {
    /// Copies `count` elements and returns the copy and their original range.
    fn read<'a>(
        &self,
        memory: &impl PhysicalMemory,
        address: u64,
        count: u32,
        storage: &mut Storage<'a>,
    ) -> Result<(&'a [u8], PhysRange), PvhError> {
        let &Self { what, each, most } = self;
        if count == 0 {
            return Ok((&[], PhysRange::default()));
        }
        if count > most {
            return Err(PvhError::TooMany { what, count, most });
        }
        let (length, left) = (count as usize * each, storage.left());
        let bytes = storage.take(length).ok_or(PvhError::NoRoom { what, length, left })?;
        if !memory.copy(address, bytes) {
            return Err(PvhError::Unreadable { what, address });
        }
        Ok((bytes, PhysRange::with_size(address, length as u64)))
    }
}

/// Copies the bytes up to the terminating zero. They are read one by one, because their number is
/// not given and the memory may end right after the zero.
fn read_command_line<'a>(
    memory: &impl PhysicalMemory,
    address: u64,
    storage: &mut Storage<'a>,
) -> Result<&'a [u8], PvhError> {
    if address == 0 {
        return Ok(&[]);
    }
    let what = "command line";
    let left = storage.left();
    let room = storage.take(left.min(MAX_COMMAND_LINE_BYTES)).unwrap_or_default();
    let mut length = 0;
    loop {
        let mut byte = [0];
        let at = address.checked_add(length as u64);
        if !at.is_some_and(|at| memory.copy(at, &mut byte)) {
            return Err(PvhError::Unreadable { what, address });
        }
        if byte == [0] {
            return Ok(room.get(..length).unwrap_or_default());
        }
        match room.get_mut(length) {
            Some(place) => *place = byte[0],
            None if length == MAX_COMMAND_LINE_BYTES => return Err(PvhError::EndlessCommandLine),
            None => return Err(PvhError::NoRoom { what, length: length + 1, left }),
        }
        length += 1;
    }
}
