//! The terminal as one page that is written over, and as it was afterwards.

use crate::args::KEYS;
use crate::error::Error;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{self, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a key means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Enough seen.
    Quit,
    /// The rows in the next order.
    Sort,
    /// The window has another size.
    Resized,
}

/// Columns and rows of a terminal that does not know its own.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// Whether the terminal is to be put back, by whoever comes first.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// The terminal. Dropping it puts it back, and a panic does, too.
pub struct Screen(());

impl Screen {
    /// Takes it.
    ///
    /// # Errors
    /// It refuses.
    pub fn open() -> Result<Self, Error> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                put_back();
                usual(panic);
            }));
        });
        terminal::enable_raw_mode()?;
        IS_OURS.store(true, Ordering::Relaxed);
        let screen = Self(());
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Shows these lines, as many as there is room for, and what keys do below them. Lines may be
    /// coloured; each is cut at the edge.
    ///
    /// # Errors
    /// Nobody takes them.
    pub fn draw(&mut self, lines: &[String]) -> Result<(), Error> {
        let (width, height) = match terminal::size()? {
            (0, _) | (_, 0) => USUAL_SIZE,
            size => size,
        };
        let mut out = io::stdout().lock();
        queue!(out, terminal::BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
        let lines = fit(lines, usize::from(height));
        for (row, line) in (0..height).zip(&lines) {
            let line = cut(line, usize::from(width));
            queue!(
                out,
                cursor::MoveTo(0, row),
                Print(line),
                terminal::Clear(ClearType::UntilNewLine)
            )?;
        }
        if lines.len() < usize::from(height) {
            let row = u16::try_from(lines.len()).unwrap_or(height);
            queue!(out, cursor::MoveTo(0, row), terminal::Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, terminal::EndSynchronizedUpdate)?;
        Ok(out.flush()?)
    }

    /// Waits for a key, for that long at most.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn key(&mut self, wait: Duration) -> Result<Option<Key>, Error> {
        if !event::poll(wait)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Resize(..) => Some(Key::Resized),
            Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    Some(Key::Quit)
                }
                KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
                KeyCode::Char('s') => Some(Key::Sort),
                _ => None,
            },
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        put_back();
    }
}

/// Once for each time that the terminal was taken.
fn put_back() {
    if IS_OURS.swap(false, Ordering::Relaxed) {
        // Where it fails there is no terminal any more.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// As many lines as there is room for, the last of them about keys.
fn fit(lines: &[String], height: usize) -> Vec<&str> {
    let room = height.saturating_sub(1);
    let mut shown: Vec<&str> = lines.iter().take(room).map(String::as_str).collect();
    shown.resize(room, "");
    shown.push(KEYS);
    shown
}

/// The first `width` signs of `line`; what sets colours takes no room and is kept.
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
    use super::{cut, fit};
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
    fn lines_are_cut_but_colours_end() {
        assert_eq!(cut("abc", 5), "abc");
        assert_eq!(cut("abcdef", 3), "abc");
        assert_eq!(cut("\x1b[1mabcdef\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
        assert_eq!(cut("a", 0), "");
    }
}
