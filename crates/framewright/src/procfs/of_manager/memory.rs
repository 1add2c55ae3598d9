//! `/sys/kernel/debug/framewright/memory`: what each part of memory is used for, as runs of 2 MiB
//! blocks. Linux has no such file.
//!
//! ```text
//! framewright memory 1 blocks 12288 cell 4     version, blocks in all zones and in a cell
//! zone 0 Normal present 5505024 managed 5504612 free 5470208       node, kind, pages
//! 0x100000 512 F18                             first frame, blocks, use of each of them
//! 0x140000 8 F9:2,S4:1,W9:1                    cells of several uses: how many blocks of each
//! grade movable 0x100000 512                   blocks with a grade: first frame, blocks
//! area 0x140000 4096 4096 reserved             areas: first frame, pages, available ones, name
//! moved 5120 2 8                               pages, those that could not be, blocks emptied
//! end
//! ```
//!
//! | use | blocks are |
//! |---|---|
//! | `F9` to `F18` | parts of free blocks of this order |
//! | `R9` to `R18` | parts of free blocks that were reported to the hypervisor |
//! | `W9` to `W18` | parts of blocks that are allocated whole |
//! | `P9` to `P18` | huge pages of a pool |
//! | `S0` to `S8` | split; the number is how many eighths of their pages are used, 0 to 8 |
//! | `X`, `O`, `U` | reserved, offline, not accepted |
//! | `I`, `D`, `L` | isolated, withheld until described, lent to the hypervisor for a report |
//! | `H`, `?` | a hole, unknown |
//!
//! If a cell has more than five uses, orders are put together: `F`, `R`, `W` and `P` without a
//! number stand for any order, and the number behind `S` is that of all split blocks of the cell
//! together.
//!
//! On machines of up to 8 GiB a cell is one block. On larger ones cells are large enough that there
//! are at most 4096, so that the text stays below some 100 KB. Neighbouring cells whose blocks all
//! have one and the same use are one line.
//!
//! The lines of a zone end with those of its blocks that have a grade, whatever their use:
//! `movable` (only movable requests may have them) and `removable` (lent to movable requests). The
//! lines of each grade ascend. Blocks that lie closer together than the size of a cell are one
//! line. If not all blocks of the line have the grade, a number at its end tells how many have:
//! `grade removable 0x140000 24 9`.
//!
//! After the last zone come the reserve areas, which consist of `removable` blocks. Pages of an
//! area are available unless the area has handed them out. The last line tells how many pages were
//! moved since bring-up, how many could not be, and how many blocks compaction emptied. It is
//! missing until something was tried.

use super::super::FileError;
use crate::manager::{MOST_AREAS, Manager, MovingEvents, ZoneView};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, Order};
use crate::zone::{BlockRun, BlockUse, Grade};
use core::fmt::{self, Write};

/// The most cells of all zones together. Each zone may add a part of one at its ends.
const MOST_CELLS: u64 = 4096;
/// The most uses that are named in a cell.
const MOST_NAMED: usize = 5;
/// How many orders blocks have.
const ORDERS: usize = 10;
/// How many eighths there are, from none to all.
const FILLS: usize = 9;
/// The letters of uses that have an order.
const ORDERED: [char; 4] = ['F', 'R', 'W', 'P'];
/// The letters of uses without one. Their places follow orders and eighths.
const OTHERS: [char; 8] = ['X', 'O', 'U', 'I', 'D', 'L', 'H', '?'];
const USES: usize = ORDERED.len() * ORDERS + FILLS + OTHERS.len();

/// The number of a cell's blocks by use.
type Counts = [u32; USES];

/// The place of a use in [`Counts`].
fn place(what: BlockUse) -> usize {
    let ordered = |letter: usize, order: Order| {
        letter * ORDERS + usize::from(order.get().saturating_sub(BLOCK_ORDER)).min(ORDERS - 1)
    };
    let other = |number: usize| ORDERED.len() * ORDERS + FILLS + number;
    match what {
        BlockUse::Free { order, is_reported: false } => ordered(0, order),
        BlockUse::Free { order, is_reported: true } => ordered(1, order),
        BlockUse::Allocated { order } => ordered(2, order),
        BlockUse::Pool { order } => ordered(3, order),
        BlockUse::Split { used_pages, managed_pages } => {
            ORDERED.len() * ORDERS + eighths(used_pages, managed_pages)
        }
        BlockUse::Reserved => other(0),
        BlockUse::Offline => other(1),
        BlockUse::Unaccepted => other(2),
        BlockUse::Isolated => other(3),
        BlockUse::Deferred => other(4),
        BlockUse::Reporting => other(5),
        BlockUse::Hole => other(6),
        BlockUse::Unknown => other(7),
    }
}

