//! `vacate`, `contig` and `compact`, which move memory: through the mover of
//! [`movable`](super::movable) if it has memory, else through the machine's own mover.

use super::arguments::{self, Within};
use super::users::while_used;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::owned::{Owned, give_back};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use core::fmt;
use framewright::Platform;
use framewright::manager::{
    Budget, CompactError, Compacted, ContiguousError, ContiguousRequest, Moving, Obstacle,
    VacateError, Vacated,
};
use framewright::memblock::NodeChoice;
use framewright::units::NodeId;

/// The most obstacles that are named.
pub(super) const MOST_NAMED: u64 = 16;
/// How long `compact` works between two checks for an interrupt.
const PART_NS: u64 = 100_000_000;

/// The manager's interface for moving, with the shell's movable memory as the mover if there is
/// some.
pub(super) fn moving<'s, P: Platform, H: Host>(shell: &'s Shell<'_, P, H>) -> Moving<'s, P> {
    let moving = shell.manager.moving();
    shell.movable().map_or(moving, |memory| moving.by(memory))
}

/// How long something took; shows nothing without a clock.
struct Took(Option<u64>);

impl Took {
    fn begin<P: Platform>(platform: &P) -> Self {
        Self(platform.now_ns())
    }

    fn end<P: Platform>(self, platform: &P) -> Self {
        Self(self.0.and_then(|start| Some(platform.now_ns()?.saturating_sub(start))))
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |ns| write!(f, " in {} us", ns / 1000))
    }
}

/// What was moved: a number of pages in a number of runs.
struct Moved(Vacated);

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Vacated { moved_runs, moved_pages } = self.0;
        let (pages, runs) = (Counted(moved_pages, "page"), Counted(moved_runs, "run"));
        write!(f, "moved {pages} in {runs}")
    }
}

pub(super) fn vacate<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (arguments, within) = Within::split(shell, arguments, io)?;
    let [range] = arguments else {
        return Err(io.wrong(format_args!("which range? SIZE@ADDRESS or FRAME..FRAME [within MS]")));
    };
    let range = arguments::blocks(range, io)?;
    let platform = shell.manager.platform();
    let mut names = Names { named: 0, errors: io.errors, command: io.name };
    let ((vacated, took), used) = while_used(shell, || {
        let begun = Took::begin(platform);
        let budget = within.budget(platform);
        let name = &mut |found: Obstacle| names.tell(found);
        let vacated = moving(shell).vacate_naming(range, budget, name);
        (vacated, begun.end(platform))
    });
    names.end();
    let told = used.tell(io);
    let moved = vacated.map_err(|error| {
        let moved = match error {
            VacateError::Obstacles { moved, .. }
            | VacateError::OutOfTime { moved }
            | VacateError::InUse { moved, .. } => moved,
            VacateError::Isolate(_) => Vacated::default(),
        };
        io.fail(format_args!("{error}; {}{took}", Moved(moved)))
    })?;
    // All of the range is free and isolated: only bad memory can be in the way, or memory that has
    // come online in the range since.
    let claimed = shell.manager.isolation().claim(range).map_err(|error| {
        let _ = shell.manager.isolation().unisolate_rest(range);
        io.fail(format_args!("{error}; {}{took}", Moved(moved)))
    })?;
    keep(shell, claimed, moved.moved_pages, &took, io)?;
    told
}

/// Records an allocation under a new handle, and prints that.
fn keep<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    taken: impl Into<Owned>,
    moved_pages: u64,
    took: &Took,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (handle, taken) = (shell.held.open(), taken.into());
    if shell.held.add(handle, taken).is_err() {
        // It was just allocated, so freeing it cannot fail.
        let _ = give_back(shell.manager, taken);
        return Err(io.fail(format_args!("the shell has no room to record more")));
    }
    writeln!(
        io.out,
        "{handle}: {}, {}, at {:#x}, {} moved{took}",
        Counted(taken.range.pages(), "page"),
        Size::of_pages(taken.range.pages()),
        taken.range.start.address(),
        Counted(moved_pages, "page")
    )?;
    Ok(())
}

/// Names the first obstacles in error messages and counts the rest.
struct Names<'a> {
    named: u64,
    errors: &'a mut dyn fmt::Write,
    command: &'a str,
}

impl Names<'_> {
    fn tell(&mut self, found: Obstacle) {
        self.named += 1;
        if self.named <= MOST_NAMED {
            // An error message that cannot be written is lost.
            let _ = writeln!(self.errors, "{}: {found}", self.command);
        }
    }

    fn end(self) {
        if let Some(more @ 1..) = self.named.checked_sub(MOST_NAMED) {
            let _ = writeln!(self.errors, "{}: and {more} more", self.command);
        }
    }
}

pub(super) fn contig<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (arguments, within) = Within::split(shell, arguments, io)?;
    let platform = shell.manager.platform();
    let [size, options @ ..] = arguments else { return Err(io.wrong(format_args!("how much?"))) };
    if size.contains('@') || size.contains("..") {
        let range = arguments::range(size, io)?;
        if let Some(option) = options.first() {
            return Err(io.wrong(format_args!("{option}: only within MS may follow a place")));
        }
        return take(shell, io, |moving| moving.allocate_range(range, within.budget(platform)));
    }
    let mut request = ContiguousRequest::new(arguments::size_pages(size, io)?);
    for option in options {
        match option.split_once('=') {
            Some(("align", value)) => request.align = arguments::order("align", value, io)?,
            Some(("node", value)) => {
                request.node = NodeChoice::Exact(arguments::node(value, io)?);
            }
            Some(("zone", value)) => request.zone = arguments::zone(value, io)?,
            Some(("below", value)) => {
                request.max_address = arguments::number("below", value, io)?;
            }
            Some(("type", value)) => request.migrate_type = arguments::migrate_type(value, io)?,
            _ => {
                return Err(io.wrong(format_args!(
                    "{option}: expected align=ORDER, node=N, zone=NAME, below=ADDRESS, type=NAME, \
                     or within MS at the end"
                )));
            }
        }
    }
    take(shell, io, |moving| {
        moving.allocate_contiguous(&request, within.budget(platform)).map_err(Refused)
    })
}

