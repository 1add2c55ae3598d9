//! One supervised run of QEMU, from its start to its end, whatever ends it.

use super::command::PROGRAM;
use super::protocol::Transcript;
use crate::attach::{self, GuestLine};
use crate::error::Error;
use crate::interrupt;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// How often a waiting run checks whether it has to stop.
const GLANCE: Duration = Duration::from_millis(20);

/// How long QEMU may take to print its version, unless the caller sets a limit.
pub const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// How many bytes of QEMU's own messages are kept, from their end.
const MOST_COMPLAINTS: usize = 1 << 16;
/// How many pieces of QEMU's output may wait to be read.
const MOST_WAITING: usize = 64;

/// How long a run may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit of the whole run.
    pub whole: Duration,
    /// The limit until the first line; silence for that long means that the machine does not run at
    /// all.
    pub first_line: Option<Duration>,
    /// Whether the guest's shell may go on for ever once it has begun.
    pub endless_shell: bool,
}

/// Watches a run.
pub trait Watch {
    /// Called when the guest has logged a line.
    fn line(&mut self, _line: &str) -> Result<(), Error> {
        Ok(())
    }

    /// Whether there is input for the guest's serial line.
    fn has_input(&self) -> bool {
        false
    }

    /// Whether other processes may read the guest's control files once it has a shell.
    fn is_watchable(&self) -> bool {
        false
    }

