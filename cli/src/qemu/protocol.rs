//! What the guest says over its serial line: log lines for people, and lines that begin with `@`
//! for this program.
//!
//! `@json {...}` is the guest's report, `@end` its last word. What its shell prints comes between
//! `@shell` and `@status N`, byte by byte, because a prompt is no whole line; if a line of the
//! shell begins with `@`, the guest sends a second one. Lines `@memory ...` before the status are a
//! snapshot of memory. Serial lines may end in CR LF, and a guest that dies may stop in the middle
//! of one.

use serde_json::Value;
use std::borrow::Cow;
use std::collections::VecDeque;

/// A longer line is cut, so that a guest that has gone astray cannot use up our memory.
const LONGEST_LINE: usize = 1 << 20;

/// Everything that the guest has said so far.
#[derive(Default)]
pub struct Transcript {
    partial: Vec<u8>,
    /// The log, without protocol lines. If it is longer than [`Log`] keeps, only its beginning and
    /// its end remain.
    pub log: Log,
    /// The report, or why it cannot be read.
    pub report: Option<Result<Value, String>>,
    /// Whether the guest has said its last word.
    pub ended: bool,
    /// Whether the guest's shell has begun.
    pub has_shell: bool,
    /// The memory snapshot at the end, as the guest's control file has it.
    pub memory: String,
    /// The shell's exit status, once it has ended.
    pub status: Option<u8>,
    /// Output of the shell that has not been taken yet.
    output: Vec<u8>,
    /// Whether the shell's line so far is a single `@`, so that it may be for this program.
    held_back: bool,
}

impl Transcript {
    /// Takes bytes as they arrive and returns the log lines that they complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let in_shell = self.has_shell && self.status.is_none();
            if self.partial.is_empty() {
                self.held_back = byte == b'@';
            } else if self.partial == b"@" && byte == b'@' {
                // The second `@` stands for both.
                self.held_back = false;
            }
            if in_shell && !self.held_back {
                self.output.push(byte);
            }
            if byte == b'\n' {
                lines.extend(self.end_line(in_shell));
            } else if self.partial.len() < LONGEST_LINE {
                self.partial.push(byte);
            }
        }
        lines
    }

    /// What the shell has printed since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes the unfinished last line when no more bytes will come.
    pub fn finish(&mut self) -> Vec<String> {
        if self.partial.is_empty() {
            return Vec::new();
        }
        self.end_line(self.has_shell && self.status.is_none()).into_iter().collect()
    }

    /// Takes a line that is complete and returns it if it belongs to the log.
    fn end_line(&mut self, in_shell: bool) -> Option<String> {
        let line = String::from_utf8_lossy(&self.partial).trim_end_matches('\r').to_owned();
        self.partial.clear();
        if in_shell {
            if let (true, Some(line)) = (self.held_back, line.strip_prefix("@memory ")) {
                if self.memory.len() < LONGEST_LINE {
                    self.memory.push_str(line);
                    self.memory.push('\n');
                }
            } else if self.held_back {
                self.status = line.strip_prefix("@status ").and_then(|status| status.parse().ok());
            } else if line.starts_with('[') {
                // A guest that dies says why, even inside the shell. The shell's output has this
                // line already.
                self.log.push(line);
            }
        } else if line == "@shell" {
            self.has_shell = true;
        } else if let Some(report) = line.strip_prefix("@json ") {
            self.report = Some(serde_json::from_str(report).map_err(|error| error.to_string()));
        } else if line == "@end" {
            self.ended = true;
        } else {
            self.log.push(line.clone());
            return Some(line);
        }
        None
    }
}

/// Log lines, of which a guest may write any number: the first and the last of them are kept, and
/// the others are counted.
#[derive(Default)]
pub struct Log {
    first: Vec<String>,
    first_bytes: usize,
    /// The last lines, which follow the first ones and what is left out.
    last: VecDeque<String>,
    last_bytes: usize,
    left_out: u64,
}

/// How many lines and bytes are kept of the beginning, and again of the end. A line counts as a few
/// bytes more than it has.
const KEPT_LINES: usize = 16 << 10;
const KEPT_BYTES: usize = 4 << 20;

