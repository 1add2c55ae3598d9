//! A user at a terminal: runs a program on a pseudo-terminal of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long any step may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The user's side of the terminal, and the program. Dropping it kills the program.
pub struct Terminal {
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// The program.
    pub child: Child,
    seen: String,
}

#[allow(dead_code, reason = "every test file uses a part of it")]
impl Terminal {
    /// Runs the program on a new terminal.
    pub fn run(words: &[&str]) -> Self {
        Self::run_with(words, &[])
    }

    /// Does what [`run`](Self::run) does, with these variables in the program's environment.
    pub fn run_with(words: &[&str], environment: &[(&str, &str)]) -> Self {
        let (mut person, mut program) = (0, 0);
        // SAFETY: both places are valid for a descriptor; no name and no settings are passed.
        let opened = unsafe {
            libc::openpty(
                &raw mut person,
                &raw mut program,
                std::ptr::null_mut(),
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        assert_eq!(opened, 0, "a terminal");
        let [person, program] =
            // SAFETY: the call above opened both for us alone.
            [person, program].map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
        let mut command = Command::new(env!("CARGO_BIN_EXE_framewright"));
        command.args(words).env("TERM", "dumb").envs(environment.iter().copied());
        command
            .stdin(program.try_clone().expect("a descriptor"))
            .stdout(program.try_clone().expect("a descriptor"));
        command.stderr(program);
        let raw = person.as_raw_fd();
        take_as_own(&mut command, raw);
        let child = command.spawn().expect("the program starts");
        // The command holds the program's side of the terminal open, too.
        drop(command);
        let keys = File::from(person);
        let mut reader = keys.try_clone().expect("a descriptor");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            // Linux returns EIO once the other side is closed.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keys, screen, child, seen: String::new() }
    }

    /// Types these keys.
    pub fn send(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("the terminal takes keys");
    }

    /// Waits until `text` appears on the screen after the text that was last waited for.
    pub fn expect(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} does not come; there is {:?}", self.seen),
            }
        }
    }

    /// Waits until the program ends and returns its exit status.
    pub fn end(&mut self) -> Option<i32> {
        self.child.wait().expect("the program ends").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the terminal the controlling terminal of the program's own session, so that its keys
/// become signals for the program.
fn take_as_own(command: &mut Command, person: i32) {
    use std::os::unix::process::CommandExt;
    let prepare = move || {
        // SAFETY: the descriptor is open, and this process needs it no more.
        unsafe { libc::close(person) };
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // Whoever started these tests may ignore them.
            // SAFETY: the default is no code of ours, and no memory is involved.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: a system call without arguments.
        let has_session = unsafe { libc::setsid() } != -1;
        // SAFETY: standard input is the terminal.
        let has_terminal = has_session && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != -1;
        if has_terminal { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: `prepare` allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
}
