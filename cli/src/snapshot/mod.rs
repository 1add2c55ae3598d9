//! What physical memory is used for at one moment: read from the control file of either platform,
//! written to and read from JSON.
//!
//! A run is its first frame, its number of 2 MiB blocks, and the use of each, or, for cells of
//! several uses, how many blocks have each. `cell_blocks` is a power of two that keeps the number
//! of cells near 4096; there are never more than 65 536. Letters: `F` free, `R` free and reported,
//! `W` allocated whole, `P` in a pool, each with the order; `S` split, with the eighths of its
//! pages that are used; `X` reserved, `O` offline, `U` not accepted, `I` isolated, `D` deferred,
//! `L` in flight for a report, `H` a hole.
//!
//! Beside that, a zone says which of its blocks have a grade, and a snapshot where reserve areas
//! lie and what was moved; snapshots of older versions have none of these.

mod json;
mod text;

use framewright::manager::MOST_AREAS;
use framewright::units::{BLOCK_ORDER, MAX_NODES, MAX_ORDER};
use framewright::zone::ZoneKind;

/// The control file that says it.
pub const FILE: &str = "/sys/kernel/debug/framewright/memory";

/// All memory of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Where it was, in words.
    pub machine: String,
    /// What was done before, in words; empty when nothing.
    pub commands: String,
    /// Blocks in a cell: what lies closer together is not told apart.
    pub cell_blocks: u64,
    /// Zones, nodes ascending.
    pub zones: Vec<Zone>,
    /// Reserve areas.
    pub areas: Vec<Area>,
    /// What was moved.
    pub moved: Moved,
}

/// A reserve area: memory that is lent to what can be moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// First frame.
    pub first_pfn: u64,
    /// Frames of it.
    pub pages: u64,
    /// Of these, those that the area has not given to anybody.
    pub available_pages: u64,
    /// What it is called.
    pub name: String,
}

/// What was moved from the start up to the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Frames.
    pub pages: u64,
    /// Frames that were to be moved and were not.
    pub failed_pages: u64,
    /// Blocks that compaction emptied.
    pub emptied_blocks: u64,
}

/// A zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Its node.
    pub node: u64,
    /// Its kind, such as `Normal`.
    pub name: String,
    /// Frames that are memory.
    pub present_pages: u64,
    /// Frames that the allocator has.
    pub managed_pages: u64,
    /// Frames that are free.
    pub free_pages: u64,
    /// Its blocks, ascending.
    pub runs: Vec<Run>,
    /// Its blocks with a grade; those of one grade ascend.
    pub grades: Vec<Graded>,
}

/// Who may have blocks, where not everybody may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Grade {
    /// Only what can be moved.
    Movable,
    /// What can be moved, on loan: reserve areas, and memory that is to be removed.
    Removable,
}

impl Grade {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Movable, Self::Removable];

    /// As the control file calls it.
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

/// Blocks of one grade that lie closer together than a cell has blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Graded {
    /// Their grade.
    pub grade: Grade,
    /// First frame.
    pub first_pfn: u64,
    /// From the first to the last.
    pub blocks: u64,
    /// How many of them have the grade.
    pub graded_blocks: u64,
}

/// Neighbouring blocks, or cells of blocks, that are used alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// First frame.
    pub first_pfn: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The uses of each cell, with their number of blocks in it; one use of all blocks has the
    /// number of the run.
    pub uses: Vec<(Use, u64)>,
}

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Use {
    /// Free, in a block of this order where that is known.
    Free(Option<u8>),
    /// Free and reported to the host, in a block of this order where that is known.
    Reported(Option<u8>),
    /// Allocated whole.
    Allocated(Option<u8>),
    /// A huge page of a pool.
    Pool(Option<u8>),
    /// Divided into pages, of which so many eighths are used.
    Split(u8),
    /// Not given to the allocator.
    Reserved,
    /// Taken out of use.
    Offline,
    /// Not accepted.
    Unaccepted,
    /// Being taken out of use.
    Isolated,
    /// Withheld until it is described.
    Deferred,
    /// With the host at this moment.
    Lent,
    /// No memory.
    Hole,
    /// What the program does not know.
    Unknown,
}

