//! Reads one line of the affinity table in a boot log, in any form that Linux has printed.

use super::machine::Affinity;
use super::size::{parse_decimal, parse_hex, parse_inclusive};
use framewright::units::PhysRange;

/// What a readable line looks like.
pub(super) const EXPECTED: &str = "memory or a CPU and its node, such as \
    \"SRAT: Node 0 PXM 0 [mem 0x00100000-0x7fffffff]\" or \"SRAT: PXM 0 -> APIC 0x04 -> Node 0\"";

/// How messages about the table begin. Other lines are entries of the table.
const REMARKS: [&str; 16] = [
    "bad ",
    "detected ",
    "disabled",
    "failed",
    "hot plug",
    "hotplug",
    "ignoring",
    "invalid",
    "not ",
    "numa disabled",
    "overlap",
    "pxms only cover",
    "srat not used",
    "too ",
    "unexpected",
    "warning",
];

/// What a line about the affinity table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Srat {
    /// Memory of a node.
    Memory(Affinity),
    /// A CPU of a node.
    Cpu {
        /// Its APIC ID, or the number by which the architecture's tables name CPUs.
        apic: u64,
        /// The node.
        node: u32,
    },
    /// Something about the table that a reader should know.
    Remark,
    /// A CPU that Linux skipped.
    Nothing,
}

/// Returns what follows the name of the table. `ACPI: SRAT 0x000000...` is a line of the list of
/// all tables, and does not belong to this one.
pub(super) fn content(message: &str) -> Option<&str> {
    let message = message.strip_prefix("ACPI: ").unwrap_or(message);
    let rest = message.strip_prefix("NUMA: ").unwrap_or(message).strip_prefix("SRAT")?;
    let begins_like_ours =
        || ["Node ", "PXM "].iter().any(|word| rest.trim_start().starts_with(word));
    (rest.starts_with(':') || begins_like_ours()).then_some(rest)
}

/// Reads what [`content`] returned.
pub(super) fn read(content: &str) -> Option<Srat> {
    let content = content.strip_prefix(':')?.trim();
    let lower = content.to_ascii_lowercase();
    if REMARKS.iter().any(|remark| lower.starts_with(remark)) || lower.contains("overlaps with") {
        return Some(Srat::Remark);
    }
    let words: Vec<&str> = content.split_whitespace().collect();
    match words.as_slice() {
        ["Node", node, "PXM", domain, rest @ ..] => {
            parse_decimal::<u32>(domain)?;
            memory(parse_decimal(node)?, rest)
        }
        ["PXM", domain, "->", _, apic, "->", "Node", node, rest @ ..] => {
            parse_decimal::<u32>(domain)?;
            let apic = if apic.starts_with("0x") { parse_hex(apic)? } else { parse_decimal(apic)? };
            match rest {
                [] => Some(Srat::Cpu { apic, node: parse_decimal(node)? }),
                ["skipped", ..] => Some(Srat::Nothing),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Reads `[mem first-last]` and its flags, or `start-end` with the end excluded (until Linux 3.5).
fn memory(node: u32, words: &[&str]) -> Option<Srat> {
    let (range, flags) = match words {
        ["[mem", range, flags @ ..] => (parse_inclusive(range.strip_suffix(']')?)?, flags),
        [range, flags @ ..] => {
            let (start, end) = range.split_once('-')?;
            let (start, end) = (parse_hex(start)?, parse_hex(end)?);
            ((start <= end).then(|| PhysRange::new(start, end))?, flags)
        }
        [] => return None,
    };
    let hot_pluggable = flags.contains(&"hotplug");
    let known = flags.iter().all(|flag| matches!(*flag, "hotplug" | "non-volatile"));
    known.then_some(Srat::Memory(Affinity { range, node, hot_pluggable }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Srat> {
        read(content(line)?)
    }

    fn memory(node: u32, start: u64, end: u64, hot_pluggable: bool) -> Option<Srat> {
        Some(Srat::Memory(Affinity { range: PhysRange::new(start, end), node, hot_pluggable }))
    }

    #[test]
    fn every_form() {
        assert_eq!(
            of("ACPI: SRAT: Node 0 PXM 0 [mem 0x00000000-0x0009ffff]"),
            memory(0, 0, 0xa_0000, false)
        );
        assert_eq!(
            of("SRAT: Node 1 PXM 3 [mem 0x00000000-0x0009ffff]"),
            memory(1, 0, 0xa_0000, false)
        );
        assert_eq!(of("SRAT: Node 0 PXM 0 0-a0000"), memory(0, 0, 0xa_0000, false));
        assert_eq!(
            of("ACPI: NUMA: SRAT: Node 2 PXM 2 [mem 0x1000-0x1fff] hotplug"),
            memory(2, 0x1000, 0x2000, true)
        );
        assert_eq!(
            of("ACPI: SRAT: Node 2 PXM 2 [mem 0x1000-0x1fff] hotplug non-volatile"),
            memory(2, 0x1000, 0x2000, true)
        );
        assert_eq!(of("SRAT: PXM 0 -> APIC 0x0a -> Node 3"), Some(Srat::Cpu { apic: 10, node: 3 }));
        assert_eq!(of("SRAT: PXM 0 -> APIC 10 -> Node 3"), Some(Srat::Cpu { apic: 10, node: 3 }));
        assert_eq!(
            of("ACPI: NUMA: SRAT: PXM 1 -> MPIDR 0x80000100 -> Node 1"),
            Some(Srat::Cpu { apic: 0x8000_0100, node: 1 })
        );
        assert_eq!(
            of("SRAT: PXM 0 -> APIC 0x1ff -> Node 0 skipped apicid that is too big"),
            Some(Srat::Nothing)
        );
        assert_eq!(
            of("SRAT: PXMs only cover 4095MB of your 8191MB e820 RAM. Not used."),
            Some(Srat::Remark)
        );
        assert_eq!(of("SRAT: SRAT not used."), Some(Srat::Remark));
    }

    #[test]
    fn what_cannot_be_read() {
        for line in [
            "SRAT:",
            "SRAT: Nod 0 PXM 0 [mem 0x0-0x1]",
            "SRAT Node 0 PXM 0 [mem 0x0-0x1]",
            "SRAT: Node x PXM 0 [mem 0x0-0x1]",
            "SRAT: Node 4294967296 PXM 0 [mem 0x0-0x1]",
            "SRAT: Node 0 PXM 0 [mem 0x0-0x1",
            "SRAT: Node 0 PXM 0 [mem 0x2-0x1]",
            "SRAT: Node 0 PXM 0 [mem 0x0-0x1] hotplugged",
            "SRAT: Node 0 PXM 0",
            "SRAT: PXM 0 -> APIC 0x04 -> Node",
            "SRAT: PXM 0 -> APIC 04x -> Node 1",
        ] {
            assert_eq!(content(line).map(read), Some(None), "{line}");
        }
        assert_eq!(
            content(
                "ACPI: SRAT 0x00000000BFFE1A1E 000150 (v01 BOCHS  BXPC     00000001 BXPC 00000001)"
            ),
            None
        );
        assert_eq!(content("NUMA: Node 0 [mem 0x0-0x1] + [mem 0x2-0x3] -> [mem 0x0-0x3]"), None);
    }
}
