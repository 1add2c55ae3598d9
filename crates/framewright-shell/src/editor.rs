//! Assembles lines from bytes: typed on a terminal, with echo and editing, or read from a pipe.
//!
//! Echoed lines end in LF, like those of commands; the terminal turns LF into CR LF.
//!
//! Keys: backspace and delete, ctrl-a and ctrl-e, ctrl-b and ctrl-f, ctrl-u and ctrl-k, ctrl-w,
//! ctrl-c, ctrl-d, ctrl-l, ctrl-p and ctrl-n, the arrows, home and end. It uses only escape
//! sequences that every terminal knows, and does not wrap lines itself.

use crate::history::History;
use crate::words::LONGEST_LINE;
use core::fmt::Write;

const PROMPT: &str = "framewright> ";
const BELL: char = '\x07';

/// What a byte led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The line is not complete yet.
    More,
    /// [`Editor::line`] is complete. The next byte begins another.
    Line,
    /// The line was longer than [`LONGEST_LINE`] bytes and is discarded.
    TooLong,
    /// The line is not text (UTF-8) and is discarded.
    NotText,
    /// Ctrl-C: the line is discarded.
    Interrupted,
    /// Ctrl-D on an empty line: the input ends.
    End,
}

/// How much of an escape sequence was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// After `ESC [` or `ESC O`, with the number so far.
    Sequence(u32),
}

/// See the module documentation.
pub struct Editor {
    line: [u8; LONGEST_LINE],
    len: usize,
    cursor: usize,
    /// More was typed than fits, and nothing has been deleted since.
    overflown: bool,
    /// The line is complete, and the next byte begins another.
    complete: bool,
    /// The last byte was a carriage return, so a line feed now belongs to it.
    returned: bool,
    /// Whether to echo what is typed.
    shown: bool,
    escape: Escape,
    history: History,
    /// How many lines back the arrows have gone.
    back: usize,
    /// What was typed before the arrows went back.
    draft: [u8; LONGEST_LINE],
    draft_len: usize,
}

impl Editor {
    const fn new(shown: bool) -> Self {
        Self {
            line: [0; LONGEST_LINE],
            len: 0,
            cursor: 0,
            overflown: false,
            complete: false,
            returned: false,
            shown,
            escape: Escape::None,
            history: History::EMPTY,
            back: 0,
            draft: [0; LONGEST_LINE],
            draft_len: 0,
        }
    }

    /// Makes an editor for a terminal without an echo of its own.
    #[must_use]
    pub const fn terminal() -> Self {
        Self::new(true)
    }

    /// Makes an editor for a pipe: nothing is echoed, and only the end of a line has a meaning.
    #[must_use]
    pub const fn plain() -> Self {
        Self::new(false)
    }

    /// The completed line.
    #[must_use]
    pub fn line(&self) -> &str {
        str::from_utf8(self.bytes()).unwrap_or("")
    }

    fn bytes(&self) -> &[u8] {
        self.line.get(..self.len).unwrap_or(&[])
    }

    /// Shows the prompt.
    pub fn prompt(&self, out: &mut dyn Write) {
        if self.shown {
            self.show(out, format_args!("{PROMPT}"));
        }
    }

    /// Shows text. Errors are ignored: the terminal may be gone, but the typed bytes still count.
    #[expect(clippy::unused_self, reason = "only an editor shows")]
    fn show(&self, out: &mut dyn Write, what: core::fmt::Arguments<'_>) {
        let _ = out.write_fmt(what);
    }

    /// Takes a byte.
    pub fn take(&mut self, byte: u8, out: &mut dyn Write) -> Event {
        if core::mem::take(&mut self.complete) {
            self.clear();
        }
        let returned = core::mem::replace(&mut self.returned, byte == b'\r');
        if byte == b'\n' && returned {
            return Event::More;
        }
        if byte == b'\r' || byte == b'\n' {
            return self.end(out);
        }
        if !self.shown {
            self.append(byte);
            return Event::More;
        }
        match self.escape {
            Escape::None => self.key(byte, out),
            Escape::Begun => {
                let sequence = matches!(byte, b'[' | b'O');
                self.escape = if sequence { Escape::Sequence(0) } else { Escape::None };
                Event::More
            }
            Escape::Sequence(number) => {
                match byte {
                    b'0'..=b'9' => {
                        let number =
                            number.saturating_mul(10).saturating_add(u32::from(byte - b'0'));
                        self.escape = Escape::Sequence(number);
                    }
                    // Other parameters are ignored.
                    b' '..=b'?' => {}
                    _ => {
                        self.escape = Escape::None;
                        self.sequence(byte, number, out);
                    }
                }
                Event::More
            }
        }
    }

