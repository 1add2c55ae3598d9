//! Reads files of `/sys` and `/proc` that hold one value, and folders whose entries are numbered.

use super::size;
use framewright::units::PhysRange;
use std::fs;
use std::path::Path;

/// Returns the content of a file with one value, trimmed.
pub(super) fn value(path: &Path) -> Result<String, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the numbers `N` of the entries `prefixN` of a folder, ascending.
pub(super) fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u64>, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut numbers: Vec<u64> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| size::parse_decimal(entry.file_name().to_str()?.strip_prefix(prefix)?))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns the size of the kernel's memory blocks in bytes.
pub(super) fn block_bytes(root: &Path) -> Result<u64, String> {
    let text = value(&root.join("sys/devices/system/memory/block_size_bytes"))?;
    size::parse_hex(&text)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("block_size_bytes is {text:?}"))
}

/// Returns the addresses of block `number`, or `None` if they lie beyond any address.
pub(super) fn block_range(number: u64, bytes: u64) -> Option<PhysRange> {
    let start = number.checked_mul(bytes)?;
    Some(PhysRange::new(start, start.checked_add(bytes)?))
}

/// Returns the bytes of a line such as `MemTotal:  24684092 kB`. `label` may be anywhere in the
/// line.
pub(super) fn mem_total(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once(label))?.1;
    size::parse_decimal::<u64>(rest.trim().strip_suffix("kB")?.trim())?.checked_mul(1024)
}
