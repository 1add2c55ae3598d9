//! What physical memory is used for at one moment: read from the control file of either platform,
//! written to and read from JSON.
//!
//! A run has a first frame, a number of 2 MiB blocks, and the use of each block; for cells that
//! combine several uses, it has the number of blocks of each use instead. `cell_blocks` is a power
//! of two that keeps the number of cells near 4096; there are never more than 65 536. Letters: `F`
//! free, `R` free and reported, `W` allocated whole, `P` in a pool, each with the order; `S` split,
//! with the eighths of its pages that are used; `X` reserved, `O` offline, `U` not accepted, `I`
//! isolated, `D` deferred, `L` in flight for a report, `H` a hole.
//!
//! In addition, a zone says which of its blocks have a grade, and a snapshot says where reserve
//! areas lie and how many pages were moved; snapshots of older versions have none of these.

mod json;
mod text;

use framewright::manager::MOST_AREAS;
use framewright::units::{BLOCK_ORDER, MAX_NODES, MAX_ORDER};
use framewright::zone::ZoneKind;

/// The control file with the memory map.
pub const FILE: &str = "/sys/kernel/debug/framewright/memory";

/// A snapshot of all memory of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Describes the machine.
    pub machine: String,
    /// The commands that ran before; empty if there were none.
    pub commands: String,
    /// The number of blocks in a cell, which is the resolution of the snapshot.
    pub cell_blocks: u64,
    /// The zones, in ascending order of nodes.
    pub zones: Vec<Zone>,
    /// The reserve areas.
    pub areas: Vec<Area>,
    /// What was moved.
    pub moved: Moved,
}

/// A reserve area: memory that is lent to movable pages, as CMA does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// The area's first frame.
    pub first_pfn: u64,
    /// The number of frames in the area.
    pub pages: u64,
    /// The frames that the area has not yet given out.
    pub available_pages: u64,
    /// The area's name.
    pub name: String,
}

/// What was moved from the start up to the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The frames that were moved.
    pub pages: u64,
    /// The frames that could not be moved.
    pub failed_pages: u64,
    /// The blocks that compaction emptied.
    pub emptied_blocks: u64,
}

/// A zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// The zone's node.
    pub node: u64,
    /// The zone's kind, such as `Normal`.
    pub name: String,
    /// The frames that are memory.
    pub present_pages: u64,
    /// The frames that the allocator manages.
    pub managed_pages: u64,
    /// The free frames.
    pub free_pages: u64,
    /// The zone's blocks, in ascending order.
    pub runs: Vec<Run>,
    /// The zone's blocks that have a grade, ascending within each grade.
    pub grades: Vec<Graded>,
}

/// Which pages a block may hold, if not all pages are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Grade {
    /// Only movable pages.
    Movable,
    /// Movable pages on loan: reserve areas, and memory that is to be removed.
    Removable,
}

impl Grade {
    /// All grades.
    pub const ALL: [Self; 2] = [Self::Movable, Self::Removable];

    /// The grade's name in the control file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Movable => "movable",
            Self::Removable => "removable",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grade| grade.name() == name)
    }
}

/// Blocks of one grade whose gaps are smaller than a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Graded {
    /// The grade of these blocks.
    pub grade: Grade,
    /// The first frame.
    pub first_pfn: u64,
    /// The number of blocks from the first to the last, gaps included.
    pub blocks: u64,
    /// The number of these blocks that have the grade.
    pub graded_blocks: u64,
}

/// Adjacent blocks, or cells of blocks, that have equal use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first frame.
    pub first_pfn: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The uses of each cell, each with its number of blocks in the cell. If all blocks of the run
    /// have one use, the number is that of the whole run.
    pub uses: Vec<(Use, u64)>,
}

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Use {
    /// Free, in a free block of this order if it is known.
    Free(Option<u8>),
    /// Free and reported to the host, in a free block of this order if it is known.
    Reported(Option<u8>),
    /// Allocated as a whole.
    Allocated(Option<u8>),
    /// A huge page of a pool.
    Pool(Option<u8>),
    /// Split into pages, of which this many eighths are used.
    Split(u8),
    /// Not given to the allocator.
    Reserved,
    /// Taken offline.
    Offline,
    /// Not yet accepted.
    Unaccepted,
    /// Isolated, because it is being taken offline.
    Isolated,
    /// Withheld until its page descriptors are initialised.
    Deferred,
    /// In flight for a report to the host at this moment.
    Lent,
    /// Not memory.
    Hole,
    /// A use that this program does not know.
    Unknown,
}

