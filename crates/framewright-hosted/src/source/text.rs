//! Reads and writes this crate's text format, which is easy to type. `machines/README.md` describes
//! it.

use super::error::SourceError;
use super::kinds;
use super::machine::{Affinity, CpuAffinity, MAX_CPUS, Machine};
use super::reader::{Line, lines};
use super::size::{format_cpu_list, parse_cpu_list, parse_decimal, parse_size};
use framewright::firmware::MapRange;
use framewright::units::PhysRange;
use std::fmt::Write;

const UNKNOWN: &str = "a boot log with BIOS-e820 lines, the content of /proc/iomem, or lines that \
    begin with memory, mirrored, node, distance, name, note or #";
const MEMORY: &str = "\"memory FIRST-LAST KIND\" or \"memory START +SIZE KIND\", such as \
    \"memory 0x100000 +2G usable\"; kinds are usable, hot-pluggable, unaccepted, soft reserved, \
    persistent, ACPI data, ACPI NVS, reserved, unusable and type N";
const MIRRORED: &str = "\"mirrored FIRST-LAST\" or \"mirrored START +SIZE\"";
const NODE: &str = "\"node N memory FIRST-LAST [hotplug]\", \
    \"node N memory START +SIZE [hotplug]\" or \"node N cpus 0-3,8\"";
const DISTANCE: &str = "\"distance FROM TO UNITS\", such as \"distance 0 1 20\", units up to 255";

/// Reads the text format.
pub(super) fn parse(name: &str, text: &str) -> Result<Machine, SourceError> {
    let mut machine = Machine { name: name.to_owned(), ..Machine::default() };
    for line in lines(name, text) {
        read_line(&mut machine, line)?;
    }
    if machine.ranges.is_empty() {
        return Err(SourceError::NoMemory { name: name.to_owned() });
    }
    machine.cpus.sort_unstable_by_key(|cpu| cpu.cpu);
    Ok(machine)
}

fn read_line(machine: &mut Machine, line: Line<'_>) -> Result<(), SourceError> {
    let (word, rest) = first_word(line.text);
    let plain = rest.split('#').next().unwrap_or(rest).trim();
    match word {
        "" => {}
        _ if word.starts_with('#') => {}
        // Names and notes are free text, in which a # begins no comment.
        "name" => machine.name = rest.to_owned(),
        "note" => machine.notes.push(rest.to_owned()),
        "memory" => machine.ranges.push(memory(plain).ok_or_else(|| line.unreadable(MEMORY))?),
        "mirrored" => machine.mirrored.push(match range(plain) {
            Some((range, "")) => range,
            _ => return Err(line.unreadable(MIRRORED)),
        }),
        "node" => node(machine, plain, line)?,
        "distance" => {
            machine.distances.push(distance(plain).ok_or_else(|| line.unreadable(DISTANCE))?)
        }
        _ => return Err(line.unreadable(UNKNOWN)),
    }
    Ok(())
}

/// Returns the first word and the rest, both trimmed.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

/// Reads `FIRST-LAST` or `START +SIZE`. Returns the range and the rest of the text.
fn range(text: &str) -> Option<(PhysRange, &str)> {
    let (first, rest) = first_word(text);
    if let Some((first, last)) = first.split_once('-') {
        let (start, end) = (parse_size(first).ok()?, parse_size(last).ok()?.checked_add(1)?);
        return (start < end).then(|| (PhysRange::new(start, end), rest));
    }
    let (size, rest) = first_word(rest);
    let start = parse_size(first).ok()?;
    let end = start.checked_add(parse_size(size.strip_prefix('+')?).ok()?)?;
    Some((PhysRange::new(start, end), rest))
}

fn memory(text: &str) -> Option<MapRange> {
    let (range, kind) = range(text)?;
    Some(MapRange { range, kind: kinds::kind(kind)? })
}

fn node(machine: &mut Machine, text: &str, line: Line<'_>) -> Result<(), SourceError> {
    let unreadable = || line.unreadable(NODE);
    let (number, rest) = first_word(text);
    let node: u32 = parse_decimal(number).ok_or_else(unreadable)?;
    match first_word(rest) {
        ("memory", rest) => {
            let (range, flag) = range(rest).ok_or_else(unreadable)?;
            let hot_pluggable = match flag {
                "" => false,
                "hotplug" => true,
                _ => return Err(unreadable()),
            };
            machine.affinities.push(Affinity { range, node, hot_pluggable });
        }
        ("cpus", list) if !list.is_empty() => {
            for cpu in parse_cpu_list(list).ok_or_else(unreadable)? {
                if let Some(known) = machine.cpus.iter().find(|known| known.cpu == cpu) {
                    return Err(line.unreadable(&format!(
                        "CPU {cpu} on one node; it is on node {} already",
                        known.node
                    )));
                }
                if machine.cpus.len() >= MAX_CPUS as usize {
                    return Err(line.unreadable(&format!("at most {} CPUs", MAX_CPUS)));
                }
                machine.cpus.push(CpuAffinity { cpu, node });
            }
        }
        _ => return Err(unreadable()),
    }
    Ok(())
}

