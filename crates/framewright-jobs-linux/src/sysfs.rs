//! Files of `/sys`: folders whose entries are numbered, and lists of CPUs.

use std::fs;
use std::path::Path;

/// The number of CPUs of the largest system that Linux can be built for; larger numbers are
/// nonsense.
const MAX_CPUS: u32 = 8192;

/// The numbers `N` of all entries `prefixN` of a folder, ascending; empty if the folder does not
/// exist.
pub(super) fn numbered(folder: &Path, prefix: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbers: Vec<u32> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| decimal(entry.file_name().to_str()?.strip_prefix(prefix)?))
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Parses a list of CPUs as Linux writes it (`0-3,8`). An empty list is valid.
pub(super) fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (decimal(first)?, decimal(last)?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
        if cpus.len() > MAX_CPUS as usize {
            return None;
        }
    }
    Some(cpus)
}

/// Parses decimal digits and nothing else, not even a sign.
fn decimal(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_nonsense_is_not() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        for wrong in ["3-0", "0-4294967295", "a", "0,,1", "1-2-3", "-1", "+1", "8192", "0-8192"] {
            assert_eq!(cpu_list(wrong), None, "{wrong}");
        }
        assert_eq!(cpu_list("8191"), Some(vec![8191]));
    }
}