impl Use {
    /// Parses a use as the control file writes it.
    fn parse(text: &str) -> Option<Self> {
        let mut characters = text.chars();
        let letter = characters.next()?;
        let number = characters.as_str();
        let order = || match number {
            "" => Some(None),
            // The control file never writes a leading sign or zero.
            _ if !number.bytes().all(|byte| byte.is_ascii_digit()) || number.starts_with('0') => {
                None
            }
            _ => number
                .parse()
                .ok()
                .filter(|order| (BLOCK_ORDER..=MAX_ORDER).contains(order))
                .map(Some),
        };
        let plain = |what| number.is_empty().then_some(what);
        match letter {
            'F' => order().map(Self::Free),
            'R' => order().map(Self::Reported),
            'W' => order().map(Self::Allocated),
            'P' => order().map(Self::Pool),
            'S' => match number.as_bytes() {
                [eighths @ b'0'..=b'8'] => Some(Self::Split(eighths - b'0')),
                _ => None,
            },
            'X' => plain(Self::Reserved),
            'O' => plain(Self::Offline),
            'U' => plain(Self::Unaccepted),
            'I' => plain(Self::Isolated),
            'D' => plain(Self::Deferred),
            'L' => plain(Self::Lent),
            'H' => plain(Self::Hole),
            '?' => plain(Self::Unknown),
            _ => None,
        }
    }

    fn code(self) -> String {
        let ordered = |letter: char, order: Option<u8>| {
            order.map_or_else(|| letter.to_string(), |order| format!("{letter}{order}"))
        };
        match self {
            Self::Free(order) => ordered('F', order),
            Self::Reported(order) => ordered('R', order),
            Self::Allocated(order) => ordered('W', order),
            Self::Pool(order) => ordered('P', order),
            Self::Split(eighths) => format!("S{eighths}"),
            Self::Reserved => "X".into(),
            Self::Offline => "O".into(),
            Self::Unaccepted => "U".into(),
            Self::Isolated => "I".into(),
            Self::Deferred => "D".into(),
            Self::Lent => "L".into(),
            Self::Hole => "H".into(),
            Self::Unknown => "?".into(),
        }
    }
}

/// Parses `F9:2,S4:1` or `F18` for a run of `blocks`.
///
/// # Errors
/// Says what is wrong with the text.
fn parse_uses(text: &str, blocks: u64) -> Result<Vec<(Use, u64)>, String> {
    let unknown = |text: &str| format!("{text:?} is not a use of blocks");
    if !text.contains(':') {
        return Ok(vec![(Use::parse(text).ok_or_else(|| unknown(text))?, blocks)]);
    }
    let mut uses = Vec::new();
    let mut cell: u64 = 0;
    for part in text.split(',') {
        let (name, count) = part.split_once(':').ok_or_else(|| unknown(part))?;
        let count: u64 =
            count.parse().map_err(|_| format!("{count:?} is not a number of blocks"))?;
        cell = cell.checked_add(count).ok_or("there are more blocks than memory can have")?;
        if uses.len() == MOST_USES {
            return Err(format!("a cell has more than {MOST_USES} uses"));
        }
        uses.push((Use::parse(name).ok_or_else(|| unknown(name))?, count));
    }
    if cell == 0 || !blocks.is_multiple_of(cell) {
        return Err(format!("a run of {blocks} blocks is not in whole cells of {cell} blocks"));
    }
    Ok(uses)
}

fn shown_uses(uses: &[(Use, u64)]) -> String {
    match uses {
        [(only, _)] => only.code(),
        _ => uses
            .iter()
            .map(|(what, count)| format!("{}:{count}", what.code()))
            .collect::<Vec<_>>()
            .join(","),
    }
}

impl Run {
    /// The number of blocks in each of the run's cells, and the number of cells.
    pub fn cells(&self) -> (u64, u64) {
        let cell: u64 = self.uses.iter().map(|(_, count)| count).sum();
        (cell.max(1), self.blocks / cell.max(1))
    }
}

/// The end of all possible frames: addresses have 52 bits.
const END_PFN: u64 = 1 << 40;
/// The number of blocks up to that end.
const MOST_BLOCKS: u64 = END_PFN >> BLOCK_ORDER;
/// The most cells that a map can show. The library writes a sixteenth of them, and a few more at
/// the ends of zones.
const MOST_CELLS: u64 = 1 << 16;
/// The most zones that can exist.
const MOST_ZONES: usize = MAX_NODES * ZoneKind::COUNT;
/// The most uses of a cell, which all differ: more than there are letters with orders and eighths.
const MOST_USES: usize = 64;

