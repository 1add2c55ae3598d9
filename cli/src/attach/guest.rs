//! The connection to a guest: its second serial line, whose other end is ours.

use super::answer::Answer;
use super::peer::Peer;
use crate::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the guest may take for a file. It does not look at the line while it boots, nor between
/// two checks of a long command.
const PATIENCE: Duration = Duration::from_secs(4);

/// The serial line.
pub struct GuestLine {
    ours: Mutex<Ours>,
    is_up: AtomicBool,
}

struct Ours {
    stream: UnixStream,
    next: u64,
}

impl GuestLine {
    /// Makes a line for a guest that is about to be started, and QEMU's end of it.
    ///
    /// # Errors
    /// Fails if the system has no descriptors left.
    pub fn new() -> Result<(Self, OwnedFd), Error> {
        let (ours, theirs) = UnixStream::pair()
            .map_err(|error| Error::Failed(format!("cannot open a line to the guest: {error}")))?;
        let ours = Mutex::new(Ours { stream: ours, next: 1 });
        Ok((Self { ours, is_up: AtomicBool::new(false) }, theirs.into()))
    }

    /// QEMU's arguments for its end. They must follow those of the first serial line.
    pub fn arguments(theirs: &OwnedFd) -> [OsString; 4] {
        let socket = format!("socket,id=watch,fd={}", theirs.as_raw_fd());
        ["-chardev", &socket, "-serial", "chardev:watch"].map(OsString::from)
    }

    /// Runs in the child before it executes QEMU: lets it keep its end. Makes one system call.
    ///
    /// # Errors
    /// The system's errors.
    pub fn inherit(theirs: RawFd) -> io::Result<()> {
        // SAFETY: sets the flags of a descriptor, no memory is touched.
        if unsafe { libc::fcntl(theirs, libc::F_SETFD, 0) } == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Notes that the guest's shell has begun: from now on it looks at its line.
    pub fn come_up(&self) {
        self.is_up.store(true, Ordering::Relaxed);
    }

    /// Reads a file of the guest into `out`.
    ///
    /// # Errors
    /// The guest's errors, or that it does not answer.
    pub fn read(&self, path: &str, out: &mut dyn std::fmt::Write) -> Result<(), String> {
        if !self.is_up.load(Ordering::Relaxed) {
            return Err("the guest is booting".into());
        }
        let text = self.ask(path).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => "the guest does not answer; it may be busy".to_owned(),
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                "the guest has ended".to_owned()
            }
            _ => format!("cannot query the guest: {error}"),
        })??;
        out.write_str(&text).map_err(|_| "the guest's answer could not be stored".to_owned())
    }

    fn ask(&self, path: &str) -> io::Result<Result<String, String>> {
        let mut ours = self.ours.lock().map_err(|_| io::Error::from(ErrorKind::Other))?;
        let number = ours.next;
        ours.next += 1;
        let mut peer = Peer::new(ours.stream.try_clone()?, None, PATIENCE)?;
        let mut request = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(request, "{number} {path}");
        peer.write_all(request.as_bytes())?;
        let mut answer = Answer::to(number);
        let mut buffer = [0; 4096];
        loop {
            match peer.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => {
                    if let Some(done) = answer.take(&buffer[..length]) {
                        return Ok(done);
                    }
                }
            }
        }
    }
}
