//! Reads a running Linux: the file that says most about memory, and the nodes.

use super::error::SourceError;
use super::machine::Machine;
use super::sysfs::{block_bytes, block_range, mem_total, numbered, value};
use super::{iomem, kinds, nodes, size};
use framewright::firmware::{MapRange, MemoryKind};
use std::fs;
use std::path::Path;

/// Reads the memory map, or returns why it cannot.
type Source = fn(&Path, &mut Machine) -> Result<(), String>;

/// The sources, best first: the firmware's map, the kernel's version of it, the memory blocks that
/// exist, and the mere amount of memory.
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
            machine.notes.push(format!("memory of unknown type {kind:?} is treated as reserved"));
            MemoryKind::Reserved
        });
        machine.ranges.push(MapRange { range, kind });
    }
    // A kernel without the firmware's map still has the folder, but only with its own reservations.
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
        // Blocks have no state if the kernel cannot remove memory. Such blocks count as online.
        let state = value(&folder.join(format!("memory{number}/state")));
        if state.is_ok_and(|state| state != "online") {
            continue;
        }
        let range = block_range(number, bytes)
            .ok_or_else(|| format!("memory{number} lies beyond all addresses"))?;
        match machine.ranges.last_mut() {
            Some(last) if last.range.end == range.start => last.range.end = range.end,
            _ => machine.ranges.push(MapRange { range, kind: MemoryKind::Conventional }),
        }
    }
    if machine.ranges.is_empty() {
        return Err("no block is online".to_owned());
    }
    machine.notes.push(format!(
        "memory is known only in blocks of {} MiB; smaller holes are not seen",
        bytes >> 20
    ));
    Ok(())
}

fn total(root: &Path, machine: &mut Machine) -> Result<(), String> {
    let text = value(&root.join("proc/meminfo"))?;
    let bytes = mem_total(&text, "MemTotal:").ok_or("it has no readable MemTotal line")?;
    machine.ranges = Machine::synthetic(bytes, 1, 1).map_err(|error| error.to_string())?.ranges;
    machine.notes.push("only the amount of memory is known; where it lies is made up".to_owned());
    Ok(())
}
