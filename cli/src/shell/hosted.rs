//! The shell over a machine in this process.
//!
//! Orders of memory: Relaxed: which CPUs stand is a hint; whatever they do is right.

use crate::args::Target;
use crate::attach::with_watchers;
use crate::error::{self, Error};
use crate::grid::{counted, size};
use crate::hosted::{Lines, Quiet, Session, with_background, with_reports};
use crate::interrupt;
use crate::output::{Errors, Output};
use crate::snapshot;
use crate::target::{self, Deadline};
use crate::terminal::Terminal;
use framewright::procfs::{FileSystem, Source};
use framewright::units::{PAGE_SIZE, PhysRange};
use framewright::{Manager, Parameters, Platform, Reclaim};
use framewright_hosted::{HostedHelpers, HostedPlatform};
use framewright_shell::{Editor, Event, Host, Run, Shell, SpareMemory};
use framewright_workload::Relay;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Groups of runs that the shell can hold.
const ROOM: usize = 1 << 16;
/// Threads that work at once, however many CPUs the machine has.
const MOST_THREADS: u32 = 64;
/// How long nobody looks whether a command is to end.
const GLANCE: Duration = Duration::from_millis(10);

/// CPUs are threads.
struct Threads<'a> {
    platform: &'static HostedPlatform,
    /// What bring-up logged.
    log: &'a [String],
    /// Somebody may interrupt a command and go on with another.
    is_interactive: bool,
    /// A bit for each CPU that stands.
    stopped: AtomicU64,
    /// Held by who works in the background.
    quiet: &'a Quiet,
    /// Of the manager of this shell.
    relay: &'static Relay,
    reclaim_relay: &'static Relay<dyn Reclaim>,
}

impl Threads<'_> {
    /// The first CPUs that take part.
    fn taking_part(&self, first: u32) -> impl Iterator<Item = u32> {
        let stopped = self.stopped.load(Ordering::Relaxed);
        let count = self.platform.cpus().min(MOST_THREADS);
        (first..count).filter(move |cpu| stopped >> cpu & 1 == 0)
    }
}

// SAFETY: the machine's memory is the platform's mapping, of which nobody but its manager knows
// (invariant 1).
unsafe impl SpareMemory for Threads<'_> {
    fn has(&self, range: PhysRange) -> bool {
        self.platform.is_memory(range)
    }
}

impl Host for Threads<'_> {
    fn pause(&self, nanoseconds: u64) {
        std::thread::sleep(Duration::from_nanos(nanoseconds).min(GLANCE));
    }

    fn is_interrupted(&self) -> bool {
        interrupt::has_come()
    }

    fn log(&self, out: &mut dyn Write) -> Result<bool, std::fmt::Error> {
        self.log.iter().try_for_each(|line| writeln!(out, "{line}")).map(|()| true)
    }

    fn begin_command(&self) {
        if self.is_interactive {
            interrupt::forget_keyboard();
        }
    }

    fn undisturbed(&self, work: &mut dyn FnMut()) {
        let _quiet = self.quiet.hold();
        work();
    }

    fn relay(&self) -> Option<&'static Relay> {
        Some(self.relay)
    }

    fn reclaim_relay(&self) -> Option<&'static Relay<dyn Reclaim>> {
        Some(self.reclaim_relay)
    }

    fn spare_memory(&self) -> Option<&dyn SpareMemory> {
        Some(self)
    }

    /// What a thread has begun it ends, past the CPU's cache.
    fn stop_cpu(&self, cpu: u32) -> bool {
        let bit = 1_u64.checked_shl(cpu).unwrap_or(0);
        self.stopped.fetch_or(bit, Ordering::Relaxed);
        true
    }

    fn start_cpu(&self, cpu: u32) -> bool {
        let bit = 1_u64.checked_shl(cpu).unwrap_or(0);
        self.stopped.fetch_and(!bit, Ordering::Relaxed);
        true
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        std::thread::scope(|scope| {
            for cpu in self.taking_part(1) {
                scope.spawn(move || {
                    let _cpu = self.platform.enter_cpu(cpu);
                    others(cpu);
                });
            }
            own();
        });
    }

    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        std::thread::scope(|scope| {
            for cpu in self.taking_part(0) {
                scope.spawn(move || {
                    // Where somebody else is the CPU this thread borrows numbers as it needs them.
                    let _cpu = self.platform.enter_cpu(cpu);
                    work(cpu);
                });
            }
        });
    }
}