/// Zero only if nothing is used, eight only if all is.
fn eighths(used_pages: u64, managed_pages: u64) -> usize {
    match used_pages {
        0 => 0,
        used if used >= managed_pages => 8,
        used => usize::try_from(used * 8 / managed_pages).unwrap_or(0).clamp(1, 7),
    }
}

/// A use as it is written in the file.
struct Code(usize);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, order) = (self.0 / ORDERS, self.0 % ORDERS);
        if let Some(letter) = ORDERED.get(letter) {
            return write!(f, "{letter}{}", order + usize::from(BLOCK_ORDER));
        }
        let rest = self.0 - ORDERED.len() * ORDERS;
        match OTHERS.get(rest.wrapping_sub(FILLS)) {
            Some(letter) => f.write_char(*letter),
            None => write!(f, "S{rest}"),
        }
    }
}

/// Turns runs into lines.
struct Cells<'a> {
    out: &'a mut dyn Write,
    cell_blocks: u32,
    /// The first block of the cell that is being filled.
    start: u32,
    blocks: u32,
    counts: Counts,
    /// The line that is not written yet.
    line: Option<Line>,
    result: fmt::Result,
}

#[derive(Clone, Copy)]
struct Line {
    start: u32,
    blocks: u32,
    counts: Counts,
    /// The use of all blocks, if it is one.
    only: Option<usize>,
}

impl Cells<'_> {
    fn take(&mut self, run: BlockRun) {
        let BlockRun { start, mut blocks, what, .. } = run;
        let mut start = start.0;
        if start != self.start + self.blocks {
            self.end_cell();
        }
        while blocks != 0 {
            if self.blocks == 0 {
                self.start = start;
            }
            let room = self.cell_blocks - start % self.cell_blocks;
            let part = blocks.min(room);
            self.counts[place(what)] += part;
            self.blocks += part;
            start += part;
            blocks -= part;
            if part == room {
                self.end_cell();
            }
        }
    }

    fn end_cell(&mut self) {
        if self.blocks == 0 {
            return;
        }
        let mut uses = self.counts.iter().enumerate().filter(|(_, count)| **count != 0);
        let only = uses.next().map(|(place, _)| place).filter(|_| uses.next().is_none());
        let cell = Line { start: self.start, blocks: self.blocks, counts: self.counts, only };
        match &mut self.line {
            Some(line)
                if line.start + line.blocks == cell.start
                    && if only.is_some() {
                        line.only == only
                    } else {
                        line.counts == cell.counts
                    } =>
            {
                line.blocks += cell.blocks;
            }
            _ => {
                self.write_line();
                self.line = Some(cell);
            }
        }
        self.counts = [0; USES];
        self.blocks = 0;
    }

    fn write_line(&mut self) {
        if let (Some(line), Ok(())) = (self.line.take(), self.result) {
            self.result = line.write(self.out);
        }
    }

    fn finish(mut self) -> fmt::Result {
        self.end_cell();
        self.write_line();
        self.result
    }
}

impl Line {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let first = u64::from(self.start) << BLOCK_ORDER;
        write!(out, "{first:#x} {} ", self.blocks)?;
        if let Some(only) = self.only {
            return writeln!(out, "{}", Code(only));
        }
        let mut separator = "";
        let named = self.counts.iter().filter(|count| **count != 0).count() <= MOST_NAMED;
        for (place, &count) in self.counts.iter().enumerate() {
            if count != 0 && (named || place >= ORDERED.len() * ORDERS + FILLS) {
                write!(out, "{separator}{}:{count}", Code(place))?;
                separator = ",";
            }
        }
        if !named {
            self.write_together(separator, out)?;
        }
        writeln!(out)
    }

    /// Writes the orders of a letter as one, and the eighths of split blocks as their mean.
    fn write_together(&self, separator: &str, out: &mut dyn Write) -> fmt::Result {
        let mut separator = separator;
        let (ordered, rest) = self.counts.split_at(ORDERED.len() * ORDERS);
        for (letter, counts) in ORDERED.iter().zip(ordered.chunks(ORDERS)) {
            let count: u32 = counts.iter().sum();
            if count != 0 {
                write!(out, "{separator}{letter}:{count}")?;
                separator = ",";
            }
        }
        let fills = &rest[..FILLS];
        let blocks: u64 = fills.iter().map(|&count| u64::from(count)).sum();
        if blocks != 0 {
            let used: u64 =
                fills.iter().zip(0..).map(|(&count, eighths)| u64::from(count) * eighths).sum();
            write!(out, "{separator}S{}:{blocks}", eighths(used, 8 * blocks))?;
        }
        Ok(())
    }
}

