//! A stream to a peer that may be slow, silent or gone. Each read and write ends within a time
//! limit, or when this side is called off.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why the other side of a socket says nothing.
pub enum Silence {
    /// The other side is gone.
    Gone,
    /// Nothing came in time.
    Late,
}

impl Silence {
    /// The silence that an error means; `None` if it is an error of the system.
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::NotFound
            | ErrorKind::UnexpectedEof => Some(Self::Gone),
            ErrorKind::TimedOut => Some(Self::Late),
            _ => None,
        }
    }
}

/// What poll reported about its descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// The first descriptor is ready.
    First,
    /// The second descriptor, which calls off, has ended.
    CalledOff,
    /// Neither was ready in time.
    Late,
}

/// Waits until `first` can be read (or written), or until `off` has ended.
pub fn wait(first: RawFd, writes: bool, off: Option<RawFd>, until: Instant) -> io::Result<Ready> {
    let events = if writes { libc::POLLOUT } else { libc::POLLIN };
    let mut polled = [
        libc::pollfd { fd: first, events, revents: 0 },
        libc::pollfd { fd: off.unwrap_or(-1), events: libc::POLLIN, revents: 0 },
    ];
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        // Round a part of a millisecond up, so that the last one is not spent spinning.
        let left = i32::try_from(left + 1).unwrap_or(i32::MAX);
        // SAFETY: the array has two elements and stays where it is; descriptors that are closed or
        // negative are reported or passed over.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), 2, left) };
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == ErrorKind::Interrupted && Instant::now() < until {
                continue;
            }
            return if error.kind() == ErrorKind::Interrupted {
                Ok(Ready::Late)
            } else {
                Err(error)
            };
        }
        return Ok(match polled {
            [_, off] if off.revents != 0 => Ready::CalledOff,
            [first, _] if first.revents != 0 => Ready::First,
            _ => Ready::Late,
        });
    }
}

/// A stream to a peer. All operations together must end within the time limit.
pub struct Peer<'a> {
    stream: UnixStream,
    off: Option<&'a UnixStream>,
    until: Instant,
}

impl<'a> Peer<'a> {
    /// Wraps `stream` with the time limit `patience`; the end of `off` calls every operation off.
    ///
    /// # Errors
    /// The system's errors.
    pub fn new(
        stream: UnixStream,
        off: Option<&'a UnixStream>,
        patience: Duration,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, off, until: Instant::now() + patience })
    }

    /// Starts the time limit anew.
    pub fn have_patience(&mut self, patience: Duration) {
        self.until = Instant::now() + patience;
    }

    fn wait(&self, writes: bool) -> io::Result<()> {
        match wait(self.stream.as_raw_fd(), writes, self.off.map(AsRawFd::as_raw_fd), self.until)? {
            Ready::First => Ok(()),
            Ready::CalledOff => Err(ErrorKind::ConnectionAborted.into()),
            Ready::Late => Err(ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Peer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(false)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(true)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_or_reads_nothing_is_given_up() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let mut peer = Peer::new(ours, None, Duration::from_millis(20)).expect("a peer");
        assert_eq!(peer.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
        peer.have_patience(Duration::from_millis(20));
        let written = peer.write_all(&vec![0; 1 << 24]);
        assert_eq!(written.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
    }

    #[test]
    fn it_can_be_called_off_and_sees_the_end() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (off, end) = UnixStream::pair().expect("a pair");
        let mut peer = Peer::new(ours, Some(&off), Duration::from_secs(60)).expect("a peer");
        drop(end);
        assert_eq!(
            peer.read(&mut [0]).map_err(|error| error.kind()),
            Err(ErrorKind::ConnectionAborted)
        );
        drop(theirs);
        assert_eq!(peer.read(&mut [0]).expect("the end"), 0);
    }
}
