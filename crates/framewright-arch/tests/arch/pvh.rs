//! PVH start information: known answers, malformed input, and noise.

use crate::common::{Memory, room};
use framewright::firmware::MemoryKind;
use framewright::units::PhysRange;
use framewright_arch::x86_64::pvh::{
    MAGIC, MAX_COMMAND_LINE_BYTES, MemoryEntry, PvhError, StartInfo,
};
use proptest::prelude::*;

const AT: u64 = 0x1000;
const MAP: u64 = 0x2000;
const LINE: u64 = 0x3000;
const MODULES: u64 = 0x9000;

struct Head {
    version: u32,
    modules: u32,
    line: u64,
    rsdp: u64,
    entries: u32,
}

const HEAD: Head = Head { version: 1, modules: 1, line: LINE, rsdp: 0xf_5000, entries: 2 };

fn memory(head: &Head, line: &[u8]) -> Memory {
    let mut bytes = Vec::new();
    for number in [MAGIC, head.version, 0, head.modules] {
        bytes.extend(number.to_le_bytes());
    }
    for address in [MODULES, head.line, head.rsdp] {
        bytes.extend(address.to_le_bytes());
    }
    if head.version >= 1 {
        bytes.extend(MAP.to_le_bytes());
        bytes.extend(head.entries.to_le_bytes());
        bytes.extend([0; 4]);
    }
    let entry =
        |start: u64, size: u64, kind: u64| [start, size, kind].map(u64::to_le_bytes).concat();
    let mut memory = Memory::default();
    memory.pieces.insert(AT, bytes);
    memory.pieces.insert(MAP, [entry(0x10_0000, 0x700_0000, 1), entry(u64::MAX, 2, 99)].concat());
    memory.pieces.insert(LINE, line.to_vec());
    memory.pieces.insert(MODULES, [0x50_0000u64, 0x1234, 0, 0].map(u64::to_le_bytes).concat());
    memory
}

#[test]
fn everything_comes_out() {
    let memory = memory(&HEAD, b"mem=1G report=json\0rest");
    let mut copies = room();
    let info = StartInfo::read(&memory, AT, &mut copies).expect("is right");
    assert_eq!(info.command_line(), Ok("mem=1G report=json"));
    assert_eq!(info.rsdp, Some(0xf_5000));
    assert_eq!(
        info.memory_map().collect::<Vec<_>>(),
        [
            MemoryEntry {
                start: 0x10_0000,
                size_bytes: 0x700_0000,
                kind: MemoryKind::Conventional
            },
            MemoryEntry { start: u64::MAX, size_bytes: 2, kind: MemoryKind::Reserved },
        ]
    );
    assert_eq!(info.modules().collect::<Vec<_>>(), [PhysRange::new(0x50_0000, 0x50_1234)]);
    assert_eq!(info.own_range, PhysRange::new(AT, AT + 56));
    assert_eq!(info.memory_map_range, PhysRange::new(MAP, MAP + 48));
    assert_eq!(info.module_list_range, PhysRange::new(MODULES, MODULES + 32));
    assert_eq!(info.command_line_range, PhysRange::new(LINE, LINE + 19));
}

#[test]
fn version_0_has_no_map_and_absent_parts_are_absent() {
    let memory = memory(&Head { version: 0, modules: 0, line: 0, rsdp: 0, ..HEAD }, b"");
    let mut copies = room();
    let info = StartInfo::read(&memory, AT, &mut copies).expect("is right");
    assert_eq!(info.memory_map().count() + info.modules().count(), 0);
    assert_eq!(info.command_line(), Ok(""));
    assert_eq!(info.rsdp, None);
    assert!(info.command_line_range.is_empty());
    assert_eq!(info.own_range.size(), 40);
}

#[test]
fn malformed_information_says_what_is_wrong() {
    let refused = |memory: &Memory| {
        StartInfo::read(memory, AT, &mut room()).map(|_| ()).expect_err("is wrong")
    };
    let unreadable = |what, address| PvhError::Unreadable { what, address };
    assert_eq!(refused(&Memory::default()), unreadable("start information", AT));
    let mut wrong = memory(&HEAD, b"\0");
    wrong.pieces.get_mut(&AT).expect("is there")[0] = 0;
    assert_eq!(refused(&wrong), PvhError::WrongMagic { found: MAGIC & !0xff });
    let mut short = memory(&HEAD, b"\0");
    short.pieces.get_mut(&AT).expect("is there").truncate(55);
    assert_eq!(refused(&short), unreadable("start information", AT));
    assert_eq!(
        refused(&memory(&Head { entries: 3, ..HEAD }, b"\0")),
        unreadable("memory-map entries", MAP)
    );
    assert_eq!(
        refused(&memory(&Head { modules: 2, ..HEAD }, b"\0")),
        unreadable("modules", MODULES)
    );
    let many = PvhError::TooMany { what: "memory-map entries", count: u32::MAX, most: 4096 };
    assert_eq!(refused(&memory(&Head { entries: u32::MAX, ..HEAD }, b"\0")), many);
    assert_eq!(
        refused(&memory(&HEAD, &[b'a'; MAX_COMMAND_LINE_BYTES + 100])),
        PvhError::EndlessCommandLine
    );
    assert_eq!(refused(&memory(&HEAD, b"memory ends here")), unreadable("command line", LINE));
    let text = memory(&HEAD, b"ab\xff\0");
    let mut copies = room();
    let info = StartInfo::read(&text, AT, &mut copies).expect("the rest is right");
    assert_eq!(info.command_line(), Err(PvhError::CommandLineNotText { valid_bytes: 2 }));
}

#[test]
fn the_longest_line_fits() {
    let mut line = vec![b'x'; MAX_COMMAND_LINE_BYTES];
    line.push(0);
    let memory = memory(&HEAD, &line);
    let mut copies = room();
    let info = StartInfo::read(&memory, AT, &mut copies).expect("is right");
    assert_eq!(info.command_line().map(str::len), Ok(MAX_COMMAND_LINE_BYTES));
}

proptest! {
    /// The command line is found however little memory follows it.
    #[test]
    fn a_line_at_the_end_of_memory(
        length in 0usize..MAX_COMMAND_LINE_BYTES,
        behind in 0usize..5000,
    ) {
        let mut line = vec![b'x'; length];
        line.push(0);
        line.resize(line.len() + behind, b'y');
        let memory = memory(&HEAD, &line);
        let mut copies = room();
        let info = StartInfo::read(&memory, AT, &mut copies).expect("is right");
        prop_assert_eq!(info.command_line().map(str::len), Ok(length));
    }

    /// Noise never panics, with or without a valid beginning.
    #[test]
    fn noise(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        other in prop::collection::vec(any::<u8>(), 0..200),
        magic in any::<bool>(),
    ) {
        let mut memory = Memory::default();
        let mut bytes = bytes;
        if magic && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        }
        memory.pieces.insert(0, other);
        memory.pieces.insert(AT, bytes);
        let mut copies = room();
        if let Ok(info) = StartInfo::read(&memory, AT, &mut copies) {
            let _ = info.command_line();
            prop_assert!(info.memory_map().count() + info.modules().count() <= 5000);
        }
    }
}
