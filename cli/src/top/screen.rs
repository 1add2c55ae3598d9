//! The terminal as one page that is redrawn in place and put back afterwards.
//!
//! It is driven by the control sequences of ECMA-48 and by those private modes of xterm that all
//! terminals know today: 25 (show the cursor), 1049 (the alternate screen) and 2026 (show changes
//! at once), which terminals that do not know it ignore.

use crate::args::KEYS;
use crate::error::Error;
use crate::interrupt;
use crate::terminal::{self, Terminal};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// What a key means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// End the program.
    Quit,
    /// Show the zones in the next order.
    Sort,
}

/// The columns and rows to assume if the terminal does not know its own.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The terminal that has to be put back, by whichever path ends first.
static TAKEN: Mutex<Option<Terminal>> = Mutex::new(None);

/// The terminal while it shows the page. It is put back when this is dropped, or on a panic.
pub struct Screen {
    /// The columns and rows when the page was last drawn.
    size: (usize, usize),
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Fails if the terminal refuses.
    pub fn open() -> Result<Self, Error> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                put_back();
                usual(panic);
            }));
        });
        let terminal = Terminal::open()
            .ok_or_else(|| Error::Failed("the terminal's settings cannot be read".into()))?;
        terminal.take_keys();
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(terminal);
        let screen = Self { size: size() };
        tell("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Shows as many of these lines as fit, and below them what the keys do. Lines may be coloured;
    /// each is cut at the right edge.
    ///
    /// # Errors
    /// Fails if the terminal takes no output.
    pub fn draw(&mut self, lines: &[String]) -> Result<(), Error> {
        self.size = size();
        let (width, height) = self.size;
        let mut page = String::from("\x1b[?2026h");
        for (row, line) in fit(lines, height).into_iter().enumerate() {
            let _ = write!(page, "\x1b[{};1H{}\x1b[K", row + 1, cut(line, width));
        }
        page.push_str("\x1b[?2026l");
        tell(&page)
    }

    /// Whether the window's size has changed since the page was drawn.
    pub fn is_resized(&self) -> bool {
        size() != self.size
    }

    /// Waits for keys, at most as long as `wait`.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub fn keys(&mut self, wait: Duration) -> Result<Vec<Key>, Error> {
        // As large as the buffer of standard input, which might otherwise keep keys that poll
        // cannot see.
        let mut typed = [0; 8 << 10];
        if !interrupt::is_readable(&io::stdin(), wait) {
            return Ok(Vec::new());
        }
        match io::stdin().read(&mut typed) {
            Ok(0) => Ok(vec![Key::Quit]),
            Ok(length) => Ok(meanings(&typed[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(Error::Failed(format!("the terminal cannot be read: {error}"))),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        put_back();
    }
}

/// Puts the terminal back, once for each time that it was taken.
fn put_back() {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(terminal) = taken {
        // If this fails, the terminal is gone.
        let _ = tell("\x1b[?25h\x1b[?1049l");
        terminal.be_as_usual();
    }
}

fn tell(what: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(what.as_bytes())?;
    Ok(out.flush()?)
}

fn size() -> (usize, usize) {
    terminal::size().unwrap_or(USUAL_SIZE)
}

/// The meanings of keys that arrived in one read. A lone Esc ends the program; with more bytes
/// behind it, it begins the sequence of another key, which means nothing here.
fn meanings(typed: &[u8]) -> Vec<Key> {
    let mut meanings = Vec::new();
    let mut rest = typed.iter().copied().peekable();
    while let Some(key) = rest.next() {
        match (key, rest.peek()) {
            (b'q' | 0x03 | 0x04, _) | (0x1b, None) => meanings.push(Key::Quit),
            (b's', _) => meanings.push(Key::Sort),
            (0x1b, Some(b'[' | b'O')) => {
                rest.next();
                rest.find(|byte| matches!(byte, b'@'..=b'~'));
            }
            (0x1b, Some(_)) => drop(rest.next()),
            _ => {}
        }
    }
    meanings
}

/// As many lines as fit, followed by the line about keys.
fn fit(lines: &[String], height: usize) -> Vec<&str> {
    let room = height.saturating_sub(1);
    let mut shown: Vec<&str> = lines.iter().take(room).map(String::as_str).collect();
    shown.resize(room, "");
    shown.push(KEYS);
    shown
}

/// The first `width` characters of `line`; colour sequences take no room and are kept.
fn cut(line: &str, width: usize) -> String {
    let mut kept = String::with_capacity(line.len());
    let (mut room, mut in_escape) = (width, false);
    for letter in line.chars() {
        in_escape |= letter == '\x1b';
        if in_escape {
            kept.push(letter);
            in_escape = !letter.is_ascii_alphabetic();
        } else if room != 0 {
            kept.push(letter);
            room -= 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{Key, cut, fit, meanings};
    use crate::args::KEYS;

    #[test]
    fn keys_are_the_last_line_of_any_terminal() {
        let lines: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        for (lines, height) in [(&lines[..], 24), (&lines[..3], 24), (&lines[..], 1)] {
            let shown = fit(lines, height);
            assert_eq!((shown.len(), shown.last()), (height, Some(&KEYS)));
        }
        assert_eq!(fit(&lines, 24)[..23], lines[..23]);
        assert!(KEYS.len() <= 80);
    }

    #[test]
    fn keys_are_told_from_sequences() {
        for (typed, expected) in [
            (&b"sxs"[..], &[Key::Sort, Key::Sort][..]),
            (b"q", &[Key::Quit]),
            (b"\x03\x04", &[Key::Quit, Key::Quit]),
            (b"\x1b", &[Key::Quit]),
            (b"\x1b[A\x1bOq\x1b[1;5qs\x1bq", &[Key::Sort]),
            (b"\x1b[", &[]),
            (b"", &[]),
        ] {
            assert_eq!(meanings(typed), expected, "{typed:?}");
        }
    }

    #[test]
    fn lines_are_cut_but_colours_end() {
        assert_eq!(cut("abc", 5), "abc");
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("\x1b[1mabcdef\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
        assert_eq!(cut("a", 0), "");
    }
}
