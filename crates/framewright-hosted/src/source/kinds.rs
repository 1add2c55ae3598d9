//! The names of memory kinds, in all spellings that Linux has used.

use framewright::firmware::MemoryKind;

/// Returns the kind that `text` names, in upper or lower case, as in the boot log, `/proc/iomem`
/// and `/sys/firmware/memmap`.
pub(super) fn kind(text: &str) -> Option<MemoryKind> {
    let name = text.trim().to_ascii_lowercase();
    // Old kernels put the whole name into brackets: "(usable)".
    let name = name.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(&name);
    Some(match name {
        "usable" | "kernel usable ram" | "system ram" => MemoryKind::Conventional,
        "reserved" | "device reserved" | "unknown e820 type" | "unknown type" => {
            MemoryKind::Reserved
        }
        "acpi data" | "acpi tables" => MemoryKind::AcpiReclaimable,
        "acpi nvs" | "acpi non-volatile storage" => MemoryKind::AcpiNvs,
        "unusable" | "unusable memory" => MemoryKind::Unusable,
        "soft reserved" | "application reserved" => MemoryKind::SoftReserved,
        "hot-pluggable" => MemoryKind::HotPluggable,
        "unaccepted" => MemoryKind::Unaccepted,
        _ => return numbered(name),
    })
}

/// Reads `type 9`, and `persistent` with or without further words and a type number in brackets.
fn numbered(name: &str) -> Option<MemoryKind> {
    if let Some(number) = name.strip_prefix("type ") {
        return super::size::parse_decimal(number.trim()).map(MemoryKind::from_e820);
    }
    let rest = name.strip_prefix("persistent")?.trim_start();
    let rest = rest
        .strip_prefix("ram")
        .or_else(|| rest.strip_prefix("memory"))
        .unwrap_or(rest)
        .trim_start();
    let inner = rest.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    let numbered = inner
        .and_then(|inner| inner.strip_prefix("type "))
        .and_then(super::size::parse_decimal::<u32>);
    let known = rest.is_empty() || inner == Some("legacy") || matches!(numbered, Some(7 | 12));
    known.then_some(MemoryKind::Persistent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        for (text, expected) in [
            ("usable", MemoryKind::Conventional),
            (" (usable)", MemoryKind::Conventional),
            ("System RAM", MemoryKind::Conventional),
            ("kernel usable RAM", MemoryKind::Conventional),
            ("device reserved", MemoryKind::Reserved),
            ("type 9", MemoryKind::Reserved),
            ("type 1", MemoryKind::Conventional),
            ("type 4026531839", MemoryKind::SoftReserved),
            ("ACPI Tables", MemoryKind::AcpiReclaimable),
            ("(ACPI NVS)", MemoryKind::AcpiNvs),
            ("persistent (type 12)", MemoryKind::Persistent),
            ("persistent RAM (type 7)", MemoryKind::Persistent),
            ("Persistent Memory (legacy)", MemoryKind::Persistent),
            ("Persistent Memory", MemoryKind::Persistent),
            ("soft reserved", MemoryKind::SoftReserved),
        ] {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
        for kind_of_ours in MemoryKind::ALL {
            assert_eq!(kind(kind_of_ours.name()), Some(kind_of_ours));
        }
        for wrong in [
            "",
            "usably",
            "type",
            "type x",
            "type 4294967296",
            "persistent (type 8)",
            "persistently",
            "()",
            "(",
        ] {
            assert_eq!(kind(wrong), None, "{wrong}");
        }
    }
}