impl Use {
    /// Reads a use as the control file writes it.
    fn parse(text: &str) -> Option<Self> {
        let mut characters = text.chars();
        let letter = characters.next()?;
        let number = characters.as_str();
        let order = || match number {
            "" => Some(None),
            // A leading sign or zero is nothing that is ever written.
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

/// Reads `F9:2,S4:1` or `F18` for a run of `blocks`.
///
/// # Errors
/// What is wrong with it.
fn parse_uses(text: &str, blocks: u64) -> Result<Vec<(Use, u64)>, String> {
    let unknown = |text: &str| format!("{text:?} is no use of blocks");
    if !text.contains(':') {
        return Ok(vec![(Use::parse(text).ok_or_else(|| unknown(text))?, blocks)]);
    }
    let mut uses = Vec::new();
    let mut cell: u64 = 0;
    for part in text.split(',') {
        let (name, count) = part.split_once(':').ok_or_else(|| unknown(part))?;
        let count: u64 = count.parse().map_err(|_| format!("{count:?} is no number of blocks"))?;
        cell = cell.checked_add(count).ok_or("there are more blocks than there can be")?;
        if uses.len() == MOST_USES {
            return Err(format!("a cell has more than {MOST_USES} uses"));
        }
        uses.push((Use::parse(name).ok_or_else(|| unknown(name))?, count));
    }
    if cell == 0 || !blocks.is_multiple_of(cell) {
        return Err(format!("cells of {cell} blocks do not make a run of {blocks}"));
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
    /// Blocks in each of its cells, and how many cells.
    pub fn cells(&self) -> (u64, u64) {
        let cell: u64 = self.uses.iter().map(|(_, count)| count).sum();
        (cell.max(1), self.blocks / cell.max(1))
    }
}

/// Frames behind all that can be: addresses have 52 bits.
const END_PFN: u64 = 1 << 40;
/// Blocks that they make.
const MOST_BLOCKS: u64 = END_PFN >> BLOCK_ORDER;
/// Cells that a map can show. The library makes a sixteenth of them, and some at the ends of zones.
const MOST_CELLS: u64 = 1 << 16;
/// Zones that there can be.
const MOST_ZONES: usize = MAX_NODES * ZoneKind::COUNT;
/// Uses of a cell, which are all different: more than there are letters with orders and eighths.
const MOST_USES: usize = 64;

impl Snapshot {
    /// Whether runs ascend and lie where memory can lie, and no zone has more pages than memory can
    /// have.
    ///
    /// # Errors
    /// Which run or zone does not.
    fn check(&self) -> Result<(), String> {
        if !self.cell_blocks.is_power_of_two() {
            return Err(format!(
                "cells of {} blocks in cell_blocks: not a power of two",
                self.cell_blocks
            ));
        }
        if self.cell_blocks > MOST_BLOCKS {
            return Err(format!(
                "cells of {} blocks in cell_blocks; all memory has {MOST_BLOCKS}",
                self.cell_blocks
            ));
        }
        if self.zones.is_empty() {
            return Err("there is no zone".into());
        }
        if self.zones.len() > MOST_ZONES {
            return Err(format!("there are {} zones; {MOST_ZONES} are the most", self.zones.len()));
        }
        let mut node = 0;
        let mut cells = 0;
        for zone in &self.zones {
            let name = format!("node {} zone {}", zone.node, zone.name);
            if zone.node < node || zone.node >= MAX_NODES as u64 {
                return Err(format!("{name}: nodes ascend, from 0 to {}", MAX_NODES - 1));
            }
            node = zone.node;
            for pages in [zone.present_pages, zone.managed_pages, zone.free_pages] {
                if pages > END_PFN {
                    return Err(format!("{name}: {pages} pages, and all memory has {END_PFN}"));
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
            return Err(format!("there are {} areas; {MOST_AREAS} are the most", self.areas.len()));
        }
        for Area { first_pfn, pages, available_pages, name } in &self.areas {
            let end = first_pfn.checked_add(*pages).filter(|end| *end <= END_PFN);
            if end.is_none() || available_pages > pages {
                return Err(format!(
                    "area {name:?}: {pages} pages at {first_pfn:#x} cannot be, or not \
                     {available_pages} available"
                ));
            }
        }
        Ok(())
    }
}

impl Zone {
    /// Whether those of each grade ascend, and are as many as a map can show.
    fn check_grades(&self) -> Result<(), String> {
        if self.grades.len() as u64 > 2 * MOST_CELLS {
            return Err(format!("it has {} runs of grades", self.grades.len()));
        }
        for grade in Grade::ALL {
            let mut end = 0;
            let runs = self.grades.iter().filter(|run| run.grade == grade);
            for (index, run) in runs.enumerate() {
                let place = |why| format!("{} run {index}: {why}", grade.name());
                check_blocks(run.first_pfn, run.blocks, &mut end).map_err(place)?;
                if run.graded_blocks == 0 || run.graded_blocks > run.blocks {
                    let Graded { blocks, graded_blocks, .. } = run;
                    return Err(place(format!("{graded_blocks} of {blocks} blocks cannot be")));
                }
            }
        }
        Ok(())
    }
}

/// Whether blocks lie where memory can lie, behind those that ended at `end`, which becomes theirs.
fn check_blocks(first_pfn: u64, blocks: u64, end: &mut u64) -> Result<(), String> {
    if blocks == 0 || blocks > MOST_BLOCKS || first_pfn >= END_PFN {
        return Err(format!("{blocks} blocks at {first_pfn:#x} cannot be"));
    }
    if first_pfn < *end || !first_pfn.is_multiple_of(1 << BLOCK_ORDER) {
        return Err(format!("{first_pfn:#x} is not behind the run before it"));
    }
    *end = first_pfn + (blocks << BLOCK_ORDER);
    if *end > END_PFN {
        return Err(format!("it ends at {end:#x}, and memory at {END_PFN:#x}"));
    }
    Ok(())
}