    /// Ends the input: what is left is a line, unless it is empty.
    pub fn finish(&mut self) -> Event {
        if core::mem::take(&mut self.complete) {
            self.clear();
        }
        if self.len == 0 && !self.overflown { Event::End } else { self.end(&mut Nobody) }
    }

    fn clear(&mut self) {
        (self.len, self.cursor, self.back, self.overflown) = (0, 0, 0, false);
    }

    fn end(&mut self, out: &mut dyn Write) -> Event {
        if self.shown {
            self.show(out, format_args!("\n"));
        }
        self.escape = Escape::None;
        self.complete = true;
        if self.overflown {
            return Event::TooLong;
        }
        if str::from_utf8(self.bytes()).is_err() {
            return Event::NotText;
        }
        if self.shown {
            let Self { line, len, history, .. } = self;
            history.add(line.get(..*len).unwrap_or(&[]));
        }
        Event::Line
    }

    fn append(&mut self, byte: u8) {
        match self.line.get_mut(self.len) {
            Some(slot) => {
                *slot = byte;
                self.len += 1;
                self.cursor = self.len;
            }
            None => self.overflown = true,
        }
    }

    fn key(&mut self, byte: u8, out: &mut dyn Write) -> Event {
        match byte {
            // ctrl-c
            3 => {
                self.clear();
                self.show(out, format_args!("^C\n"));
                return Event::Interrupted;
            }
            // ctrl-d
            4 if self.len == 0 => {
                self.show(out, format_args!("\n"));
                return Event::End;
            }
            4 => self.delete(out),
            8 | 127 if self.cursor > 0 => {
                self.left(1, out);
                self.delete(out);
            }
            // ctrl-a, ctrl-e
            1 => self.left(self.cursor, out),
            5 => self.right(self.len - self.cursor, out),
            2 => self.left(1, out),
            6 => self.right(1, out),
            // ctrl-k
            11 => {
                self.shrink(self.cursor);
                self.show(out, format_args!("\x1b[K"));
            }
            // ctrl-u
            21 => self.erase_back(self.cursor, out),
            // ctrl-w
            23 => {
                let before = self.bytes().get(..self.cursor).unwrap_or(&[]);
                let end = before.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
                let word = before.get(..end).unwrap_or(&[]).iter().rposition(|&byte| byte == b' ');
                self.erase_back(self.cursor - word.map_or(0, |blank| blank + 1), out);
            }
            // ctrl-l
            12 => {
                self.show(out, format_args!("\x1b[H\x1b[2J"));
                self.redraw(out);
            }
            // ctrl-p, ctrl-n
            16 => self.older(out),
            14 => self.newer(out),
            27 => self.escape = Escape::Begun,
            b' '..=b'~' => self.insert(byte, out),
            b'\t' => self.insert(b' ', out),
            _ => self.show(out, format_args!("{BELL}")),
        }
        Event::More
    }

    fn sequence(&mut self, last: u8, number: u32, out: &mut dyn Write) {
        match (last, number) {
            (b'A', _) => self.older(out),
            (b'B', _) => self.newer(out),
            (b'C', _) => self.right(1, out),
            (b'D', _) => self.left(1, out),
            (b'H', _) | (b'~', 1 | 7) => self.left(self.cursor, out),
            (b'F', _) | (b'~', 4 | 8) => self.right(self.len - self.cursor, out),
            (b'~', 3) => self.delete(out),
            _ => {}
        }
    }

    fn left(&mut self, by: usize, out: &mut dyn Write) {
        let by = by.min(self.cursor);
        if by != 0 {
            self.cursor -= by;
            self.show(out, format_args!("\x1b[{by}D"));
        }
    }

    fn right(&mut self, by: usize, out: &mut dyn Write) {
        let by = by.min(self.len - self.cursor);
        if by != 0 {
            self.cursor += by;
            self.show(out, format_args!("\x1b[{by}C"));
        }
    }

    fn insert(&mut self, byte: u8, out: &mut dyn Write) {
        if self.len == LONGEST_LINE {
            // Part of a line could be another command, so the whole line is refused.
            self.overflown = true;
            self.show(out, format_args!("{BELL}"));
            return;
        }
        self.line.copy_within(self.cursor..self.len, self.cursor + 1);
        if let Some(place) = self.line.get_mut(self.cursor) {
            *place = byte;
        }
        self.len += 1;
        if self.cursor + 1 == self.len {
            self.cursor = self.len;
            self.show(out, format_args!("{}", char::from(byte)));
            return;
        }
        self.show_tail(out);
        // The cursor is still before the new byte.
        self.right(1, out);
    }

