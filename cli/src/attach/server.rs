//! The side that listens and answers.

use super::peer::{Peer, Ready, wait};
use super::place::Listening;
use crate::error;
use framewright_shell::Requests;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// How long a client may keep us waiting when it stops in the middle of a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for a client before waiting anew.
const LONG: Duration = Duration::from_secs(3600);

/// Reads a file into a text.
pub type ReadFile<'a> = dyn Fn(&str, &mut dyn std::fmt::Write) -> Result<(), String> + Sync + 'a;

/// Calls `work` while another thread answers clients, reading files with `read`. If no socket can
/// be made, `work` runs all the same.
pub fn with_watchers<R>(read: &ReadFile<'_>, work: impl FnOnce() -> R) -> R {
    let opened = Listening::open().and_then(|listening| Ok((listening, UnixStream::pair()?)));
    match opened {
        Ok((listening, (off, ours))) => thread::scope(|scope| {
            scope.spawn(move || serve(&listening, &off, read));
            let result = work();
            // Closing our end stops the thread, also if `work` panics.
            drop(ours);
            result
        }),
        Err(error) => {
            error::note(&format!("`framewright top` cannot watch this process: {error}"));
            work()
        }
    }
}

/// Serves one client after the other, as each takes only a moment.
fn serve(listening: &Listening, off: &UnixStream, read: &ReadFile<'_>) {
    let listener = &listening.listener;
    while let Ok(Ready::First | Ready::Late) =
        wait(listener.as_raw_fd(), false, Some(off.as_raw_fd()), Instant::now() + LONG)
    {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Ok(peer) = Peer::new(stream, Some(off), PATIENCE) {
                    converse(peer, read);
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
            }
            // Too many files may be open; that passes.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Answers one client until it leaves or is too slow. Its errors are not ours.
fn converse(mut peer: Peer<'_>, read: &ReadFile<'_>) {
    let mut requests = Requests::new();
    let mut buffer = [0; 512];
    while let Ok(length @ 1..) = peer.read(&mut buffer) {
        for &byte in &buffer[..length] {
            if !requests.take(byte) {
                continue;
            }
            let mut answer = String::new();
            let answered = requests.answer(&mut |path, out| read(path, out), &mut answer);
            if answered.is_err() {
                let _ = writeln!(answer, "\n!0 the answer could not be written");
            }
            peer.have_patience(PATIENCE);
            if peer.write_all(answer.as_bytes()).is_err() {
                return;
            }
            peer.have_patience(PATIENCE);
        }
    }
}