impl Snapshot {
    /// Checks that runs ascend and lie where memory can lie, and that no zone has more pages than
    /// memory can have.
    ///
    /// # Errors
    /// Says which run or zone is wrong.
    fn check(&self) -> Result<(), String> {
        if !self.cell_blocks.is_power_of_two() {
            return Err(format!(
                "cells of {} blocks in cell_blocks: not a power of two",
                self.cell_blocks
            ));
        }
        if self.cell_blocks > MOST_BLOCKS {
            return Err(format!(
                "cells of {} blocks in cell_blocks: all memory has only {MOST_BLOCKS}",
                self.cell_blocks
            ));
        }
        if self.zones.is_empty() {
            return Err("there is no zone".into());
        }
        if self.zones.len() > MOST_ZONES {
            return Err(format!(
                "there are {} zones, more than the limit of {MOST_ZONES}",
                self.zones.len()
            ));
        }
        let mut node = 0;
        let mut cells = 0;
        for zone in &self.zones {
            let name = format!("node {} zone {}", zone.node, zone.name);
            if zone.node < node || zone.node >= MAX_NODES as u64 {
                return Err(format!("{name}: nodes must ascend from 0 to {}", MAX_NODES - 1));
            }
            node = zone.node;
            for pages in [zone.present_pages, zone.managed_pages, zone.free_pages] {
                if pages > END_PFN {
                    return Err(format!("{name}: {pages} pages, but all memory has {END_PFN}"));
                }
            }
            let mut end = 0;
            for (index, run) in zone.runs.iter().enumerate() {
                let place = || format!("{name}, run {index}");
                check_blocks(run.first_pfn, run.blocks, &mut end)
                    .map_err(|why| format!("{}: {why}", place()))?;
                cells += run.blocks.div_ceil(self.cell_blocks);
                if cells > MOST_CELLS {
                    return Err(format!(
                        "{}: with it there are {cells} cells of {} blocks, more than the \
                         {MOST_CELLS} that a map can show",
                        place(),
                        self.cell_blocks
                    ));
                }
            }
            zone.check_grades().map_err(|why| format!("{name}, {why}"))?;
        }
        self.check_areas()
    }

    fn check_areas(&self) -> Result<(), String> {
        if self.areas.len() > MOST_AREAS {
            return Err(format!(
                "there are {} areas, more than the limit of {MOST_AREAS}",
                self.areas.len()
            ));
        }
        for Area { first_pfn, pages, available_pages, name } in &self.areas {
            let end = first_pfn.checked_add(*pages).filter(|end| *end <= END_PFN);
            if end.is_none() || available_pages > pages {
                return Err(format!(
                    "area {name:?}: {pages} pages at {first_pfn:#x} with {available_pages} \
                     available are impossible"
                ));
            }
        }
        Ok(())
    }
}

impl Zone {
    /// Checks that the runs of each grade ascend, and that there are not more than a map can show.
    fn check_grades(&self) -> Result<(), String> {
        if self.grades.len() as u64 > 2 * MOST_CELLS {
            return Err(format!("it has {} runs of grades, too many", self.grades.len()));
        }
        for grade in Grade::ALL {
            let mut end = 0;
            let runs = self.grades.iter().filter(|run| run.grade == grade);
            for (index, run) in runs.enumerate() {
                let place = |why| format!("{} run {index}: {why}", grade.name());
                check_blocks(run.first_pfn, run.blocks, &mut end).map_err(place)?;
                if run.graded_blocks == 0 || run.graded_blocks > run.blocks {
                    let Graded { blocks, graded_blocks, .. } = run;
                    return Err(place(format!(
                        "{graded_blocks} of {blocks} blocks are impossible"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Checks that blocks lie where memory can lie and at or behind `end`, and moves `end` behind them.
fn check_blocks(first_pfn: u64, blocks: u64, end: &mut u64) -> Result<(), String> {
    if blocks == 0 || blocks > MOST_BLOCKS || first_pfn >= END_PFN {
        return Err(format!("{blocks} blocks at {first_pfn:#x} are impossible"));
    }
    if first_pfn < *end || !first_pfn.is_multiple_of(1 << BLOCK_ORDER) {
        return Err(format!("{first_pfn:#x} is misaligned or not behind the previous run"));
    }
    *end = first_pfn + (blocks << BLOCK_ORDER);
    if *end > END_PFN {
        return Err(format!("it ends at {end:#x}, but memory ends at {END_PFN:#x}"));
    }
    Ok(())
}
