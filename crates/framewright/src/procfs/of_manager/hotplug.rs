//! `/sys/devices/system/memory` and `/sys/module/memory_hotplug`: memory blocks, and what happens
//! to memory that is added (Linux: `drivers/base/memory.c`, `mm/memory_hotplug.c`).
//!
//! A memory block exists only in these files: the manager itself knows units of 2 MiB. A block is
//! online if any part of it is, other than tables of its own window.

use super::super::text::{Shown, show};
use super::super::{FileError, parse_bool};
use crate::manager::{Budget, HotplugError, HotplugSettings, Manager, RangeError};
use crate::parameters::OnlineType;
use crate::platform::Platform;
use crate::units::{BLOCK_SIZE, NodeId, PhysRange};
use crate::zone::{Grade, Presence, ZoneKind};
use core::fmt::Write;

/// How long vacating a block may take; Linux would try for ever.
const OFFLINE_NS: u64 = 10_000_000_000;

/// Visits all memory blocks of which any part is present.
pub(super) fn blocks<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    let size = manager.hotplug().settings().block_bytes;
    let mut next = 0;
    manager.hotplug().for_each_run(&mut |range, presence, _| {
        if presence != Presence::Absent {
            let end = range.end.div_ceil(size);
            (next.max(range.start / size)..end).for_each(|block| visit(&[block]));
            next = next.max(end);
        }
    });
}

/// The addresses of the block that a path names.
fn block<P: Platform>(manager: &Manager<P>, numbers: &[u64]) -> Result<PhysRange, FileError> {
    let size = manager.hotplug().settings().block_bytes;
    let number = *numbers.first().ok_or(FileError::NotFound)?;
    let start = number.checked_mul(size).ok_or(FileError::NotFound)?;
    Ok(PhysRange::with_size(start, size))
}

/// What is in a block: the node and zone kind of its memory, whether any is online, and the grades
/// of what is. Tables of a window in the window itself do not count: they are in use as long as any
/// of its memory is there, and go with it, as those of Linux's `memmap_on_memory` do.
#[derive(Default)]
struct Content {
    online: bool,
    of: Option<(NodeId, ZoneKind)>,
    grades: [bool; 2],
    is_mixed: bool,
}

#[inline(never)]
fn content<P: Platform>(manager: &Manager<P>, range: PhysRange) -> Content {
    let mut content = Content::default();
    manager.hotplug().for_each_run_in(range, &mut |run, presence, node| {
        if presence == Presence::Absent {
            return;
        }
        let kind = ZoneKind::of(crate::units::Pfn::containing(run.start));
        content.is_mixed |= content.of.is_some_and(|other| other != (node, kind));
        content.of = Some((node, kind));
        if presence == Presence::Online {
            let tables = manager.hotplug().tables_at(run.start);
            let blocks = (run.start..run.end).step_by(to_usize(BLOCK_SIZE));
            for address in blocks.filter(|&address| !(tables.start..tables.end).contains(&address))
            {
                content.online = true;
                let grade = manager.moving().grade_of(crate::units::Pfn::containing(address));
                let movable = grade.is_some_and(|grade| grade != Grade::Any);
                content.grades[usize::from(movable)] = true;
            }
        }
    });
    content
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(super) fn state<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let range = block(manager, numbers)?;
    let going = manager.hotplug().going();
    if going.start < range.end && range.start < going.end {
        return show(out, &"going-offline");
    }
    let content = content(manager, range);
    show(out, &if content.online { "online" } else { "offline" })
}

pub(super) fn online<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let content = content(manager, block(manager, numbers)?);
    show(out, &u8::from(content.online))
}

pub(super) fn set_state<P: Platform>(manager: &Manager<P>, numbers: &[u64], text: &str) -> Shown {
    let kind = OnlineType::parse(text.trim()).ok_or(FileError::Invalid)?;
    if set(manager, numbers, kind)? { Ok(()) } else { Err(FileError::Invalid) }
}

