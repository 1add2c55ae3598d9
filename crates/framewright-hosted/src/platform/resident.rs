//! Reads from `/proc/self/smaps` how much of a range of addresses is backed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

/// Returns the resident bytes of the mappings that begin in `addresses`. The reservation has
/// inaccessible pages on both sides, so the kernel never joins its mappings with others.
pub(super) fn bytes(addresses: Range<u64>) -> io::Result<u64> {
    sum(BufReader::new(File::open("/proc/self/smaps")?), &addresses)
}

fn sum(lines: impl BufRead, addresses: &Range<u64>) -> io::Result<u64> {
    let mut inside = false;
    let mut kilobytes = 0;
    for line in lines.lines() {
        let line = line?;
        if let Some(start) = mapping_start(&line) {
            inside = addresses.contains(&start);
        } else if inside && let Some(rest) = line.strip_prefix("Rss:") {
            let number = rest.trim().trim_end_matches("kB").trim();
            kilobytes +=
                number.parse::<u64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        }
    }
    Ok(kilobytes << 10)
}

/// The first address of a line such as `7f0000000000-7f0000001000 rw-p 00000000 00:00 0`.
fn mapping_start(line: &str) -> Option<u64> {
    let (start, rest) = line.split_once('-')?;
    rest.contains(' ').then(|| u64::from_str_radix(start, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mappings_inside_count() {
        let text = "1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\nRss:                   4 kB\n\
                    5000-9000 ---p 00000000 00:00 0 \nRss: 8 kB\nVmFlags: rd-x\n\
                    9000-a000 rw-p 0 00:00 0 \nRss: 16 kB\n";
        assert_eq!(sum(text.as_bytes(), &(0x5000..0xa000)).unwrap(), 24 << 10);
        assert_eq!(sum(text.as_bytes(), &(0x5000..0x9000)).unwrap(), 8 << 10);
        assert!(sum("5000-6000 rw-p 0\nRss: x kB\n".as_bytes(), &(0..0x9000)).is_err());
    }
}
