//! `grade`: shows the grades of blocks, of all or of a range, and sets them.

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::Platform;
use framewright::manager::GradeError;
use framewright::units::{
    NodeId, PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PhysRange,
};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, Presence};

/// The number of blocks between two checks for an interrupt.
const CHECK_EVERY: u64 = 1024;
const BLOCK_BYTES: u64 = PAGES_PER_BLOCK * PAGE_SIZE;

pub(super) fn grade<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match arguments {
        [] => show(shell, PhysRange::new(0, PHYSICAL_ADDRESS_END), io),
        [range] => {
            let range = bytes(arguments::blocks(range, io)?);
            show(shell, range, io)
        }
        [range, grade] => {
            let range = arguments::blocks(range, io)?;
            let known = arguments::grade(grade).ok_or_else(|| {
                io.wrong(format_args!("{grade}: a grade must be any, movable or removable"))
            })?;
            set(shell, range, known, io)
        }
        [_, _, more, ..] => {
            Err(io.wrong(format_args!("{more}: only a grade may follow the range")))
        }
    }
}

pub(super) fn bytes(range: BlockRange) -> PhysRange {
    PhysRange::new(range.start.start().address(), range.end.start().address())
}

fn block_of(pfn: Pfn) -> PhysRange {
    PhysRange::new(pfn.address(), pfn.address() + BLOCK_BYTES)
}

/// Whether any of a range is online. Removed and offline memory looks to the manager like memory
/// that can never be moved.
pub(super) fn is_there<P: Platform, H: Host>(shell: &Shell<'_, P, H>, range: PhysRange) -> bool {
    let mut is_there = false;
    shell.manager.hotplug().for_each_run_in(range, &mut |_, presence, _| {
        is_there |= presence == Presence::Online;
    });
    is_there
}

fn set<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    range: BlockRange,
    grade: Grade,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    if !is_there(shell, bytes(range)) {
        return Err(io.fail(format_args!("no memory is online there; no grade was changed")));
    }
    let set = shell.manager.moving().set_grade(range, grade);
    set.map_err(|error| match error {
        GradeError::InUse(pfn) if !is_there(shell, block_of(pfn)) => {
            io.fail(format_args!("no memory is at pfn {pfn}; no grade was changed"))
        }
        _ => io.fail(format_args!("{error}; no grade was changed")),
    })?;
    let blocks = u64::from(range.blocks());
    writeln!(
        io.out,
        "{}, {}, at {:#x}: {}",
        Counted(blocks, "block"),
        Size::of_pages(blocks * PAGES_PER_BLOCK),
        range.start.start().address(),
        arguments::grade_name(grade)
    )?;
    Ok(())
}

/// Consecutive blocks of one grade and one node.
#[derive(Clone, Copy)]
struct Graded {
    range: PhysRange,
    node: NodeId,
    grade: Grade,
}

/// The lines so far, of which all but the last are written.
struct Lines<'a, 'io> {
    io: &'a mut Io<'io>,
    last: Option<Graded>,
    blocks: u64,
    has_head: bool,
    result: Result<(), Failed>,
}

impl Lines<'_, '_> {
    fn add(&mut self, next: Graded) {
        match &mut self.last {
            Some(last)
                if last.range.end == next.range.start
                    && (last.node, last.grade) == (next.node, next.grade) =>
            {
                last.range.end = next.range.end;
            }
            _ => {
                self.write();
                self.last = Some(next);
            }
        }
    }

    fn write(&mut self) {
        let Some(Graded { range, node, grade }) = self.last.take() else { return };
        if !core::mem::replace(&mut self.has_head, true) {
            let head =
                writeln!(self.io.out, "from             to                     size node grade");
            self.result = self.result.and(head.map_err(Failed::from));
        }
        let written = writeln!(
            self.io.out,
            "{:016x} {:016x} {:>10} {node:>4} {}",
            range.start,
            range.end,
            Size::of_pages(range.size() / PAGE_SIZE),
            arguments::grade_name(grade)
        );
        self.result = self.result.and(written.map_err(Failed::from));
    }
}

/// Shows the runs of blocks of one grade.
fn show<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    wanted: PhysRange,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let moving = shell.manager.moving();
    let mut lines = Lines { io, last: None, blocks: 0, has_head: false, result: Ok(()) };
    shell.manager.hotplug().for_each_run_in(wanted, &mut |range, presence, node| {
        if presence != Presence::Online {
            return;
        }
        let mut start = range.start;
        while start < range.end && lines.result.is_ok() {
            let block = PhysRange::new(start, (start + BLOCK_BYTES).min(range.end));
            start = block.end;
            lines.blocks += 1;
            if lines.blocks.is_multiple_of(CHECK_EVERY) && shell.host.is_interrupted() {
                lines.result = Err(lines.io.interrupted());
                return;
            }
            if let Some(grade) = moving.grade_of(Pfn::containing(block.start)) {
                lines.add(Graded { range: block, node, grade });
            }
        }
    });
    lines.result?;
    lines.write();
    if lines.blocks == 0 {
        return Err(lines.io.fail(format_args!("no memory is there")));
    }
    lines.result
}