    fn delete(&mut self, out: &mut dyn Write) {
        if self.cursor < self.len {
            self.line.copy_within(self.cursor + 1..self.len, self.cursor);
            self.shrink(self.len - 1);
            self.show_tail(out);
        }
    }

    fn erase_back(&mut self, count: usize, out: &mut dyn Write) {
        let end = self.cursor;
        self.left(count, out);
        self.line.copy_within(end..self.len, self.cursor);
        self.shrink(self.len - (end - self.cursor));
        self.show_tail(out);
    }

    /// Sets the length of a line after a deletion. A user who deletes sees what is left, so the
    /// visible line then counts, even if earlier bytes did not fit.
    fn shrink(&mut self, len: usize) {
        self.overflown &= len == self.len;
        self.len = len;
    }

    /// Shows what is behind the cursor without moving the cursor.
    fn show_tail(&self, out: &mut dyn Write) {
        let tail = self
            .bytes()
            .get(self.cursor..)
            .and_then(|tail| str::from_utf8(tail).ok())
            .unwrap_or("");
        self.show(out, format_args!("{tail}\x1b[K"));
        if !tail.is_empty() {
            self.show(out, format_args!("\x1b[{}D", tail.len()));
        }
    }

    /// Shows the prompt and the line again.
    fn redraw(&mut self, out: &mut dyn Write) {
        let back = self.len - self.cursor;
        self.show(out, format_args!("\r{PROMPT}{}\x1b[K", self.line()));
        self.cursor = self.len;
        self.left(back, out);
    }

    fn older(&mut self, out: &mut dyn Write) {
        match self.history.get(self.back + 1) {
            Some(_) => {
                if self.back == 0 {
                    self.draft = self.line;
                    // A line of which a part is missing must not come back as if it were whole.
                    self.draft_len = if self.overflown { 0 } else { self.len };
                }
                self.back += 1;
                self.recall(out);
            }
            None => self.show(out, format_args!("{BELL}")),
        }
    }

    fn newer(&mut self, out: &mut dyn Write) {
        if self.back != 0 {
            self.back -= 1;
            self.recall(out);
        }
    }

    fn recall(&mut self, out: &mut dyn Write) {
        let Self { line, history, back, draft, draft_len, .. } = self;
        let draft = draft.get(..*draft_len).unwrap_or(&[]);
        let remembered = history.get(*back).unwrap_or(draft);
        line.iter_mut().zip(remembered).for_each(|(place, &byte)| *place = byte);
        self.len = remembered.len();
        self.cursor = self.len;
        self.overflown = false;
        self.redraw(out);
    }
}

/// Discards the text that is written to it.
struct Nobody;