/// Runs commands and gives the status of the last. What they allocated is given back, after
/// `memory` was filled with what memory is used for, if somebody wants to know.
///
/// # Errors
/// A signal that came meanwhile, or reports that the machine does not allow.
pub fn execute(
    (manager, log): (&Manager<HostedPlatform>, &[String]),
    target: &Target,
    commands: &str,
    memory: Option<&mut String>,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> Result<u8, Error> {
    interrupt::watch();
    let (status, read) = with_shell((manager, log), target, false, |shell| {
        let status = shell.run(commands, out, errors);
        let read = memory
            .map_or(Ok(()), |text| FileSystem::new(&[&manager.files()]).read(snapshot::FILE, text));
        shell.free_all();
        (status, read)
    })?;
    interrupt::check()?;
    read.map_err(|error| Error::Failed(format!("{}: {error}", snapshot::FILE)))?;
    Ok(status)
}

/// Takes commands from standard input, with line editing when that is a terminal.
///
/// # Errors
/// A machine that cannot be brought up, a signal, and output that nobody takes.
pub fn run(target: &Target) -> Result<u8, Error> {
    let deadline = Deadline::start(target.timeout);
    let machine = target::machine(target)?;
    let command_line = target::command_line(target);
    // Nobody sees the log unless it is asked for; what was wrong with the words must be seen.
    Parameters::parse(&command_line, &mut |problem| error::note(&problem.to_string()));
    let mut log = Lines::new();
    let session = Session::open(&machine, &command_line)?;
    let pass = session.with_accept_delay(target::accept_delay(target)).bring_up(&mut log)?;
    let log = log.into_lines();
    pass.verify()?;
    drop(deadline);
    interrupt::watch();
    let manager = pass.manager();
    let terminal = Terminal::open();
    let mut output = Output::new();
    if terminal.is_some() {
        let memory = size(manager.totals().managed_pages * PAGE_SIZE);
        let nodes = counted(manager.nodes().len() as u64, "node");
        let cpus = counted(u64::from(manager.platform().cpus()), "CPU");
        output.line(&format!(
            "Framewright: {memory}, {nodes}, {cpus}; `help` shows commands, `dmesg` the boot log"
        ))?;
    }
    with_shell((manager, &log), target, terminal.is_some(), |shell| {
        converse(shell, terminal.as_ref(), &mut output).map(|()| shell.status())
    })?
}

/// Has a shell used, which others may watch, while free memory is reported if `target` says so.
fn with_shell<T>(
    (manager, log): (&Manager<HostedPlatform>, &[String]),
    target: &Target,
    is_interactive: bool,
    used: impl FnOnce(&mut Shell<'_, HostedPlatform, Threads<'_>>) -> T,
) -> Result<T, Error> {
    let (stopped, quiet) = (AtomicU64::new(0), Quiet::default());
    let host = Threads {
        platform: manager.platform(),
        log,
        is_interactive,
        stopped,
        quiet: &quiet,
        // Managers may ask them for ever.
        relay: Box::leak(Box::default()),
        reclaim_relay: Box::leak(Box::default()),
    };
    let (ours, pools) = (manager.files(), manager.hugetlb().files(HostedHelpers::shared()));
    let pools = pools.table();
    let sources: [&dyn Source; 2] = [&ours, &pools];
    let files = FileSystem::new(&sources);
    let mut room = vec![Run::NOTHING; ROOM];
    // SAFETY: nothing in this process uses the machine's memory but what the commands say, and
    // there is no window (invariant 42).
    let mut shell = unsafe { Shell::new(manager, files, &host, &mut room) };
    with_watchers(&|path, out| read(files, path, out), || {
        let advice = target.reporting.map(Into::into);
        Ok(with_reports(manager, advice, &error::note, &quiet, || {
            with_background(manager, &quiet, || used(&mut shell))
        })?)
    })
}

/// Reads a file for somebody who watches.
fn read(files: FileSystem<'_>, path: &str, out: &mut dyn Write) -> Result<(), String> {
    files.read(path, out).map_err(|error| error.to_string())
}

/// Line after line, until there are no more.
fn converse(
    shell: &mut Shell<'_, HostedPlatform, Threads<'_>>,
    terminal: Option<&Terminal>,
    output: &mut Output,
) -> Result<(), Error> {
    let mut editor = if terminal.is_some() { Editor::terminal() } else { Editor::plain() };
    let unreadable =
        |error: &std::io::Error| Error::Failed(format!("standard input cannot be read: {error}"));
    let stdin =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| unreadable(&error))?;
    let mut stdin = BufReader::new(File::from(stdin));
    let mut byte = [0];
    let prompt = |editor: &Editor, output: &mut Output| {
        if let Some(terminal) = terminal {
            terminal.take_keys();
            editor.prompt(output);
        }
        output.settle()
    };
    prompt(&editor, output)?;
    loop {
        if stdin.buffer().is_empty() {
            interrupt::wait_for(stdin.get_ref())?;
        }
        let event = match stdin.read(&mut byte) {
            Ok(0) => editor.finish(),
            Ok(_) => editor.take(byte[0], output),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                interrupt::check()?;
                continue;
            }
            Err(error) => return Err(unreadable(&error)),
        };
        match event {
            Event::More => {
                if terminal.is_some() {
                    output.settle()?;
                }
                continue;
            }
            Event::Line => {
                if let Some(terminal) = terminal {
                    terminal.be_as_usual();
                }
                shell.run(editor.line(), output, &mut Errors);
            }
            Event::TooLong => shell.refuse_long_line(&mut Errors),
            Event::NotText => {
                shell.refuse("a line is text in UTF-8; this one was not run", &mut Errors)
            }
            Event::Interrupted => {}
            Event::End => break,
        }
        output.settle()?;
        if terminal.is_some() {
            interrupt::forget_keyboard();
        }
        interrupt::check()?;
        if shell.is_over() {
            break;
        }
        prompt(&editor, output)?;
    }
    output.settle()
}
