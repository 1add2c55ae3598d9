//! Shows progress: a bar if standard error is a terminal, else plain lines if they were requested.
//!
//! There is one bar for the process, as there is one standard error, so that measurements need not
//! pass it along. It is drawn only from [`step`], between measurements, and nothing updates it
//! meanwhile.

use framewright_cli::error::Error;
use framewright_cli::interrupt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// The environment variable that asks a child program for lines that begin with [`MARK`].
pub const WANTED: &str = "FRAMEWRIGHT_PROGRESS";
/// Begins a line of progress on standard error of a child program: a separator that no message
/// contains.
pub const MARK: char = '\u{1e}';

static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Begins a bar for this many things if there is a terminal; for zero things, a line that says what
/// is being done.
pub fn begin(things: usize) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = ProgressBar::with_draw_target(Some(things as u64), ProgressDrawTarget::stderr());
    let form = if things == 0 {
        "{elapsed:>4} {wide_msg}"
    } else {
        "{elapsed:>4} [{bar:24}] {pos}/{len} {wide_msg}"
    };
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style.progress_chars("=> "));
    }
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

/// Says what is done next.
///
/// # Errors
/// Fails if a signal asks us to stop.
pub fn step(what: &dyn Display) -> Result<(), Error> {
    interrupt::check()?;
    if let Some(bar) = &*BAR.lock().unwrap_or_else(PoisonError::into_inner) {
        bar.set_message(what.to_string());
    } else if std::env::var_os(WANTED).is_some() {
        // If standard error is gone, there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "{MARK}{what}");
    }
    Ok(())
}

/// Prints a line if there is no bar.
pub fn line(text: &str) {
    if BAR.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
        // If standard error is gone, there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Notes that this many things are done.
pub fn done(things: usize) {
    if let Some(bar) = &*BAR.lock().unwrap_or_else(PoisonError::into_inner) {
        bar.set_position(things as u64);
    }
}

/// Takes the bar off the terminal while `write` writes something else.
pub fn aside<R>(write: impl FnOnce() -> R) -> R {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Takes the bar off the terminal for good.
pub fn end() {
    if let Some(bar) = BAR.lock().unwrap_or_else(PoisonError::into_inner).take() {
        bar.finish_and_clear();
    }
}
