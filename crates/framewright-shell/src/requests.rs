//! Reads control files over a line, for programs that monitor a running machine.
//!
//! A request is one line: a number that the client chooses, and a path. The answer is `=NUMBER`,
//! then the file's text with a `+` in front of each line, then `.NUMBER`; or it is `!NUMBER` and an
//! error. This way, an answer cannot be confused with the rest of an earlier one, nor a file's text
//! with the end of the answer. A malformed request is answered with number 0. Nothing can be
//! written.

use core::fmt::{self, Display, Write};

/// The longest request, in bytes, without its end of line.
pub const LONGEST_REQUEST: usize = 256;

/// A request that arrives byte by byte.
pub struct Requests {
    line: [u8; LONGEST_REQUEST],
    len: usize,
    is_too_long: bool,
}

/// The number and the path, or why the line is not a request.
type Parsed<'a> = Result<(u64, &'a str), &'static str>;

impl Requests {
    /// Starts with an empty request.
    #[must_use]
    pub const fn new() -> Self {
        Self { line: [0; LONGEST_REQUEST], len: 0, is_too_long: false }
    }

    /// Takes the next byte. Returns whether the request is complete: then call
    /// [`answer`](Self::answer).
    pub fn take(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            return true;
        }
        match self.line.get_mut(self.len) {
            Some(slot) => {
                *slot = byte;
                self.len += 1;
            }
            None => self.is_too_long = true,
        }
        false
    }

    /// Answers the complete request and gets ready for the next one. `read` writes the text of a
    /// file.
    ///
    /// # Errors
    /// Fails if `out` fails; the answer is then incomplete.
    pub fn answer<E: Display>(
        &mut self,
        read: &mut dyn FnMut(&str, &mut dyn Write) -> Result<(), E>,
        out: &mut dyn Write,
    ) -> fmt::Result {
        let answered = match self.parse() {
            Ok((number, path)) => {
                writeln!(out, "={number}")?;
                let mut lines = Lines { out, at_start: true, failed: false };
                let result = read(path, &mut lines);
                let Lines { at_start, failed, .. } = lines;
                if failed {
                    return Err(fmt::Error);
                }
                if !at_start {
                    out.write_str("\n")?;
                }
                match result {
                    Ok(()) => writeln!(out, ".{number}"),
                    Err(error) => writeln!(out, "!{number} {error}"),
                }
            }
            Err(why) => writeln!(out, "=0\n!0 {why}"),
        };
        self.len = 0;
        self.is_too_long = false;
        answered
    }

    fn parse(&self) -> Parsed<'_> {
        if self.is_too_long {
            return Err("the request is too long");
        }
        let line = self.line.get(..self.len).unwrap_or(&[]);
        let line = core::str::from_utf8(line).map_err(|_| "the request is not text")?;
        let (number, path) = line
            .trim_end_matches('\r')
            .split_once(' ')
            .ok_or("a request must be a number and a path")?;
        let number = number.parse().map_err(|_| "a request must begin with a number")?;
        if path.starts_with('/') { Ok((number, path)) } else { Err("a path must begin with /") }
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

/// Puts a `+` in front of each line.
struct Lines<'a> {
    out: &'a mut dyn Write,
    at_start: bool,
    failed: bool,
}

impl Write for Lines<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            let mark = if self.at_start { "+" } else { "" };
            if self.failed
                || self.out.write_str(mark).and_then(|()| self.out.write_str(piece)).is_err()
            {
                self.failed = true;
                return Err(fmt::Error);
            }
            self.at_start = piece.ends_with('\n');
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    fn ask(requests: &mut Requests, bytes: &[u8]) -> String {
        let mut out = String::new();
        for &byte in bytes {
            if requests.take(byte) {
                let mut read = |path: &str, out: &mut dyn Write| match path {
                    "/two" => write!(out, "a\n.7\n").map_err(|_| "failed"),
                    "/open" => write!(out, "no end").map_err(|_| "failed"),
                    "/part" => write!(out, "x\ny").map_err(|_| "failed").and(Err("in the middle")),
                    "/empty" => Ok(()),
                    _ => Err("there is none"),
                };
                assert_eq!(requests.answer(&mut read, &mut out), Ok(()));
            }
        }
        out
    }

    #[test]
    fn files_come_line_by_line_between_their_marks() {
        let requests = &mut Requests::new();
        assert_eq!(ask(requests, b"7 /two\n8 /empty\r\n"), "=7\n+a\n+.7\n.7\n=8\n.8\n");
        assert_eq!(ask(requests, b"9 /open\n"), "=9\n+no end\n.9\n");
        assert_eq!(
            ask(requests, b"1 /part\n2 /x\n"),
            "=1\n+x\n+y\n!1 in the middle\n=2\n!2 there is none\n"
        );
    }

    #[test]
    fn what_is_no_request_is_answered_and_forgotten() {
        let requests = &mut Requests::new();
        for (bytes, why) in [
            (&b"\n"[..], "a request must be a number and a path"),
            (b"/two\n", "a request must be a number and a path"),
            (b"x /two\n", "a request must begin with a number"),
            (b"99999999999999999999 /two\n", "a request must begin with a number"),
            (b"1 two\n", "a path must begin with /"),
            (b"1 /\xff\n", "the request is not text"),
        ] {
            assert_eq!(ask(requests, bytes), format!("=0\n!0 {why}\n"));
        }
        let long = [&b"1 /"[..], &[b'x'; LONGEST_REQUEST], b"\n"].concat();
        assert_eq!(ask(requests, &long), "=0\n!0 the request is too long\n");
        let longest = [&b"1 /"[..], &[b'x'; LONGEST_REQUEST - 3], b"\n"].concat();
        assert_eq!(ask(requests, &longest), "=1\n!1 there is none\n");
        assert_eq!(ask(requests, b"3 /empty\n"), "=3\n.3\n");
    }

    #[test]
    fn a_line_that_fails_ends_the_answer() {
        struct Short(usize);
        impl Write for Short {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
                Ok(())
            }
        }
        for room in 0..12 {
            let mut requests = Requests::new();
            assert!(!b"1 /a".iter().any(|&byte| requests.take(byte)) && requests.take(b'\n'));
            // `read` may ignore the error of its output.
            let mut read = |_: &str, out: &mut dyn Write| {
                let _ = out.write_str("one\ntwo\n");
                Ok::<(), &str>(())
            };
            assert_eq!(requests.answer(&mut read, &mut Short(room)), Err(fmt::Error), "{room}");
        }
    }
}
