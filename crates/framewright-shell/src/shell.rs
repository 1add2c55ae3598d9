//! The interpreter: it splits text into commands and runs them.

use crate::commands;
use crate::held::Held;
use crate::host::{Host, MovableMemory};
use crate::io::{Failed, Io, Text};
use crate::words::{self, MOST_WORDS, Words};
use crate::{LONGEST_LINE, Run};
use core::fmt::Write;
use framewright::procfs::FileSystem;
use framewright::{AllocateError, Manager, Platform, Reclaim};
use framewright_workload::{CleanPages, HandleError, Handles, Opened, Placed};

/// The most bytes that a control file takes in one write, and that `>` buffers.
const MOST_REDIRECTED: usize = 4096;
/// The exit status for an unknown command.
const NOT_FOUND: u8 = 127;

/// A command that the shell's owner adds.
pub trait Command {
    /// The command's name.
    fn name(&self) -> &str;
    /// The command's arguments, as `help` shows them.
    fn usage(&self) -> &str;
    /// What the command does, in one line.
    fn about(&self) -> &str;
    /// Runs the command; `arguments` do not include its name.
    ///
    /// # Errors
    /// [`Failed`] with an exit status, after an error message through `io`.
    fn run(&self, arguments: &[&str], io: &mut Io<'_>) -> Result<(), Failed>;
}

/// See the [crate documentation](crate).
pub struct Shell<'a, P: Platform, H> {
    pub(crate) manager: &'a Manager<P>,
    pub(crate) files: FileSystem<'a>,
    pub(crate) host: &'a H,
    pub(crate) held: Held<'a>,
    /// The registration by which the manager moves movable memory on its own. Dropped before
    /// `handles`.
    registered: Option<Opened<'a, P>>,
    /// The movable memory, once there is some, if the host has no mapping.
    handles: Option<Placed<'a, P, Handles<'a, P>>>,
    /// The registration by which pages of `cache` are reclaimed. Dropped before `cache`.
    reclaims: Option<Opened<'a, P, dyn Reclaim>>,
    /// Clean pages, which are kept until their memory is needed.
    cache: Option<Placed<'a, P, CleanPages<'a, P>>>,
    /// The number of CPUs that use movable memory while it is moved.
    pub(crate) users: u32,
    pub(crate) others: &'a [&'a dyn Command],
    status: u8,
    pub(crate) is_over: bool,
}

impl<'a, P: Platform, H: Host> Shell<'a, P, H> {
    /// Makes a shell over `manager` and `files`, which usually include the manager's own files. The
    /// shell keeps a list of its allocations in `room`, one entry for each group of contiguous
    /// runs.
    ///
    /// # Safety
    /// The caller answers for what commands free by address (`free ADDRESS pages=N`): that memory
    /// belongs to the caller, and nobody uses it. Only commands of this shell use the host's
    /// window. If the host has a relay, the shell must be dropped in any case (no `mem::forget`).
    #[must_use]
    pub unsafe fn new(
        manager: &'a Manager<P>,
        files: FileSystem<'a>,
        host: &'a H,
        room: &'a mut [Run],
    ) -> Self {
        Self {
            manager,
            files,
            host,
            held: Held::new(room),
            registered: None,
            handles: None,
            reclaims: None,
            cache: None,
            users: 0,
            others: &[],
            status: 0,
            is_over: false,
        }
    }

