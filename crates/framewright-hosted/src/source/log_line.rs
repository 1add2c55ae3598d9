//! Strips the prefixes of kernel messages in logs that people keep and send.

/// Returns the message of a log line, without mail quoting, syslog's host and `kernel:`, priorities
/// and time stamps.
pub(super) fn message(line: &str) -> &str {
    let mut rest =
        line.trim().trim_start_matches(|c: char| c == '>' || c == '|' || c.is_whitespace());
    if let Some(index) = rest.find("kernel: ") {
        rest = &rest[index + "kernel: ".len()..];
    }
    loop {
        rest = rest.trim_start();
        match strip_stamp(rest).or_else(|| strip_priority(rest)).or_else(|| strip_facility(rest)) {
            Some(shorter) => rest = shorter,
            None => return rest,
        }
    }
}

/// `[    0.000000] `, `[Tue Nov  3 10:00:00 2020] `, and the task or CPU in a second pair of
/// brackets.
fn strip_stamp(text: &str) -> Option<&str> {
    let (stamp, rest) = text.strip_prefix('[')?.split_once(']')?;
    (!stamp.starts_with("mem")).then_some(rest)
}

/// Strips `<6>`, as in the raw buffer.
fn strip_priority(text: &str) -> Option<&str> {
    let (priority, rest) = text.strip_prefix('<')?.split_once('>')?;
    (!priority.is_empty() && priority.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
}

/// Strips `kern  :info  : `, as `dmesg -x` writes it.
fn strip_facility(text: &str) -> Option<&str> {
    let (facility, rest) = text.split_once(':')?;
    let (level, rest) = rest.split_once(':')?;
    (facility.trim_end() == "kern" && level.trim().bytes().all(|byte| byte.is_ascii_lowercase()))
        .then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn prefixes_go_and_messages_stay() {
        for line in [
            "BIOS-e820: x",
            " BIOS-e820: x\r",
            "[    0.000000] BIOS-e820: x",
            "[    0.000000][    T0] BIOS-e820: x",
            "> > [    0.000000]  BIOS-e820: x  ",
            ">> BIOS-e820: x",
            "<6>[    0.000000] BIOS-e820: x",
            "[Tue Nov  3 10:00:00 2020] BIOS-e820: x",
            "kern  :info  : [    0.000000] BIOS-e820: x",
            "Nov  3 10:00:00 host kernel: [    0.000000] BIOS-e820: x",
            "[    0.000000] host kernel: BIOS-e820: x",
            "2020-11-03T10:00:00+01:00 host kernel: BIOS-e820: x",
        ] {
            assert_eq!(message(line), "BIOS-e820: x", "{line}");
        }
        assert_eq!(message("[mem 0x0-0x1]"), "[mem 0x0-0x1]");
        assert_eq!(message("[open"), "[open");
        assert_eq!(message(""), "");
    }
}