fn distance(text: &str) -> Option<(u32, u32, u8)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [from, to, units] => {
            Some((parse_decimal(from)?, parse_decimal(to)?, parse_decimal(units)?))
        }
        _ => None,
    }
}

/// Writes the text format. Line breaks in names and notes become spaces, because each takes one
/// line.
pub(super) fn write(machine: &Machine) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "name {}", one_line(&machine.name));
    for note in &machine.notes {
        let _ = writeln!(out, "note {}", one_line(note));
    }
    for entry in &machine.ranges {
        let _ = writeln!(out, "memory {} {}", range_text(entry.range), entry.kind);
    }
    for &range in &machine.mirrored {
        let _ = writeln!(out, "mirrored {}", range_text(range));
    }
    for affinity in &machine.affinities {
        let flag = if affinity.hot_pluggable { " hotplug" } else { "" };
        let _ = writeln!(out, "node {} memory {}{flag}", affinity.node, range_text(affinity.range));
    }
    let mut nodes: Vec<u32> = machine.cpus.iter().map(|cpu| cpu.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for node in nodes {
        let cpus: Vec<u32> =
            machine.cpus.iter().filter(|cpu| cpu.node == node).map(|cpu| cpu.cpu).collect();
        let _ = writeln!(out, "node {node} cpus {}", format_cpu_list(&cpus));
    }
    for (from, to, units) in &machine.distances {
        let _ = writeln!(out, "distance {from} {to} {units}");
    }
    out
}

fn range_text(range: PhysRange) -> String {
    if range.is_empty() {
        format!("{:#x} +0", range.start)
    } else {
        format!("{:#x}-{:#x}", range.start, range.end - 1)
    }
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright::firmware::MemoryKind;

    const SAMPLE: &str = "\
# a small machine
name two nodes # and a name with a mark
note made by hand
memory 0x0-0x9ffff usable        # conventional
memory 0x100000 +2G usable
memory 4G +2G ACPI NVS
mirrored 0x100000 +1G            # kept twice
mirrored 0x0-0xfff
node 0 memory 0x0 +4G
node 5 memory 4G +4G hotplug
node 0 cpus 0-3,8
node 5 cpus 4-7
distance 0 5 21
";

    #[test]
    fn the_format_reads_as_documented() {
        let machine = Machine::parse("sample", SAMPLE).unwrap();
        assert_eq!(machine.name, "two nodes # and a name with a mark");
        assert_eq!(machine.notes, ["made by hand"]);
        assert_eq!(machine.ranges[1].range, PhysRange::new(0x10_0000, 0x8010_0000));
        assert_eq!(machine.ranges[2].kind, MemoryKind::AcpiNvs);
        let mirrored = [PhysRange::new(0x10_0000, 0x4010_0000), PhysRange::new(0, 0x1000)];
        assert_eq!(machine.mirrored, mirrored);
        assert_eq!(machine.affinities[1].node, 5);
        assert!(machine.affinities[1].hot_pluggable && !machine.affinities[0].hot_pluggable);
        assert_eq!(machine.cpus.len(), 9);
        assert_eq!(machine.cpus[8], CpuAffinity { cpu: 8, node: 0 });
        assert_eq!(machine.distances, [(0, 5, 21)]);
        assert_eq!(Machine::parse("other", &machine.to_text()).unwrap(), machine);
    }

    #[test]
    fn bad_lines_are_named_with_what_is_right() {
        for (wrong, expected) in [
            ("memory", "memory FIRST-LAST KIND"),
            ("memory 0x0-0x9ffff", "kinds are usable"),
            ("memory 0x0-0x9ffff useful", "kinds are usable"),
            ("memory 0x9-0x1 usable", "memory FIRST-LAST KIND"),
            ("memory 0x0 12Q usable", "memory START +SIZE KIND"),
            ("memory 0x1 +16777216T usable", "memory START +SIZE KIND"),
            ("mirrored", "mirrored FIRST-LAST"),
            ("mirrored 0x0-0x9ffff usable", "mirrored START +SIZE"),
            ("node", "node N memory"),
            ("node x cpus 1", "node N cpus"),
            ("node 0 cpus", "node N cpus"),
            ("node 0 memory 0 +1G warm", "[hotplug]"),
            ("node 0 disks 1", "node N memory"),
            ("distance 0 1", "distance FROM TO UNITS"),
            ("distance 0 1 256", "units up to 255"),
            ("Memory 0 +1G usable", "begin with memory"),
        ] {
            let text = format!("# first\n{wrong}\nmemory 0 +1G usable\n");
            let error = Machine::parse("sample", &text).unwrap_err();
            assert_eq!(error.place().unwrap().line, 2, "{wrong}");
            let message = error.to_string();
            assert!(
                message.starts_with("sample, line 2: ") && message.contains(expected),
                "{message}"
            );
            assert!(message.contains(wrong), "{message}");
        }
        let twice = "memory 0 +1G usable\nnode 0 cpus 0-3\nnode 1 cpus 3\n";
        let message = Machine::parse("sample", twice).unwrap_err().to_string();
        assert!(message.contains("CPU 3 on one node"), "{message}");
        assert!(matches!(
            Machine::parse("sample", "\n# nothing\n"),
            Err(SourceError::NoMemory { .. })
        ));
    }
}