    /// Adds commands. A built-in command with the same name takes precedence.
    #[must_use]
    pub fn with_commands(self, others: &'a [&'a dyn Command]) -> Self {
        Self { others, ..self }
    }

    /// Runs the commands of `text` until one is `exit`, and returns the status of the last. Their
    /// output goes to `out`, error messages to `errors`. An interrupt ends the running command and
    /// skips the rest.
    pub fn run(&mut self, text: &str, out: &mut dyn Write, errors: &mut dyn Write) -> u8 {
        let mut text = text;
        while !self.is_over {
            match words::next(&mut text, self.status) {
                Ok(Some(words)) => {
                    self.host.begin_command();
                    self.status = self.command(&words, out, errors);
                    if self.status == Failed::INTERRUPTED.0 && self.host.is_interrupted() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => self.refuse(error, errors),
            }
        }
        self.status
    }

    /// Reports that a line was not run. For callers that read lines.
    pub fn refuse(&mut self, why: impl core::fmt::Display, errors: &mut dyn Write) {
        self.status = Failed::USAGE.0;
        // An error message that cannot be written is lost.
        let _ = writeln!(errors, "framewright: {why}");
    }

    /// Reports that a line was longer than [`LONGEST_LINE`] and so was not run.
    pub fn refuse_long_line(&mut self, errors: &mut dyn Write) {
        self.refuse(
            format_args!("a line has at most {LONGEST_LINE} bytes; this one was not run"),
            errors,
        );
    }

    /// The status of the last command.
    #[must_use]
    pub const fn status(&self) -> u8 {
        self.status
    }

    /// Whether an `exit` command has run.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Frees everything that commands allocated. Pages that cannot be freed, because somebody else
    /// has freed them, are dropped from the list.
    pub fn free_all(&mut self) {
        self.close_movable();
        self.close_cache();
        while self.held.count(None).0 != 0 {
            let before = self.held.count(None);
            if self.held.free(self.manager, None).is_ok() || self.held.count(None) == before {
                break;
            }
        }
    }

    /// The movable memory, once there is some.
    pub(crate) fn movable(&self) -> Option<&dyn MovableMemory> {
        match self.host.mapping() {
            Some(mapping) => Some(mapping).filter(|mapping| mapping.is_open()),
            None => self.handles.as_deref().map(|handles| handles as &dyn MovableMemory),
        }
    }

    /// Makes the tables of movable memory, unless they exist, and registers their mover.
    ///
    /// # Errors
    /// [`HandleError::Memory`] if there is no memory for the tables.
    pub(crate) fn open_movable(&mut self, count: u32) -> Result<&dyn MovableMemory, HandleError> {
        let (manager, host) = (self.manager, self.host);
        let memory: &dyn MovableMemory = match (host.mapping(), &mut self.handles) {
            (Some(mapping), _) => {
                mapping.open()?;
                mapping
            }
            (None, Some(handles)) => &**handles,
            (None, empty) => {
                let handles = Placed::new(manager, Handles::new(manager, count)?);
                &**empty.insert(handles.map_err(HandleError::Memory)?)
            }
        };
        if let (None, Some(relay)) = (&self.registered, host.relay()) {
            // SAFETY: a mapping belongs to the host, which is borrowed for longer than the shell
            // lives; handles are in a frame of their own. Both are closed after the registration
            // that this returns is dropped, in `close_movable` or with the shell, which is dropped
            // as `new` demands.
            self.registered = unsafe { relay.open(manager, memory) };
        }
        Ok(memory)
    }

    /// Frees all movable memory.
    pub(crate) fn close_movable(&mut self) {
        // Unregister first, as the manager may be moving some of it at this moment.
        self.registered = None;
        self.handles = None;
        if let Some(mapping) = self.host.mapping() {
            mapping.close();
        }
    }

    /// The clean pages, and whether the manager can reclaim them.
    pub(crate) fn cache(&self) -> Option<(&CleanPages<'a, P>, bool)> {
        self.cache.as_deref().map(|cache| (cache, self.reclaims.is_some()))
    }

    /// Makes the list of clean pages, unless it exists, and registers its reclaim hook.
    ///
    /// # Errors
    /// Fails if there is no memory for the list.
    pub(crate) fn open_cache(&mut self) -> Result<&CleanPages<'a, P>, AllocateError> {
        let cache = match &mut self.cache {
            Some(cache) => &**cache,
            empty => &**empty.insert(Placed::new(self.manager, CleanPages::new(self.manager))?),
        };
        if let (None, Some(relay)) = (&self.reclaims, self.host.reclaim_relay()) {
            // SAFETY: the list is in a frame of its own, and is closed after the registration that
            // this returns is dropped, in `close_cache` or with the shell, which is dropped as
            // `new` demands.
            self.reclaims = unsafe { relay.open(self.manager, cache) };
        }
        Ok(cache)
    }

    /// Frees all clean pages.
    pub(crate) fn close_cache(&mut self) {
        // Unregister first, as the manager may be reclaiming some of them at this moment.
        self.reclaims = None;
        self.cache = None;
    }

    fn command(&mut self, words: &Words, out: &mut dyn Write, errors: &mut dyn Write) -> u8 {
        let mut room = [""; MOST_WORDS];
        let count = words.take(&mut room);
        let Some((&name, arguments)) = room.get(..count).and_then(|words| words.split_first())
        else {
            self.refuse("there is no command before `>`", errors);
            return Failed::USAGE.0;
        };
        let Some(target) = words.target() else {
            return status(self.dispatch(name, arguments, &mut Io { name, out, errors }));
        };
        // What a command did would be lost if nobody could read its output, so it does not run.
        if let Err(error) = self.files.check_writable(target) {
            return Io { name, out, errors }.fail(format_args!("{target}: {error}")).0;
        }
        let mut text = Text::<MOST_REDIRECTED>::new();
        let done = self.dispatch(name, arguments, &mut Io { name, out: &mut text, errors });
        if text.is_overflown() {
            let why =
                format_args!("{target}: a control file takes {MOST_REDIRECTED} bytes at most");
            return Io { name, out, errors }.fail(why).0;
        }
        if done.is_err() {
            return status(done);
        }
        match self.files.write(target, text.as_str()) {
            Ok(()) => 0,
            Err(error) => Io { name, out, errors }.fail(format_args!("{target}: {error}")).0,
        }
    }

    fn dispatch(&mut self, name: &str, arguments: &[&str], io: &mut Io<'_>) -> Result<(), Failed> {
        if let Some(found) = commands::find(name) {
            return commands::run(self, found, arguments, io);
        }
        if let Some(other) = self.others.iter().find(|other| other.name() == name) {
            return other.run(arguments, io);
        }
        io.name = "framewright";
        io.fail(format_args!("{name}: command not found; `help` lists all"));
        Err(Failed(NOT_FOUND))
    }

    /// Calls `count` while the host does nothing in the background
    /// ([`Host::undisturbed`]).
    pub(crate) fn undisturbed<R>(&self, mut count: impl FnMut() -> R) -> R {
        let mut result = None;
        self.host.undisturbed(&mut || result = Some(count()));
        // A host that did not call the closure does nothing in the background.
        result.unwrap_or_else(count)
    }

    /// Waits for this many seconds.
    ///
    /// # Errors
    /// Fails if the wait is interrupted or there is no clock.
    pub(crate) fn sleep(&self, seconds: u64, io: &mut Io<'_>) -> Result<(), Failed> {
        let clock = || self.manager.platform().now_ns();
        let no_clock = "this machine has no clock";
        let start = clock().ok_or_else(|| io.fail(format_args!("{no_clock}")))?;
        let end = start.saturating_add(seconds.saturating_mul(1_000_000_000));
        loop {
            if self.host.is_interrupted() {
                return Err(io.interrupted());
            }
            let now = clock().unwrap_or(end);
            if now >= end {
                return Ok(());
            }
            self.host.pause(end - now);
        }
    }
}

fn status(done: Result<(), Failed>) -> u8 {
    done.map_or_else(|failed| failed.0, |()| 0)
}
