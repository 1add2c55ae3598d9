//! `framewright top`: shows the memory of a running machine as it changes, from its control files.

mod sample;
mod screen;
mod view;

use crate::args::Top;
use crate::attach::{Client, ReadError, Sort, running};
use crate::error::{self, Error};
use crate::interrupt;
use crate::output::Output;
use sample::Sample;
use screen::{Key, Screen};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use view::View;

/// How often to check for a signal while waiting.
const GLANCE: Duration = Duration::from_millis(100);

/// Watches the machine that the options name, or the only one there is, until it ends or the user
/// quits.
///
/// # Errors
/// Fails if there is no such machine or the choice is ambiguous, if the machine does not answer, or
/// if a signal comes.
pub fn run(top: &Top) -> Result<u8, Error> {
    interrupt::watch();
    let pid = SHELLS.find(top.pid, running())?;
    let first = take(pid).map_err(|error| cannot(pid, &error))?;
    let interval = top.interval;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let is_live =
        !top.once && !is_dumb && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let ended =
        if is_live { live(pid, first, interval) } else { plain(pid, first, interval, top.once) }?;
    if ended {
        error::note(&format!("process {pid} has ended"));
    }
    Ok(0)
}

/// Messages about the choice of a shell.
const SHELLS: Sort = Sort {
    none: "you have no shell running to watch: start `framewright shell` or `boot --exec`",
    other: "is not a shell of yours that can be watched",
    several: "several shells are running; choose one by its process ID",
};

fn take(pid: u32) -> Result<Sample, ReadError> {
    let mut client = Client::connect(pid)?;
    Sample::take(&mut |path| client.read(path))
}

fn cannot(pid: u32, error: &ReadError) -> Error {
    Error::Failed(match error {
        ReadError::Refused(why) => format!("process {pid} cannot be read: {why}"),
        ReadError::Gone => format!("process {pid} has ended"),
        ReadError::Silent => format!("process {pid} does not answer"),
        ReadError::Failed(error) => format!("cannot query process {pid}: {error}"),
    })
}

/// Feeds the next sample, or the reason why there is none, to the view. Returns `None` once there
/// will be no more.
fn next(pid: u32, view: &mut View) -> Option<()> {
    match take(pid) {
        Ok(sample) => view.show(sample),
        Err(ReadError::Gone) => return None,
        Err(error) => view.complain(match cannot(pid, &error) {
            Error::Failed(why) => why,
            other => format!("{other:?}"),
        }),
    }
    Some(())
}

/// Prints one table after the other. Returns whether the machine has ended.
fn plain(pid: u32, first: Sample, interval: Duration, once: bool) -> Result<bool, Error> {
    let mut output = Output::new();
    let mut view = View::new(pid, first);
    loop {
        for line in view.lines(output.style()) {
            output.line(&line)?;
        }
        if once {
            return Ok(false);
        }
        output.line("")?;
        let due = Instant::now() + interval;
        while Instant::now() < due {
            interrupt::check()?;
            std::thread::sleep(due.saturating_duration_since(Instant::now()).min(GLANCE));
        }
        if next(pid, &mut view).is_none() {
            return Ok(true);
        }
    }
}

/// Uses the whole terminal. Returns whether the machine has ended.
fn live(pid: u32, first: Sample, interval: Duration) -> Result<bool, Error> {
    let style = Output::new().style();
    let mut screen = Screen::open()?;
    let mut view = View::new(pid, first);
    loop {
        screen.draw(&view.lines(style))?;
        let due = Instant::now() + interval;
        loop {
            interrupt::check()?;
            let left = due.saturating_duration_since(Instant::now());
            let keys = screen.keys(left.min(GLANCE))?;
            if keys.contains(&Key::Quit) {
                return Ok(false);
            }
            keys.iter().for_each(|_| view.sort_next());
            if !keys.is_empty() || screen.is_resized() {
                screen.draw(&view.lines(style))?;
            }
            if left.is_zero() {
                break;
            }
        }
        if next(pid, &mut view).is_none() {
            return Ok(true);
        }
    }
}
