//! Reads one line of the firmware map in a boot log, in any form that Linux has printed.

use super::kinds;
use super::size::{parse_decimal, parse_hex, parse_inclusive};
use framewright::firmware::MapRange;
use framewright::units::PhysRange;

/// What a readable line looks like.
pub(super) const EXPECTED: &str =
    "a range and a type, such as \"BIOS-e820: [mem 0x0000000000100000-0x000000007fffffff] usable\"";

/// What is expected instead of a range that is reversed or ends beyond 2^64.
pub(super) const ASCENDING: &str = "a range that ends at or after its start and below 2^64";

/// Whether only the range of a line is unreadable, because it is impossible.
pub(super) fn has_impossible_range(content: &str) -> bool {
    let Some(content) = content.strip_prefix(':').map(str::trim) else { return false };
    let ends = match content.strip_prefix("[mem ") {
        Some(inner) => inner.split_once(']').and_then(|(range, _)| range.split_once('-')),
        None => content.split_once(" - "),
    };
    let number = |text: &str| parse_hex(text.trim().split([' ', '(']).next().unwrap_or_default());
    ends.is_some_and(|(first, last)| number(first).is_some() && number(last).is_some())
        && read_range(content).is_none()
}

/// What a line of the firmware map says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A range of the map.
    Range(MapRange),
    /// A hole, which newer kernels print.
    Gap,
}

/// Returns what follows the name of the map's source. Maps that the kernel changed (`modified`,
/// `user`, `e820: update`) have other names.
pub(super) fn content(message: &str) -> Option<&str> {
    ["BIOS-e820", "BIOS-e801", "BIOS-88"].iter().find_map(|source| message.strip_prefix(source))
}

/// Reads what [`content`] returned.
pub(super) fn read(content: &str) -> Option<Entry> {
    let content = content.strip_prefix(':')?.trim();
    if content.starts_with("[gap ") {
        return Some(Entry::Gap);
    }
    let (range, rest) = read_range(content)?;
    Some(Entry::Range(MapRange { range, kind: kinds::kind(rest)? }))
}

/// Returns the range, and what follows it.
fn read_range(content: &str) -> Option<(PhysRange, &str)> {
    match content.strip_prefix("[mem ") {
        Some(inner) => {
            let (range, rest) = inner.split_once(']')?;
            Some((parse_inclusive(range)?, strip_size(rest)))
        }
        None => old_range(content),
    }
}

/// Reads `start - end` with the end excluded (until Linux 3.5), or `size @ start` (until 2.4).
fn old_range(content: &str) -> Option<(PhysRange, &str)> {
    let (first, rest) = content.split_once(' ')?;
    let (sign, rest) = rest.trim_start().split_once(' ')?;
    let rest = rest.trim_start();
    let (second, rest) = rest.split_at(rest.find([' ', '('])?);
    let (first, second) = (parse_hex(first)?, parse_hex(second)?);
    let (start, end) = match sign {
        "-" => (first, second),
        "@" => (second, second.checked_add(first)?),
        _ => return None,
    };
    (start <= end).then(|| (PhysRange::new(start, end), rest))
}

/// Newer kernels print the size between range and type: `  639   KB kernel usable RAM`, `    1.9 GB
/// ...`.
fn strip_size(text: &str) -> &str {
    let text = text.trim_start();
    let size = || {
        let (number, rest) = text.split_once(' ')?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        parse_decimal::<u64>(whole).zip(parse_decimal::<u64>(fraction))?;
        let (unit, rest) = rest.trim_start().split_once(' ')?;
        matches!(unit, "B" | "KB" | "MB" | "GB" | "TB" | "KiB" | "MiB" | "GiB" | "TiB")
            .then_some(rest)
    };
    size().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use framewright::firmware::MemoryKind::{self, AcpiNvs, Conventional, Persistent, Reserved};

    fn range(line: &str) -> Option<(u64, u64, MemoryKind)> {
        match read(content(line)?)? {
            Entry::Range(entry) => Some((entry.range.start, entry.range.end, entry.kind)),
            Entry::Gap => None,
        }
    }

    #[test]
    fn every_form() {
        for (line, expected) in [
            (
                "BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable",
                (0, 0x9_fc00, Conventional),
            ),
            (
                "BIOS-e820: 0000000000000000 - 000000000009fc00 (usable)",
                (0, 0x9_fc00, Conventional),
            ),
            (
                "BIOS-e820: 00000000d7fae000 - 00000000d7fb0000 type 9",
                (0xd7fa_e000, 0xd7fb_0000, Reserved),
            ),
            ("BIOS-e820: 0009fc00 @ 00000000 (usable)", (0, 0x9_fc00, Conventional)),
            ("BIOS-e820: 07ef0000 @ 00100000 (ACPI NVS)", (0x10_0000, 0x7ff_0000, AcpiNvs)),
            (
                "BIOS-88: 000000000009f000 - 0000000000100000 (reserved)",
                (0x9_f000, 0x10_0000, Reserved),
            ),
            (
                "BIOS-e820: [mem 0x0000000000100000-0x000000007ffdbfff]    1.9 GB kernel \
                 usable RAM",
                (0x10_0000, 0x7ffd_c000, Conventional),
            ),
            (
                "BIOS-e820: [mem 0x000000000009fc00-0x000000000009ffff]    1   KB device reserved",
                (0x9_fc00, 0xa_0000, Reserved),
            ),
            (
                "BIOS-e820: [mem 0x0000000440000000-0x0000000640000fff] persistent (type 12)",
                (0x4_4000_0000, 0x6_4000_1000, Persistent),
            ),
        ] {
            assert_eq!(range(line), Some(expected), "{line}");
        }
        let gap = "BIOS-e820: [gap 0x00000000000a0000-0x00000000000effff]  320   KB ...";
        assert_eq!(read(content(gap).unwrap()), Some(Entry::Gap));
    }

    #[test]
    fn what_cannot_be_read() {
        for line in [
            "BIOS-e820",
            "BIOS-e820:",
            "BIOS-e820: [mem 0x0-0x1]",
            "BIOS-e820: [mem 0x0-0x1 usable",
            "BIOS-e820: [mem 0x2-0x1] usable",
            "BIOS-e820: [mem 0x0-0xffffffffffffffff] usable",
            "BIOS-e820: [mem 0x0-0xg] usable",
            "BIOS-e820: [mem 0x0-0x1] usable?",
            "BIOS-e820: 0000 + 1000 (usable)",
            "BIOS-e820: 2000 - 1000 (usable)",
            "BIOS-e820: ffffffffffffffff @ 1 (usable)",
        ] {
            assert_eq!(read(content(line).unwrap()), None, "{line}");
        }
        assert_eq!(content("modified: [mem 0x0-0x1] usable"), None);
        assert_eq!(content("e820: update [mem 0x0-0xfff] usable ==> reserved"), None);
    }
}