/// Blocks of one grade that lie closer together than a cell has blocks.
struct Stretch {
    name: &'static str,
    start: u32,
    end: u32,
    /// How many of its blocks have the grade.
    graded: u32,
}

impl Stretch {
    const fn new(name: &'static str) -> Self {
        Self { name, start: 0, end: 0, graded: 0 }
    }

    /// Adds a run of the grade, which lies behind all before it.
    fn take(&mut self, run: BlockRun, cell_blocks: u32, out: &mut dyn Write) -> fmt::Result {
        let start = run.start.0;
        if self.graded != 0 && start.saturating_sub(self.end) >= cell_blocks {
            self.write(out)?;
        }
        if self.graded == 0 {
            self.start = start;
        }
        self.end = start + run.blocks;
        self.graded += run.blocks;
        Ok(())
    }

    /// Writes the line of the stretch, if it has blocks, and begins anew.
    fn write(&mut self, out: &mut dyn Write) -> fmt::Result {
        let blocks = self.end.saturating_sub(self.start);
        let graded = core::mem::take(&mut self.graded);
        if graded == 0 {
            return Ok(());
        }
        write!(out, "grade {} {:#x} {blocks}", self.name, u64::from(self.start) << BLOCK_ORDER)?;
        if graded != blocks {
            write!(out, " {graded}")?;
        }
        writeln!(out)
    }
}

/// Writes the lines of a zone's grades, in a second pass over its blocks.
fn grades<P: Platform>(
    zone: &ZoneView<'_, P>,
    cell_blocks: u32,
    out: &mut dyn Write,
) -> fmt::Result {
    let has = |grade| zone.graded_memory(grade).present_pages != 0;
    if !has(Grade::MovableOnly) && !has(Grade::Removable) {
        return Ok(());
    }
    let [mut movable, mut removable] = ["movable", "removable"].map(Stretch::new);
    let mut result = Ok(());
    zone.for_each_block_run(&mut |run| {
        let stretch = match run.grade {
            Grade::Any => return,
            Grade::MovableOnly => &mut movable,
            Grade::Removable => &mut removable,
        };
        if result.is_ok() {
            result = stretch.take(run, cell_blocks, out);
        }
    });
    result?;
    movable.write(out)?;
    removable.write(out)
}