pub(super) fn set_online<P: Platform>(manager: &Manager<P>, numbers: &[u64], text: &str) -> Shown {
    let is_on = parse_bool(text)?;
    set(manager, numbers, if is_on { OnlineType::Online } else { OnlineType::Offline }).map(drop)
}

/// Brings the parts of a block into the state `kind` that are not in it yet. Returns whether there
/// were any. (Reaching the present state again is an error for the file `state`, but not for
/// `online`: Linux, `drivers/base/memory.c`, `state_store`, and `drivers/base/core.c`,
/// `online_store`.)
fn set<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    kind: OnlineType,
) -> Result<bool, FileError> {
    let range = block(manager, numbers)?;
    let hotplug = manager.hotplug();
    if kind == OnlineType::Offline {
        return set_offline(manager, range);
    }
    let mut found = false;
    // One run at a time, because each changes the runs after it.
    let mut rest = range;
    while let Some((run, node)) = hotplug.first_run_in(rest, Presence::Offline) {
        found = true;
        let Some(grade) = hotplug.grade_for(run, node, kind) else { break };
        hotplug.online(run, grade).map_err(refused)?;
        rest.start = run.end;
        if rest.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Takes all online memory of a block out of use, or none. A hole in the block is an error (Linux:
/// `mm/memory_hotplug.c`, `offline_pages`).
fn set_offline<P: Platform>(manager: &Manager<P>, range: PhysRange) -> Result<bool, FileError> {
    // The tables of a window are always there.
    if !content(manager, range).online {
        return Ok(false);
    }
    let hotplug = manager.hotplug();
    let (mut online, mut bytes, mut present) = (None::<PhysRange>, 0, 0);
    hotplug.for_each_run_in(range, &mut |run, presence, _| {
        if presence == Presence::Online {
            online = Some(PhysRange::new(online.map_or(run.start, |all| all.start), run.end));
            bytes += run.size();
        }
        present += if presence == Presence::Absent { 0 } else { run.size() };
    });
    let Some(online) = online else { return Ok(false) };
    if present != range.size() || bytes != online.size() {
        return Err(FileError::Invalid);
    }
    let now = manager.platform().now_ns();
    let until = |now: u64| Budget::until(now.saturating_add(OFFLINE_NS).max(1));
    let removed = hotplug.offline(online, now.map_or(Budget::UNLIMITED, until));
    removed.map(|_| true).map_err(refused)
}

fn refused(error: HotplugError) -> FileError {
    match error {
        HotplugError::Range(RangeError::Vacate(_)) | HotplugError::Busy => FileError::Busy,
        HotplugError::Tables(_) | HotplugError::Veto(_) | HotplugError::Area(_) => FileError::Busy,
        HotplugError::NoRoomForTables { .. } => FileError::NoMemory,
        _ => FileError::Invalid,
    }
}

/// For an online block, its zone, or `none` if there are several. For an offline one, the zones
/// that it could join, the default first.
pub(super) fn valid_zones<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let range = block(manager, numbers)?;
    let content = content(manager, range);
    let kind = ZoneKind::of(crate::units::Pfn::containing(range.start)).name();
    if content.online {
        let one = !content.is_mixed && content.grades != [true, true];
        let name = if content.grades[1] { "Movable" } else { kind };
        return show(out, &if one { name } else { "none" });
    }
    let (node, _) = content.of.ok_or(FileError::NotFound)?;
    let default = manager.hotplug().grade_for(range, node, OnlineType::Online);
    let is_movable = default == Some(Grade::MovableOnly);
    let (first, other) = if is_movable { ("Movable", kind) } else { (kind, "Movable") };
    show(out, &format_args!("{first} {other}"))
}

/// Changes the settings.
pub(super) fn change<P: Platform>(
    manager: &Manager<P>,
    change: impl FnOnce(&mut HotplugSettings),
) -> Shown {
    manager.hotplug().change_settings(change);
    Ok(())
}
