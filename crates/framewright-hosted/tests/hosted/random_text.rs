//! Random machines survive being written and parsed; random text never causes a panic or a wrong
//! result.

use framewright::firmware::{MapRange, MemoryKind};
use framewright::units::PhysRange;
use framewright_hosted::{Affinity, CpuAffinity, Machine, SourceError, parse_size};
use proptest::collection::vec;
use proptest::prelude::*;

fn range() -> impl Strategy<Value = PhysRange> {
    (any::<u64>(), any::<u64>(), 0..64_u32).prop_map(|(start, size, shift)| {
        let start = start >> shift;
        PhysRange::new(start, start.saturating_add(size >> shift))
    })
}

fn line() -> impl Strategy<Value = String> {
    "[ -~é]{0,30}".prop_map(|text| text.trim().to_owned())
}

fn machine() -> impl Strategy<Value = Machine> {
    let ranges = vec((range(), 0..MemoryKind::ALL.len()), 1..20);
    let affinities = vec((range(), any::<u32>(), any::<bool>()), 0..10);
    let cpus = proptest::collection::btree_set(any::<u32>(), 0..40);
    let distances = vec((any::<u32>(), any::<u32>(), any::<u8>()), 0..10);
    let mirrored = vec(range(), 0..4);
    (line(), ranges, mirrored, affinities, cpus, vec(0..5_u32, 40), distances, vec(line(), 0..4))
        .prop_map(|(name, ranges, mirrored, affinities, cpus, nodes, distances, notes)| Machine {
            name,
            ranges: ranges
                .into_iter()
                .map(|(range, kind)| MapRange { range, kind: MemoryKind::ALL[kind] })
                .collect(),
            mirrored,
            affinities: affinities
                .into_iter()
                .map(|(range, node, hot_pluggable)| Affinity { range, node, hot_pluggable })
                .collect(),
            cpus: cpus
                .into_iter()
                .zip(nodes)
                .map(|(cpu, node)| CpuAffinity { cpu, node })
                .collect(),
            distances,
            notes,
        })
}

/// A valid file in one of the formats.
fn valid() -> impl Strategy<Value = String> {
    let iomem = "00001000-0009fbff : System RAM\n\x20 00010000-00010fff : Kernel code\n\
                 00100000-bfffffff : System RAM\n";
    prop_oneof![
        Just(crate::common::machine_text("sun-x4600m2-128g-8node.dmesg")),
        Just(crate::common::machine_text("qemu-q35-8g-2node.dmesg")),
        Just(iomem.to_owned()),
        machine().prop_map(|machine| machine.to_text()),
    ]
}

/// One change of a text: cut, repeat, insert or replace.
#[derive(Clone, Debug)]
enum Change {
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, String),
    Repeat(prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..40_usize)
            .prop_map(|(at, length)| Change::Remove(at, length)),
        (any::<prop::sample::Index>(), "[0-9a-fx +:>\\[\\]\\n\\r-]{1,4}|\\PC{1,3}")
            .prop_map(|(at, text)| Change::Insert(at, text)),
        (any::<prop::sample::Index>(), 1..200_usize)
            .prop_map(|(at, length)| Change::Repeat(at, length)),
    ]
}

fn apply(text: &str, change: &Change) -> String {
    let chars: Vec<char> = text.chars().collect();
    let split = |at: &prop::sample::Index, length: usize| {
        let at = at.index(chars.len() + 1);
        (at, (at + length).min(chars.len()))
    };
    let join = |parts: [&[char]; 3]| parts.concat().into_iter().collect();
    match change {
        Change::Remove(at, length) => {
            let (start, end) = split(at, *length);
            join([&chars[..start], &[], &chars[end..]])
        }
        Change::Insert(at, new) => {
            let (start, _) = split(at, 0);
            let new: Vec<char> = new.chars().collect();
            join([&chars[..start], &new, &chars[start..]])
        }
        Change::Repeat(at, length) => {
            let (start, end) = split(at, *length);
            join([&chars[..end], &chars[start..end], &chars[end..]])
        }
    }
}

/// Checks that parsing returns a machine that has memory, or an error that names a line of the text
/// or rejects the text as a whole.
fn check(text: &str) -> Result<(), TestCaseError> {
    match Machine::parse("random", text) {
        Ok(machine) => {
            prop_assert!(!machine.ranges.is_empty());
            let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
            let mut map = framewright::firmware::MapBuilder::new(&mut ranges);
            let mut topology = framewright::firmware::Topology::new(&mut claims);
            match machine.load(&mut map, &mut topology) {
                Ok(()) => drop(map.finish()),
                Err(error) => {
                    let message = error.to_string();
                    prop_assert!(
                        !message.contains("no room") && !message.contains("affinity ranges"),
                        "{message}"
                    );
                }
            }
        }
        Err(SourceError::NoMemory { .. } | SourceError::HiddenAddresses { .. }) => {}
        Err(error) => {
            let place = error.place().expect("any other error has a line");
            let line = text.lines().nth(place.line - 1).expect("the line is one of the text");
            prop_assert_eq!(line.trim_end(), &place.text);
            prop_assert!(error.to_string().contains("expected"));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_written_reads_the_same(machine in machine()) {
        let text = machine.to_text();
        let again = Machine::parse("other", &text);
        prop_assert!(again.is_ok(), "{}: {}", again.unwrap_err(), text);
        prop_assert_eq!(again.unwrap(), machine);
    }

    #[test]
    fn random_text_never_panics(text in "\\PC{0,60}(\\n\\PC{0,60}){0,6}") {
        check(&text)?;
    }

    #[test]
    fn random_lines_never_panic(
        text in "(((BIOS-e820|SRAT|ACPI: SRAT|memory|mirrored|\
                 node|distance|name|> |\\[ 0\\.0\\])[ :]{0,2}){1,2}\
                 [0-9a-fxG+> :()\\[\\]a-z-]{0,40}\\r?\\n){0,6}"
    ) {
        check(&text)?;
    }

    #[test]
    fn changed_files_never_panic(text in valid(), changes in vec(change(), 1..6)) {
        let text = changes.iter().fold(text, |text, change| apply(&text, change));
        check(&text)?;
    }

    #[test]
    fn sizes_never_panic_and_agree(
        text in "\\PC{0,12}", number in any::<u64>(), shift in 0..41_u32
    ) {
        let _ = parse_size(&text);
        prop_assert_eq!(parse_size(&number.to_string()), Ok(number));
        prop_assert_eq!(parse_size(&format!("{number:#x}")), Ok(number));
        let suffix = [(0, ""), (10, "K"), (20, "m"), (30, "GiB"), (40, "TB")][shift as usize / 10];
        let read = parse_size(&format!("{number}{}", suffix.1)).ok();
        prop_assert_eq!(read, number.checked_mul(1 << suffix.0));
    }
}