/// Why there is no such run; uses the singular for one page.
struct Refused(ContiguousError);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ContiguousError::NoPlace { pages } => {
                let pages = Counted(pages, "page");
                write!(f, "no zone has a run of {pages} that can all be moved")
            }
            error => error.fmt(f),
        }
    }
}

/// Allocates a run, which may move what is in it, and records it under a handle.
pub(super) fn take<P: Platform, H: Host, R: Into<Owned>, E: fmt::Display>(
    shell: &mut Shell<'_, P, H>,
    io: &mut Io<'_>,
    mut take: impl FnMut(Moving<'_, P>) -> Result<R, E>,
) -> Result<(), Failed> {
    let platform = shell.manager.platform();
    // The call does not return the number of moved pages. Nothing else moves any meanwhile, so the
    // difference of the counter is that number.
    let moved_pages = || shell.manager.moving().events().moved_pages;
    let (taken, used, moved, took) = shell.undisturbed(|| {
        let before = moved_pages();
        let ((taken, took), used) = while_used(shell, || {
            let begun = Took::begin(platform);
            (take(moving(shell)), begun.end(platform))
        });
        (taken, used, moved_pages() - before, took)
    });
    let told = used.tell(io);
    match taken {
        Ok(taken) => keep(shell, taken, moved, &took, io).and(told),
        Err(error) => {
            let moved = Counted(moved, "page");
            Err(io.fail(format_args!("{error}; {moved} moved{took}")))
        }
    }
}

pub(super) fn compact<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (node, blocks) = match arguments {
        ["background", seconds] => {
            let seconds = arguments::number("SECONDS", seconds, io)?;
            return background(shell, seconds, io);
        }
        [] => (None, u64::MAX),
        [node] => (Some(arguments::node(node, io)?), u64::MAX),
        [node, blocks] => {
            (Some(arguments::node(node, io)?), arguments::number("BLOCKS", blocks, io)?)
        }
        _ => {
            return Err(io.wrong(format_args!("expected [NODE [BLOCKS]] or background SECONDS")));
        }
    };
    let platform = shell.manager.platform();
    // Do not count the time in which other CPUs begin and end their use of the memory.
    let ((compacted, took), used) = while_used(shell, || {
        let begun = Took::begin(platform);
        (compact_all(shell, node, blocks), begun.end(platform))
    });
    used.tell(io)?;
    let all = compacted.map_err(|error| match error {
        CompactError::NoMover => {
            io.fail(format_args!("{error}; `movable fill` makes one for this shell"))
        }
        error => io.fail(format_args!("{error}")),
    })?;
    writeln!(
        io.out,
        "{} made whole, {}, {} refused{took}",
        Counted(all.blocks, "block"),
        Moved(all.moved),
        Counted(all.refused_runs, "run")
    )?;
    if shell.host.is_interrupted() { Err(io.interrupted()) } else { Ok(()) }
}

/// Polls a compactor for some seconds; the compactor does what `compaction_proactiveness` demands.
fn background<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    seconds: u64,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (platform, moving) = (shell.manager.platform(), moving(shell));
    let Some(start) = platform.now_ns() else {
        return Err(io.fail(format_args!("this machine has no clock")));
    };
    let score = || {
        let nodes = shell.manager.nodes().iter().map(|node| moving.fragmentation_score(node.id));
        nodes.max().unwrap_or(0)
    };
    let (before, pieces) = (moving.events(), score());
    let end = start.saturating_add(seconds.saturating_mul(1_000_000_000));
    let mut compactor = moving.compactor();
    let mut due = start;
    let ((), used) = while_used(shell, || {
        while let Some(now) = platform.now_ns().filter(|&now| now < end) {
            if shell.host.is_interrupted() {
                break;
            }
            if due <= now {
                due = compactor.poll(now);
            }
            shell.host.pause(due.min(end).saturating_sub(now).min(PART_NS));
        }
    });
    used.tell(io)?;
    let after = moving.events();
    writeln!(
        io.out,
        "{} made whole, moved {}; {pieces} % of free memory was in pieces, {} % is",
        Counted(after.compacted_blocks - before.compacted_blocks, "block"),
        Counted(after.moved_pages - before.moved_pages, "page"),
        score()
    )?;
    if shell.host.is_interrupted() { Err(io.interrupted()) } else { Ok(()) }
}

/// Compacts part by part, until all is done or the user interrupts it.
fn compact_all<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    node: Option<NodeId>,
    blocks: u64,
) -> Result<Compacted, CompactError> {
    let platform = shell.manager.platform();
    let mut all = Compacted::default();
    loop {
        let until = platform.now_ns().map_or(Budget::UNLIMITED, |now| Budget::until(now + PART_NS));
        let part = moving(shell).compact(node, blocks - all.blocks, until)?;
        all.blocks += part.blocks;
        all.moved.moved_runs += part.moved.moved_runs;
        all.moved.moved_pages += part.moved.moved_pages;
        // Each part meets the refused runs of earlier parts again, so do not add them up.
        all.refused_runs = part.refused_runs;
        let goes_on = part.is_cut_short && part.moved.moved_runs != 0;
        if !goes_on || all.blocks >= blocks || shell.host.is_interrupted() {
            return Ok(all);
        }
    }
}