impl Write for Nobody {
    fn write_str(&mut self, _: &str) -> core::fmt::Result {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    /// The lines and other events that result from `input`.
    fn lines(mut editor: Editor, input: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let mut screen = String::new();
        let mut note = |event, editor: &Editor| match event {
            Event::More => {}
            Event::Line => found.push(editor.line().to_string()),
            other => found.push(std::format!("!{other:?}")),
        };
        for &byte in input {
            let event = editor.take(byte, &mut screen);
            note(event, &editor);
        }
        let event = editor.finish();
        note(event, &editor);
        found
    }

    #[test]
    fn keys_edit_the_line() {
        for (typed, expected) in [
            ("ab\r", &["ab"][..]),
            ("ab\r\ncd\n\ref", &["ab", "cd", "", "ef"]),
            ("abx\x7fc\x08d\n", &["abd"]),
            ("\x7f\x08a\n", &["a"]),
            ("bc\x01a\x05d\n", &["abcd"]),
            ("ac\x1b[Db\n", &["abc"]),
            ("ac\x1bODb\x1b[C\x1b[C\x1b[Cd\n", &["abcd"]),
            ("xabc\x1b[H\x1b[3~\n", &["abc"]),
            ("abc\x1b[1~\x1b[4~d\x02\x02\x06\x04\n", &["abc"]),
            ("old\x15new\n", &["new"]),
            ("abc\x1b[D\x15\n", &["c"]),
            ("abcd\x02\x02\x0b\n", &["ab"]),
            ("one two  \x17x\n", &["one x"]),
            ("one\x17\x17\n", &[""]),
            ("bad\x03good\n", &["!Interrupted", "good"]),
            ("a\x04b\n", &["ab"]),
            ("a\tb\x1bZ\x1b[5;2zc\u{e4}\n", &["a bc"]),
            ("one\ntwo\n\x1b[A\x1b[A\n", &["one", "two", "one"]),
            ("one\ntwo\n\x1b[A\x1b[A\x1b[A\x1b[B!\n\x10\n", &["one", "two", "two!", "two!"]),
            ("one\nx\x1b[A\x1b[B\x1b[Btwo\n", &["one", "xtwo"]),
            ("one\nlong\x1b[A!\x1b[A\x1b[B\x02s\n", &["one", "lonsg"]),
        ] {
            let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            if typed.ends_with('\n') || typed.ends_with('\r') {
                expected.push("!End".into());
            }
            assert_eq!(lines(Editor::terminal(), typed.as_bytes()), expected, "{typed:?}");
        }
        assert_eq!(lines(Editor::terminal(), b"\x04")[0], "!End");
    }

    #[test]
    fn a_pipe_is_taken_as_it_is() {
        assert_eq!(
            lines(Editor::plain(), "a\tb\x7f \u{e4}\r\nc".as_bytes()),
            ["a\tb\x7f \u{e4}", "c"]
        );
        assert_eq!(lines(Editor::plain(), b"a\xff\nb\n"), ["!NotText", "b", "!End"]);
        assert_eq!(lines(Editor::plain(), b""), ["!End"]);
    }

    #[test]
    fn lines_that_are_too_long_are_refused_whole() {
        for editor in [Editor::terminal, Editor::plain] {
            let fits = "x".repeat(LONGEST_LINE);
            assert_eq!(
                lines(editor(), std::format!("{fits}\nb\n").as_bytes()),
                [&fits, "b", "!End"]
            );
            assert_eq!(
                lines(editor(), std::format!("{fits}y\nb\n").as_bytes()),
                ["!TooLong", "b", "!End"]
            );
            assert_eq!(lines(editor(), std::format!("{fits}y").as_bytes()), ["!TooLong"]);
        }
        // After a deletion, what is left is a valid line.
        for (keys, expected) in [
            ("\x7f", &"x".repeat(LONGEST_LINE - 1)),
            ("\x02\x0b", &"x".repeat(LONGEST_LINE - 1)),
            ("\x15new", &"new".to_string()),
            ("\x17new", &"new".to_string()),
            ("\x05\x0b", &"!TooLong".to_string()),
            ("\x10\x0enew", &"new".to_string()),
        ] {
            let typed = std::format!("one\n{}y{keys}\n", "x".repeat(LONGEST_LINE));
            assert_eq!(&lines(Editor::terminal(), typed.as_bytes())[1], expected, "{keys:?}");
        }
    }

    /// The text and the cursor that a terminal of one line would show.
    fn screen(text: &str) -> (String, usize) {
        let (mut cells, mut cursor): (Vec<char>, usize) = (Vec::new(), 0);
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\r' => cursor = 0,
                '\x1b' => {
                    assert_eq!(chars.next(), Some('['));
                    let number: String = chars.clone().take_while(char::is_ascii_digit).collect();
                    let by = number.parse().unwrap_or(1);
                    match chars.by_ref().nth(number.len()).expect("a sequence ends") {
                        'D' => cursor = cursor.checked_sub(by).expect("not beyond the edge"),
                        'C' => cursor += by,
                        'K' => cells.truncate(cursor),
                        other => panic!("{other}"),
                    }
                }
                BELL => {}
                char => {
                    cells.resize(cells.len().max(cursor + 1), ' ');
                    cells[cursor] = char;
                    cursor += 1;
                }
            }
        }
        (cells.into_iter().collect(), cursor)
    }

    #[test]
    fn the_screen_shows_the_line() {
        let keys: [&[u8]; 14] = [
            b"a", b"b", b" ", b"\x7f", b"\x1b[D", b"\x1b[C", b"\x01", b"\x05", b"\x15", b"\x0b",
            b"\x17", b"\x04", b"\x1b[A", b"\x1b[B",
        ];
        let mut seed = 1_u64;
        for _ in 0..300 {
            let mut editor = Editor::terminal();
            for line in [&b"first line\n"[..], b"second\n"] {
                for &byte in line {
                    editor.take(byte, &mut String::new());
                }
            }
            let mut text = String::new();
            editor.prompt(&mut text);
            for step in 0..40 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let key = keys[usize::try_from(seed >> 40).unwrap_or(0) % keys.len()];
                // Ctrl-D on an empty line would end the input.
                if key == b"\x04" && (editor.complete || editor.len == 0) {
                    continue;
                }
                for &byte in key {
                    assert_eq!(editor.take(byte, &mut text), Event::More, "{step}");
                }
                let (shown, cursor) = screen(&text);
                assert_eq!(shown, std::format!("{PROMPT}{}", editor.line()), "{key:?}");
                assert_eq!(cursor, PROMPT.len() + editor.cursor, "{key:?}");
            }
        }
    }
}
