//! A terminal whose keys are read one by one without echo, and its size.

use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// The terminal's original settings while its keys are taken, for a program that ends without
/// dropping anything.
static USUAL: Mutex<Option<libc::termios>> = Mutex::new(None);

/// The terminal on standard input, with its original settings and those for reading keys. Dropping
/// it restores the original ones.
pub struct Terminal {
    usual: libc::termios,
    raw: libc::termios,
}

impl Terminal {
    /// Opens the terminal; returns `None` if standard input is no terminal.
    pub fn open() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        // SAFETY: all zeros is a valid termios, an array of integers.
        let mut usual: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the pointer is valid for a termios.
        if unsafe { libc::tcgetattr(stdin.as_raw_fd(), &raw mut usual) } != 0 {
            return None;
        }
        let mut raw = usual;
        raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG | libc::IEXTEN);
        raw.c_iflag &= !(libc::ICRNL | libc::INLCR | libc::IXON);
        raw.c_cc[libc::VMIN] = 1;
        raw.c_cc[libc::VTIME] = 0;
        Some(Self { usual, raw })
    }

    /// Delivers keys one by one, including those that would otherwise raise signals.
    pub fn take_keys(&self) {
        *USUAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.usual);
        set(&self.raw);
    }

    /// Restores the original settings.
    pub fn be_as_usual(&self) {
        set(&self.usual);
        *USUAL.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Restores a terminal whose keys are taken, for a panic.
pub fn put_back() {
    // The panicking thread may hold the lock, which is otherwise held only for a moment.
    if let Ok(Some(usual)) = USUAL.try_lock().map(|mut usual| usual.take()) {
        set(&usual);
    }
}

/// The columns and rows of the terminal on standard output, if it knows them.
pub fn size() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and the pointer is valid for what this request writes.
    let said = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (said == 0 && columns != 0 && rows != 0).then_some((columns, rows))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.be_as_usual();
    }
}

fn set(settings: &libc::termios) {
    // SAFETY: the descriptor is open, and the pointer is valid. A terminal that is gone says so,
    // and nothing is lost by it.
    unsafe { libc::tcsetattr(io::stdin().as_raw_fd(), libc::TCSADRAIN, settings) };
}
