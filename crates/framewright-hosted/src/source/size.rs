//! Parses sizes, addresses and CPU lists as people write them.

use super::error::SizeError;
use super::machine::MAX_CPUS;

/// Reads a number of bytes as the library's boot parameters do. White space around it is allowed,
/// and the error repeats the text.
///
/// ```
/// assert_eq!(framewright_hosted::parse_size("1536M"), Ok(1536 << 20));
/// assert_eq!(framewright_hosted::parse_size(" 0x10K "), Ok(16 << 10));
/// assert!(framewright_hosted::parse_size("12Q").is_err());
/// ```
///
/// # Errors
/// [`SizeError`] says what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    framewright::parameters::parse_size(text)
        .map_err(|reason| SizeError { text: text.to_owned(), reason })
}

/// Reads hexadecimal digits, with or without `0x`. Accepts nothing else, not even a sign.
pub(super) fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Reads decimal digits. Accepts nothing else, not even a sign.
pub(super) fn parse_decimal<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Reads `first-last` in hexadecimal, both inclusive, and returns the half-open range of these
/// bytes.
pub(super) fn parse_inclusive(text: &str) -> Option<framewright::units::PhysRange> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (parse_hex(first.trim())?, parse_hex(last.trim())?);
    let end = last.checked_add(1)?;
    (first < end).then(|| framewright::units::PhysRange::new(first, end))
}

/// Reads a list of CPUs as Linux writes it (`0-3,8`), and keeps its order. An empty list is valid.
pub(crate) fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !(part.is_empty() && text.trim().is_empty())) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (parse_decimal(first.trim())?, parse_decimal(last.trim())?);
        if first > last || last - first >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
        if cpus.len() > MAX_CPUS as usize {
            return None;
        }
    }
    Some(cpus)
}

/// Returns the shortest form of a list that [`parse_cpu_list`] can read back.
pub(super) fn format_cpu_list(cpus: &[u32]) -> String {
    let mut text = String::new();
    let mut index = 0;
    while index < cpus.len() {
        let first = cpus[index];
        let mut last = first;
        while cpus.get(index + 1).is_some_and(|&next| last.checked_add(1) == Some(next)) {
            index += 1;
            last = cpus[index];
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last {
            format!("{comma}{first}")
        } else {
            format!("{comma}{first}-{last}")
        };
        index += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_size_is_repeated() {
        assert_eq!(parse_size(" 1g "), Ok(1 << 30));
        let error = parse_size("12Q").unwrap_err().to_string();
        assert!(error.starts_with("\"12Q\" is not a size: unknown suffix"), "{error}");
        assert!(parse_size(" ").is_err());
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpu_list("\n"), Some(vec![]));
        for wrong in ["3-0", "0-4294967295", "a", "0,,1", "1-2-3", "-1", "+1"] {
            assert_eq!(parse_cpu_list(wrong), None, "{wrong}");
        }
        assert_eq!(format_cpu_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(format_cpu_list(&[u32::MAX]), "4294967295");
    }

    #[test]
    fn inclusive_ranges() {
        use framewright::units::PhysRange;
        assert_eq!(parse_inclusive("0x1000-0x1fff"), Some(PhysRange::new(0x1000, 0x2000)));
        assert_eq!(parse_inclusive("0-0"), Some(PhysRange::new(0, 1)));
        for wrong in ["2-1", "0-ffffffffffffffff", "1", "x-y", "0x-1", "+1-2"] {
            assert_eq!(parse_inclusive(wrong), None, "{wrong}");
        }
    }
}
