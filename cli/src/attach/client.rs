//! The side that asks.

use super::answer::Answer;
use super::peer::{Peer, Silence};
use super::place;
use std::io::{self, Read, Write};
use std::time::Duration;

/// How long an answer may take; the process that answers may ask its guest, which has 4 s itself.
const PATIENCE: Duration = Duration::from_secs(6);

/// A connection to a process that can be watched.
pub struct Client {
    peer: Peer<'static>,
    next: u64,
}

/// Why a file was not read.
#[derive(Debug)]
pub enum ReadError {
    /// The other side refused, and says why.
    Refused(String),
    /// The other side is gone.
    Gone,
    /// The other side does not answer.
    Silent,
    /// An error of the system.
    Failed(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match Silence::of(&error) {
            Some(Silence::Gone) => Self::Gone,
            Some(Silence::Late) => Self::Silent,
            None => Self::Failed(error),
        }
    }
}

impl Client {
    /// Connects to process `pid`.
    ///
    /// # Errors
    /// Fails if nobody listens there.
    pub fn connect(pid: u32) -> Result<Self, ReadError> {
        Ok(Self { peer: Peer::new(place::connect(pid)?, None, PATIENCE)?, next: 1 })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&mut self, path: &str) -> Result<String, ReadError> {
        let number = self.next;
        self.next += 1;
        self.peer.have_patience(PATIENCE);
        self.peer.write_all(format!("{number} {path}\n").as_bytes())?;
        let mut answer = Answer::to(number);
        let mut buffer = [0; 4096];
        loop {
            let length = self.peer.read(&mut buffer)?;
            if length == 0 {
                return Err(ReadError::Gone);
            }
            if let Some(done) = answer.take(&buffer[..length]) {
                return done.map_err(ReadError::Refused);
            }
        }
    }
}