    /// Called when the guest's shell begins. `first_line` is as in [`Ended`]; `input` leads to the
    /// serial line.
    fn shell(
        &mut self,
        _transcript: &Transcript,
        _first_line: Option<Duration>,
        _input: Option<ChildStdin>,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Called again and again during the run, which ends once this fails.
    fn check(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Called when the shell has printed something.
    fn output(&mut self, _bytes: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// How a run ended.
pub struct Ended {
    /// What ended the run.
    pub how: End,
    /// What the guest said.
    pub transcript: Transcript,
    /// What QEMU itself complained about.
    pub complaints: String,
    /// The time from the start of the process to the first line.
    pub first_line: Option<Duration>,
}

/// What ended a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// QEMU ended by itself.
    Exit(ExitStatus),
    /// The run took too long and was stopped.
    TimeOut,
    /// No line came for too long, and the run was stopped.
    Silence,
    /// KVM gave up the machine, which QEMU then keeps paused for ever; the run was stopped.
    KvmFailed,
}

/// QEMU's version, such as `7.2.22`.
///
/// # Errors
/// Says what to install if there is no QEMU. Fails if QEMU does not answer within `limit`, or a
/// signal comes.
pub fn version(limit: Duration) -> Result<String, Error> {
    let start = Instant::now();
    let late = || {
        Error::Failed(format!("`{PROGRAM} --version` did not answer within {} s", limit.as_secs()))
    };
    let (mut process, events) = Process::start(&["--version".into()], false, None)?;
    let mut said = Vec::new();
    loop {
        interrupt::check()?;
        match events.recv_timeout(GLANCE) {
            // The version is in the first line.
            Ok(Event::Serial(bytes)) if said.len() < MOST_COMPLAINTS => said.extend(bytes),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if start.elapsed() >= limit {
            return Err(late());
        }
    }
    if process.wait(start, limit, &mut || Ok(()))? == End::TimeOut {
        return Err(late());
    }
    let text = String::from_utf8_lossy(&said);
    let mut words = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip_while(|word| *word != "version");
    Ok(words.nth(1).unwrap_or("unknown").to_owned())
}

/// The line, if there is one, in which QEMU says that KVM gave up the machine.
pub fn kvm_failure(complaints: &str) -> Option<&str> {
    let whole = complaints.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole
        .lines()
        .find(|line| line.contains("KVM internal error") || line.contains("kvm run failed"))
}

/// Runs QEMU; `watch` sees what the guest says as it arrives.
///
/// # Errors
/// Fails if QEMU cannot be started, `watch` fails, or a signal comes. QEMU is gone by then.
pub fn run(arguments: &[OsString], limits: Limits, watch: &mut dyn Watch) -> Result<Ended, Error> {
    if !watch.is_watchable() {
        return supervise(arguments, limits, watch, None);
    }
    let (line, theirs) = GuestLine::new()?;
    attach::with_watchers(&|path, out| line.read(path, out), || {
        supervise(arguments, limits, watch, Some((&line, theirs)))
    })
}

fn supervise(
    arguments: &[OsString],
    limits: Limits,
    watch: &mut dyn Watch,
    line: Option<(&GuestLine, OwnedFd)>,
) -> Result<Ended, Error> {
    let start = Instant::now();
    let (line, theirs) = line.unzip();
    let (mut process, events) = Process::start(arguments, watch.has_input(), theirs)?;
    let mut transcript = Transcript::default();
    let mut complaints = Vec::new();
    let mut first_line = None;
    let mut end = None;
    let mut has_shell = false;
    let mut tell = |lines: Vec<String>,
                    transcript: &mut Transcript,
                    process: &mut Process,
                    watch: &mut dyn Watch|
     -> Result<bool, Error> {
        if first_line.is_none() && (!transcript.log.is_empty() || transcript.report.is_some()) {
            first_line = Some(start.elapsed());
        }
        lines.iter().try_for_each(|line| watch.line(line))?;
        if transcript.has_shell && !has_shell {
            has_shell = true;
            if let Some(line) = line {
                line.come_up();
            }
            watch.shell(transcript, first_line, process.0.stdin.take())?;
        }
        let output = transcript.take_output();
        if !output.is_empty() {
            watch.output(&output)?;
        }
        Ok(first_line.is_some())
    };
    let mut heard = false;
    loop {
        interrupt::check()?;
        watch.check()?;
        match events.recv_timeout(GLANCE) {
            Ok(Event::Serial(bytes)) => {
                let lines = transcript.take(&bytes);
                heard = tell(lines, &mut transcript, &mut process, watch)?;
            }
            Ok(Event::Complaint(bytes)) => {
                complaints.extend(bytes);
                let more = complaints.len().saturating_sub(MOST_COMPLAINTS);
                complaints.drain(..more);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // QEMU has closed its outputs: it is ending or has ended.
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let is_endless = limits.endless_shell && transcript.has_shell;
        if start.elapsed() >= limits.whole && !is_endless {
            end = Some(End::TimeOut);
        } else if !heard && limits.first_line.is_some_and(|limit| start.elapsed() >= limit) {
            end = Some(End::Silence);
        } else if kvm_failure(&String::from_utf8_lossy(&complaints)).is_some() {
            end = Some(End::KvmFailed);
        }
        if end.is_some() {
            break;
        }
    }
    let end = match end {
        Some(end) => end,
        None => {
            let limit = if limits.endless_shell { Duration::MAX } else { limits.whole };
            process.wait(start, limit, &mut || watch.check())?
        }
    };
    let lines = transcript.finish();
    tell(lines, &mut transcript, &mut process, watch)?;
    drop(process);
    Ok(Ended {
        how: end,
        transcript,
        complaints: String::from_utf8_lossy(&complaints).into_owned(),
        first_line,
    })
}

enum Event {
    Serial(Vec<u8>),
    Complaint(Vec<u8>),
}

/// A running QEMU. Dropping it kills the process and waits for its end.
struct Process(Child);

impl Process {
    /// Starts QEMU with `line` as its second serial line.
    fn start(
        arguments: &[OsString],
        has_input: bool,
        line: Option<OwnedFd>,
    ) -> Result<(Self, Receiver<Event>), Error> {
        interrupt::watch();
        let parent = std::process::id();
        let mut command = Command::new(PROGRAM);
        // QEMU must not inherit our standard input, as it would put the terminal into raw mode.
        let stdin = if has_input { Stdio::piped() } else { Stdio::null() };
        command
            .args(arguments)
            .args(line.iter().flat_map(GuestLine::arguments))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let inherited = line.as_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: between fork and exec only system calls are made, no memory is allocated and no
        // lock is taken.
        unsafe {
            command.pre_exec(move || {
                inherited.map_or(Ok(()), GuestLine::inherit).and_then(|()| die_with(parent))
            })
        };
        let mut child = command.spawn().map_err(|error| cannot(&error))?;
        let (sender, receiver) = mpsc::sync_channel(MOST_WAITING);
        if let Some(serial) = child.stdout.take() {
            forward(serial, sender.clone(), Event::Serial);
        }
        if let Some(complaints) = child.stderr.take() {
            forward(complaints, sender, Event::Complaint);
        }
        Ok((Self(child), receiver))
    }

    /// Waits until QEMU, which has closed its outputs, is gone.
    fn wait(
        &mut self,
        start: Instant,
        limit: Duration,
        check: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<End, Error> {
        loop {
            interrupt::check()?;
            check()?;
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(End::Exit(status)),
                Ok(None) if start.elapsed() >= limit => return Ok(End::TimeOut),
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Err(error) => {
                    return Err(Error::Failed(format!("cannot wait for QEMU to end: {error}")));
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that QEMU has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs in the child before it executes QEMU: asks the kernel to kill the child when we die.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: prctl with these arguments touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // We may have died before the request took effect.
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

/// Sends what comes from `source` until it ends or the receiver is gone.
fn forward(
    mut source: impl Read + Send + 'static,
    sender: SyncSender<Event>,
    event: fn(Vec<u8>) -> Event,
) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender.send(event(buffer[..length].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
}

fn cannot(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        Error::Failed(format!(
            "{PROGRAM} is not installed: `apt-get install qemu-system-x86` on Debian and Ubuntu, \
             `dnf install qemu-system-x86-core` on Fedora, `pacman -S qemu-system-x86` on Arch"
        ))
    } else {
        Error::Failed(format!("{PROGRAM} cannot be started: {error}"))
    }
}
