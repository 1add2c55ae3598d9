//! Parsers for the values of options.

use super::Addition;
use framewright::units::MAX_NODES;
use framewright_hosted::source::MAX_CPUS;
use std::time::Duration;

/// The unit in which QEMU adds memory.
const BLOCK_BYTES: u64 = 2 << 20;

/// Parses a size of memory, such as 512M.
///
/// # Errors
/// Says what is wrong with the text.
pub fn size(text: &str) -> Result<u64, String> {
    match framewright_hosted::parse_size(text) {
        Ok(0) => Err("a machine needs some memory".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a size of memory that may be zero.
pub fn size_or_nothing(text: &str) -> Result<u64, String> {
    framewright_hosted::parse_size(text).map_err(|error| error.to_string())
}

/// Parses memory that may be added: a size, and after a comma further properties of the device.
pub fn addition(text: &str) -> Result<Addition, String> {
    let (bytes, properties) = text.split_once(',').unwrap_or((text, ""));
    let bytes = size(bytes)?;
    if !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err("memory is added in multiples of 2M".into());
    }
    Ok(Addition { bytes, properties: properties.to_owned() })
}

/// Parses a number of nodes.
///
/// # Errors
/// Says what is wrong with the text.
pub fn nodes(text: &str) -> Result<u32, String> {
    count(text, "node", MAX_NODES as u64)
}

/// Parses a number of CPUs.
///
/// # Errors
/// Says what is wrong with the text.
pub fn cpus(text: &str) -> Result<u32, String> {
    count(text, "CPU", MAX_CPUS.into())
}

fn count(text: &str, what: &str, most: u64) -> Result<u32, String> {
    match number(text)? {
        0 => Err(format!("a machine needs at least one {what}")),
        count => u32::try_from(count)
            .ok()
            .filter(|&count| u64::from(count) <= most)
            .ok_or_else(|| format!("at most {most} {what}s are supported")),
    }
}

/// Parses `yes` or `no`.
pub fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("must be yes or no".into()),
    }
}

/// Parses a whole number of seconds, at least one.
pub fn seconds(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("must be at least one second".into()),
        _ => patience(text),
    }
}

/// Parses how long to wait, in seconds, capped so that it can be added to a clock.
pub fn patience(text: &str) -> Result<u64, String> {
    number(text).map(|seconds| seconds.min(u64::from(u32::MAX)))
}

/// Parses seconds with a fraction.
pub fn interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be 0.1 to 3600 seconds".into()),
    }
}

/// Parses a whole number.
///
/// # Errors
/// Fails if the text is no whole number.
pub fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn no_wait_is_longer_than_a_clock_can_tell() {
        for parse in [seconds, patience] {
            let longest = parse("18446744073709551615").expect("a number");
            assert!(Instant::now().checked_add(Duration::from_secs(longest)).is_some());
            assert_eq!(parse("10"), Ok(10));
        }
        assert_eq!((patience("0"), seconds("0").is_err()), (Ok(0), true));
    }
}