/// The text of the file.
pub(super) fn memory<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let segments = manager.views().flat_map(|zone| zone.segments());
    let blocks: u64 = segments.map(|segment| u64::from(segment.blocks)).sum();
    let cell_blocks =
        u32::try_from(blocks.div_ceil(MOST_CELLS).next_power_of_two()).unwrap_or(1 << 31);
    writeln!(out, "framewright memory 1 blocks {blocks} cell {cell_blocks}")?;
    for zone in manager.views() {
        let (id, free) = (zone.id(), zone.free_pages());
        let (present, managed) = (zone.present_pages(), zone.managed_pages());
        writeln!(
            out,
            "zone {} {} present {present} managed {managed} free {free}",
            id.node, id.kind
        )?;
        let mut cells = Cells {
            out,
            cell_blocks,
            start: 0,
            blocks: 0,
            counts: [0; USES],
            line: None,
            result: Ok(()),
        };
        zone.for_each_block_run(&mut |run| cells.take(run));
        cells.finish()?;
        grades(&zone, cell_blocks, out)?;
    }
    for (name, pages, counts) in (0..MOST_AREAS).filter_map(|number| manager.moving().area(number))
    {
        let (start, all, available) = (pages.start.0, pages.pages(), counts.available_pages);
        writeln!(out, "area {start:#x} {all} {available} {}", name.as_str())?;
    }
    let MovingEvents { moved_pages, failed_pages, compacted_blocks, .. } =
        manager.moving().events();
    if moved_pages | failed_pages | compacted_blocks != 0 {
        writeln!(out, "moved {moved_pages} {failed_pages} {compacted_blocks}")?;
    }
    Ok(writeln!(out, "end")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmemmap_space::BlockNumber;
    use std::string::{String, ToString};

    const fn run(start: u32, blocks: u32, what: BlockUse, grade: Grade) -> BlockRun {
        BlockRun { start: BlockNumber(start), blocks, what, grade }
    }

    fn text(cell_blocks: u32, runs: &[(u32, u32, BlockUse)]) -> String {
        let mut text = String::new();
        let out = &mut text;
        let mut cells = Cells {
            out,
            cell_blocks,
            start: 0,
            blocks: 0,
            counts: [0; USES],
            line: None,
            result: Ok(()),
        };
        for &(start, blocks, what) in runs {
            cells.take(run(start, blocks, what, Grade::Any));
        }
        assert_eq!(cells.finish(), Ok(()));
        text
    }

    const FREE: BlockUse = BlockUse::Free { order: Order::BLOCK, is_reported: false };
    const LARGE: BlockUse = BlockUse::Free { order: Order::MAX, is_reported: true };

    #[test]
    fn every_use_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            (0..USES).map(|place| Code(place).to_string()).collect();
        assert_eq!(names.len(), USES);
        for (what, name) in [
            (FREE, "F9"),
            (LARGE, "R18"),
            (BlockUse::Allocated { order: Order::BLOCK }, "W9"),
            (BlockUse::Pool { order: Order::MAX }, "P18"),
            (BlockUse::Split { used_pages: 0, managed_pages: 512 }, "S0"),
            (BlockUse::Split { used_pages: 1, managed_pages: 512 }, "S1"),
            (BlockUse::Split { used_pages: 511, managed_pages: 512 }, "S7"),
            (BlockUse::Split { used_pages: 10, managed_pages: 10 }, "S8"),
            (BlockUse::Reserved, "X"),
            (BlockUse::Hole, "H"),
            (BlockUse::Unknown, "?"),
        ] {
            assert_eq!(Code(place(what)).to_string(), name);
        }
    }

    #[test]
    fn equal_neighbours_are_one_line() {
        assert_eq!(
            text(1, &[(0, 3, FREE), (3, 1, FREE), (4, 2, LARGE)]),
            "0x0 4 F9\n0x800 2 R18\n"
        );
        assert_eq!(text(4, &[(2, 2, FREE), (4, 3, FREE), (7, 9, FREE)]), "0x400 14 F9\n");
        // Not if something lies between them.
        assert_eq!(text(1, &[(0, 1, FREE), (2, 1, FREE)]), "0x0 1 F9\n0x400 1 F9\n");
    }

    #[test]
    fn a_cell_says_how_many_of_each() {
        let mixed = [
            (0, 3, FREE),
            (3, 1, LARGE),
            (4, 1, LARGE),
            (5, 3, FREE),
            (8, 1, FREE),
            (10, 1, LARGE),
        ];
        // A gap ends a cell.
        assert_eq!(text(4, &mixed), "0x0 8 F9:3,R18:1\n0x1000 1 F9\n0x1400 1 R18\n");
    }

    #[test]
    fn many_uses_of_a_cell_lose_their_orders() {
        let split = |eighths: u8| BlockUse::Split {
            used_pages: 64 * u64::from(eighths),
            managed_pages: 512,
        };
        let free = |order: u8| BlockUse::Free {
            order: Order::new(order).expect("an order"),
            is_reported: false,
        };
        let runs = [
            (0, 6, free(9)),
            (6, 3, free(10)),
            (9, 2, LARGE),
            (11, 1, split(1)),
            (12, 3, split(4)),
        ];
        assert_eq!(text(16, &runs), "0x0 15 F9:6,F10:3,R18:2,S1:1,S4:3\n");
        let more = [runs.as_slice(), &[(15, 1, BlockUse::Hole)]].concat();
        assert_eq!(text(16, &more), "0x0 16 H:1,F:9,R:2,S3:4\n");
    }

    #[test]
    fn a_stretch_ends_where_a_cell_is_between() {
        let stretches = |cell_blocks: u32, runs: &[(u32, u32)]| {
            let mut text = String::new();
            let mut stretch = Stretch::new("movable");
            for &(start, blocks) in runs {
                let run = run(start, blocks, FREE, Grade::MovableOnly);
                assert_eq!(stretch.take(run, cell_blocks, &mut text), Ok(()));
            }
            assert_eq!(stretch.write(&mut text), Ok(()));
            text
        };
        assert_eq!(stretches(1, &[]), "");
        assert_eq!(stretches(1, &[(0, 3), (3, 1)]), "grade movable 0x0 4\n");
        assert_eq!(stretches(1, &[(0, 3), (4, 1)]), "grade movable 0x0 3\ngrade movable 0x800 1\n");
        let apart = [(8, 3), (14, 1), (19, 2)];
        let expected = "grade movable 0x1000 7 4\ngrade movable 0x2600 2\n";
        assert_eq!(stretches(4, &apart), expected);
    }
}