impl Log {
    /// Adds a line.
    fn push(&mut self, line: String) {
        let cost = |line: &String| line.len() + size_of::<String>();
        let is_beginning = self.last.is_empty() && self.left_out == 0;
        if is_beginning
            && self.first.len() < KEPT_LINES
            && self.first_bytes + cost(&line) <= KEPT_BYTES
        {
            self.first_bytes += cost(&line);
            self.first.push(line);
            return;
        }
        self.last_bytes += cost(&line);
        self.last.push_back(line);
        while self.last.len() > 1 && (self.last.len() > KEPT_LINES || self.last_bytes > KEPT_BYTES)
        {
            self.last_bytes -= self.last.pop_front().as_ref().map_or(0, cost);
            self.left_out += 1;
        }
    }

    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.last.is_empty()
    }

    /// All lines that are kept, in order, with a line in between that counts the others.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        let middle =
            (self.left_out != 0).then(|| Cow::Owned(format!("({} lines left out)", self.left_out)));
        let first = self.first.iter().map(|line| Cow::Borrowed(line.as_str()));
        first.chain(middle).chain(self.last.iter().map(|line| Cow::Borrowed(line.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_protocol_is_kept_apart() {
        let mut transcript = Transcript::default();
        assert!(transcript.take(b"[    0.000000] Frame").is_empty());
        assert_eq!(
            transcript.take(b"wright\r\n\r\n@json {\"a\": 1}\r\n@e"),
            ["[    0.000000] Framewright", ""]
        );
        assert!(!transcript.ended);
        assert!(transcript.take(b"nd\r\n").is_empty());
        assert!(transcript.ended);
        assert_eq!(
            transcript.report.and_then(Result::ok).map(|report| report["a"].as_u64()),
            Some(Some(1))
        );
    }

    #[test]
    fn a_cut_line_and_a_bad_report_are_not_lost() {
        let mut transcript = Transcript::default();
        transcript.take(b"@json {\"a\": \n\xffpanic");
        assert!(matches!(&transcript.report, Some(Err(_))));
        assert_eq!(transcript.finish(), ["\u{fffd}panic"]);
        assert_eq!(transcript.log.lines().count(), 1);
    }

    #[test]
    fn what_the_shell_says_comes_at_once_and_its_status_is_ours() {
        let mut transcript = Transcript::default();
        assert!(transcript.take(b"@shell\r\n@").is_empty());
        assert!(transcript.has_shell && transcript.take_output().is_empty());
        assert!(transcript.take(b"@status 2\r\n> 1: @x\r\n@").is_empty());
        assert_eq!(transcript.take_output(), b"@status 2\r\n> 1: @x\r\n");
        assert!(transcript.take(b"@@\n> @st").is_empty());
        assert_eq!((transcript.take_output(), transcript.status), (b"@@\n> @st".to_vec(), None));
        assert!(transcript.take(b"\n[ 1.0] Panic\n@status 3\n").is_empty());
        assert_eq!(transcript.log.lines().collect::<Vec<_>>(), ["[ 1.0] Panic"]);
        assert_eq!((transcript.status, transcript.ended), (Some(3), false));
        assert_eq!(transcript.take(b"log\n@end\n"), ["log"]);
        assert!(transcript.ended);
    }

    #[test]
    fn a_snapshot_is_no_output() {
        let mut transcript = Transcript::default();
        transcript.take(
            b"@shell\r\nword\r\n@memory a b\r\n@memory end\r\n@@memory c\r\n@status \
            0\r\n@memory d\r\n",
        );
        assert_eq!(transcript.take_output(), b"word\r\n@memory c\r\n");
        assert_eq!((transcript.memory.as_str(), transcript.status), ("a b\nend\n", Some(0)));
    }

    #[test]
    fn an_endless_log_keeps_its_beginning_and_its_end() {
        let mut transcript = Transcript::default();
        let mut said = 0;
        for number in 0..200_000 {
            said += transcript.take(format!("line {number}\r\n").as_bytes()).len();
        }
        let log: Vec<String> = transcript.log.lines().map(Cow::into_owned).collect();
        assert_eq!(
            (said, log.len()),
            (200_000, 2 * KEPT_LINES + 1),
            "everybody who watches sees all of it"
        );
        assert_eq!(
            (log[0].as_str(), log.last().map(String::as_str)),
            ("line 0", Some("line 199999"))
        );
        assert_eq!(log[KEPT_LINES], format!("({} lines left out)", 200_000 - 2 * KEPT_LINES));
        // A few lines that are long.
        let mut transcript = Transcript::default();
        for _ in 0..64 {
            transcript.take(&[b"x".repeat(LONGEST_LINE).as_slice(), b"\n"].concat());
        }
        let bytes: usize = transcript.log.lines().map(|line| line.len()).sum();
        assert!(bytes < 2 * KEPT_BYTES + LONGEST_LINE, "{bytes}");
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut transcript = Transcript::default();
        for _ in 0..40 {
            transcript.take(&[b'x'; 1 << 15]);
        }
        assert_eq!(transcript.finish()[0].len(), LONGEST_LINE);
    }
}
