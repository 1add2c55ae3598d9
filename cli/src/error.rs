//! How the program fails: one line that says what was wrong, and an exit status.

use crate::hosted;
use crate::terminal;
use std::io;
use std::process::ExitCode;
use std::sync::OnceLock;

/// The name of the program, with which its messages begin.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Why the program ends before its work is done.
#[derive(Debug)]
pub enum Error {
    /// The user asked for something impossible, or gave a bad file. Exit status 2.
    Usage(String),
    /// Something that should have worked did not. Exit status 1.
    Failed(String),
    /// A signal asked us to stop. Exit status 128 plus the signal's number, as in shells.
    Interrupted(i32),
    /// The reader of our output has closed it. Not an error.
    NobodyReads,
}

impl Error {
    /// Prints the error, unless it is no real one, and returns the exit status.
    pub fn tell(self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                complain(&message);
                ExitCode::from(2)
            }
            Self::Failed(message) => {
                complain(&message);
                ExitCode::FAILURE
            }
            Self::Interrupted(signal) => {
                complain("interrupted");
                ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
            Self::NobodyReads => ExitCode::SUCCESS,
        }
    }
}

/// Errors of writing to standard output.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::NobodyReads
        } else {
            Self::Failed(format!("cannot write: {error}"))
        }
    }
}

/// Errors of machines in this process.
impl From<hosted::Error> for Error {
    fn from(error: hosted::Error) -> Self {
        match error {
            hosted::Error::Usage(message) => Self::Usage(message),
            hosted::Error::Failed(message) => Self::Failed(message),
        }
    }
}

/// Tells the user something worth knowing that does not stop the program.
pub fn note(message: &str) {
    complain(&format!("note: {message}"));
}

fn complain(message: &str) {
    use io::Write;
    // If standard error is gone, there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{}: {message}", program());
}

/// The name of the program.
pub fn program() -> &'static str {
    PROGRAM.get_or_init(|| "framewright")
}

/// Sets the name of the program and its panic hook. A panic is a mistake of ours, so it is reported
/// in one line rather than with a trace that helps no user.
pub fn begin(program: &'static str) {
    PROGRAM.get_or_init(|| program);
    std::panic::set_hook(Box::new(|panic| {
        // Nothing is dropped on the way out, and another thread may have taken the terminal.
        terminal::put_back();
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        complain(&format!("internal error, please report it: {message}{place}"));
        std::process::exit(1);
    }));
}
