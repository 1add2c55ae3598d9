//! Reads `/proc/iomem`: the firmware map as the kernel has changed it.

use super::e820_line::ASCENDING;
use super::error::SourceError;
use super::kinds;
use super::machine::Machine;
use super::reader::{Line, lines};
use super::size::{parse_hex, parse_inclusive};
use framewright::firmware::MapRange;
use framewright::units::PhysRange;

const EXPECTED: &str = "a line of /proc/iomem such as \"00100000-7fffffff : System RAM\"";

/// Whether the first line that is not blank is a line of `/proc/iomem`.
pub(super) fn recognise(text: &str) -> bool {
    lines("", text)
        .find(|line| !line.text.trim().is_empty())
        .is_some_and(|line| entry(line).is_some() || is_reversed(line))
}

/// Reads the outermost entries. The entries inside them only say how the kernel uses the memory.
pub(super) fn parse(name: &str, text: &str) -> Result<Machine, SourceError> {
    let mut machine = Machine { name: name.to_owned(), ..Machine::default() };
    let mut all_zero = true;
    for line in lines(name, text).filter(|line| !line.text.trim().is_empty()) {
        let (range, what) = entry(line)
            .ok_or_else(|| line.unreadable(if is_reversed(line) { ASCENDING } else { EXPECTED }))?;
        all_zero &= range.end == 1;
        let outermost = !line.text.starts_with(char::is_whitespace);
        if outermost && let Some(kind) = memory_kind(what) {
            machine.ranges.push(MapRange { range, kind });
        }
    }
    if all_zero && text.lines().count() > 0 {
        return Err(SourceError::HiddenAddresses { name: name.to_owned() });
    }
    if machine.ranges.is_empty() {
        return Err(SourceError::NoMemory { name: name.to_owned() });
    }
    Ok(machine)
}

/// Reads `first-last : name`. A hidden address range reads as the byte at 0.
fn entry(line: Line<'_>) -> Option<(PhysRange, &str)> {
    let (range, what) = line.text.split_once(" : ")?;
    Some((parse_inclusive(range.trim())?, what.trim()))
}

/// Whether a line is an entry except that its range is impossible.
fn is_reversed(line: Line<'_>) -> bool {
    let ends = line.text.split_once(" : ").and_then(|(range, _)| range.split_once('-'));
    let is_number = |text: &str| parse_hex(text.trim()).is_some();
    ends.is_some_and(|(first, last)| is_number(first) && is_number(last)) && entry(line).is_none()
}

/// Returns the kind of an entry, or `None` for a device. A driver that added memory appends its
/// name in brackets.
fn memory_kind(what: &str) -> Option<framewright::firmware::MemoryKind> {
    let name = if what.starts_with("System RAM (") { "System RAM" } else { what };
    kinds::kind(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright::firmware::MemoryKind;

    const SAMPLE: &str = "\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
0009fc00-000fffff : Reserved
  000f0000-000fffff : System ROM
00100000-bfffffff : System RAM
  01000000-02209987 : Kernel code
c0000000-cfffffff : PCI Bus 0000:00
fec00000-fec003ff : IOAPIC 0
100000000-63fffffff : System RAM
640000000-6bfffffff : Persistent Memory
  640000000-6bfffffff : namespace0.0
6c0000000-6ffffffff : System RAM (kmem)
";

    #[test]
    fn outermost_memory_is_taken() {
        let machine = Machine::parse("sample", SAMPLE).unwrap();
        let found: Vec<_> = machine
            .ranges
            .iter()
            .map(|entry| (entry.range.start, entry.range.end, entry.kind))
            .collect();
        assert_eq!(
            found,
            [
                (0, 0x1000, MemoryKind::Reserved),
                (0x1000, 0x9_fc00, MemoryKind::Conventional),
                (0x9_fc00, 0x10_0000, MemoryKind::Reserved),
                (0x10_0000, 0xc000_0000, MemoryKind::Conventional),
                (0x1_0000_0000, 0x6_4000_0000, MemoryKind::Conventional),
                (0x6_4000_0000, 0x6_c000_0000, MemoryKind::Persistent),
                (0x6_c000_0000, 0x7_0000_0000, MemoryKind::Conventional),
            ]
        );
    }

    #[test]
    fn hidden_addresses_are_named() {
        let hidden = "00000000-00000000 : Reserved\n00000000-00000000 : System RAM\n\x20 \
                      00000000-00000000 : Kernel code\n";
        let error = Machine::parse("/proc/iomem", hidden).unwrap_err();
        assert!(matches!(error, SourceError::HiddenAddresses { .. }));
        assert!(error.to_string().contains("hides them from this user"), "{error}");
    }

    #[test]
    fn a_bad_line_is_named() {
        let error =
            Machine::parse("sample", &SAMPLE.replace("000f0000-000fffff", "000f0000-00fffff"))
                .unwrap();
        assert_eq!(error.ranges.len(), 7, "a shorter number is still a range");
        let error =
            Machine::parse("sample", &SAMPLE.replace("00100000-bfffffff :", "00100000-bfffffff"))
                .unwrap_err();
        assert_eq!(error.place().unwrap().line, 5);
        assert!(
            error
                .to_string()
                .starts_with("sample, line 5: \"00100000-bfffffff System RAM\": expected"),
            "{error}"
        );
        let devices = "c0000000-cfffffff : PCI Bus 0000:00\n";
        assert!(matches!(Machine::parse("sample", devices), Err(SourceError::NoMemory { .. })));
    }
}
