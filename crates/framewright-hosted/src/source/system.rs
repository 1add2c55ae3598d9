//! A running Linux: which of its files says most about memory, and the nodes beside it.

use super::{Machine, SourceError, iomem, kinds, nodes, size};
use framewright::firmware::{MapRange, MemoryKind};
use framewright::units::PhysRange;
use std::fs;
use std::path::Path;

/// A way to learn the memory map, or why it does not work here.
type Source = fn(&Path, &mut Machine) -> Result<(), String>;

/// Best first: firmware's own words, what the kernel made of them, which blocks there are, and only
/// how much.
const SOURCES: [(&str, Source); 4] = [
    ("sys/firmware/memmap", firmware),
    ("proc/iomem", resources),
    ("sys/devices/system/memory", blocks),
    ("proc/meminfo", total),
];

/// Reads the machine whose `proc` and `sys` trees lie under `root`.
pub(super) fn read(root: &Path) -> Result<Machine, SourceError> {
    let mut machine = Machine::default();
    let mut reasons = Vec::new();
    for (path, source) in SOURCES {
        let shown = root.join(path).display().to_string();
        match source(root, &mut machine) {
            Ok(()) => {
                let whose = if root == Path::new("/") { "this machine" } else { "a copied system" };
                machine.name = format!("{whose}, memory from {shown}");
                machine
                    .notes
                    .splice(0..0, reasons.into_iter().map(|reason| format!("not used: {reason}")));
                nodes::read(root, &mut machine);
                return Ok(machine);
            }
            Err(reason) => reasons.push(format!("{shown}: {reason}")),
        }
        machine = Machine::default();
    }
    Err(SourceError::NoSource { root: root.to_path_buf(), reasons })
}

/// The content of a file of one value, trimmed.
pub(crate) fn value(path: &Path) -> Result<String, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The numbers `N` of the entries `prefixN` of a folder, ascending.
pub(crate) fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u64>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut numbers: Vec<u64> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| size::parse_decimal(entry.file_name().to_str()?.strip_prefix(prefix)?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Bytes in one of the kernel's memory blocks.
pub(super) fn block_bytes(root: &Path) -> Result<u64, String> {
    let text = value(&root.join("sys/devices/system/memory/block_size_bytes"))?;
    size::parse_hex(&text)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("block_size_bytes is {text:?}"))
}

/// Block `number`, or nothing when it lies beyond any address.
pub(super) fn block_range(number: u64, bytes: u64) -> Option<PhysRange> {
    let start = number.checked_mul(bytes)?;
    Some(PhysRange::new(start, start.checked_add(bytes)?))
}

fn firmware(root: &Path, machine: &mut Machine) -> Result<(), String> {
    let folder = root.join("sys/firmware/memmap");
    let numbers = numbered(&folder, "")?;
    if numbers.is_empty() {
        return Err("empty".to_owned());
    }
    for number in numbers {
        let entry = folder.join(number.to_string());
        let field = |name: &str| {
            value(&entry.join(name)).map_err(|reason| format!("{number}/{name}: {reason}"))
        };
        let (start, end, kind) = (field("start")?, field("end")?, field("type")?);
        let range = size::parse_inclusive(&format!("{start}-{end}"));
        let range =
            range.ok_or_else(|| format!("entry {number} goes from {start:?} to {end:?}"))?;
        let kind = kinds::kind(&kind).unwrap_or_else(|| {
            machine.notes.push(format!("memory of unknown type {kind:?} is taken for reserved"));
            MemoryKind::Reserved
        });
        machine.ranges.push(MapRange { range, kind });
    }
    // A kernel without the firmware's map still has the folder, with reservations of its own.
    let has_memory = machine.ranges.iter().any(|entry| entry.kind.is_present());
    if has_memory { Ok(()) } else { Err("no usable memory in it".to_owned()) }
}

fn resources(root: &Path, machine: &mut Machine) -> Result<(), String> {
    let path = root.join("proc/iomem");
    let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    machine.ranges = match iomem::parse("iomem", &text) {
        Ok(parsed) => parsed.ranges,
        Err(SourceError::HiddenAddresses { .. }) => {
            return Err("its addresses are hidden from this user".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    let has_memory = machine.ranges.iter().any(|entry| entry.kind.is_present());
    if has_memory { Ok(()) } else { Err("no usable memory in it".to_owned()) }
}

fn blocks(root: &Path, machine: &mut Machine) -> Result<(), String> {
    let folder = root.join("sys/devices/system/memory");
    let bytes = block_bytes(root)?;
    for number in numbered(&folder, "memory")? {
        // A block without a state is one of a kernel that cannot take memory out.
        let state = value(&folder.join(format!("memory{number}/state")));
        if state.is_ok_and(|state| state != "online") {
            continue;
        }
        let range = block_range(number, bytes)
            .ok_or_else(|| format!("memory{number} lies beyond any address"))?;
        match machine.ranges.last_mut() {
            Some(last) if last.range.end == range.start => last.range.end = range.end,
            _ => machine.ranges.push(MapRange { range, kind: MemoryKind::Conventional }),
        }
    }
    if machine.ranges.is_empty() {
        return Err("no block is online".to_owned());
    }
    machine.notes.push(format!(
        "memory is known only in blocks of {} MiB; small holes in them are not",
        bytes >> 20
    ));
    Ok(())
}

fn total(root: &Path, machine: &mut Machine) -> Result<(), String> {
    let text = value(&root.join("proc/meminfo"))?;
    let bytes = mem_total(&text, "MemTotal:").ok_or("it has no readable line MemTotal")?;
    machine.ranges = Machine::synthetic(bytes, 1, 1).map_err(|error| error.to_string())?.ranges;
    machine.notes.push("only the amount of memory is known; where it lies is made up".to_owned());
    Ok(())
}

/// The bytes of a line such as `MemTotal:  24684092 kB`; `label` may stand anywhere in the line.
pub(super) fn mem_total(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once(label))?.1;
    size::parse_decimal::<u64>(rest.trim().strip_suffix("kB")?.trim())?.checked_mul(1024)
}
