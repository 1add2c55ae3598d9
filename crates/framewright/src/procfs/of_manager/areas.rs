//! `/sys/kernel/mm/cma`: a folder for each reserve area (Linux: `mm/cma_sysfs.c`).

use super::super::FileError;
use super::super::path::{name_numbers, with_name};
use super::super::text::{self, Shown};
use crate::manager::{AreaCounts, MOST_AREAS, Manager};
use crate::platform::Platform;
use core::fmt::Write;

/// Visits the names of all areas.
pub(super) fn names<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    for (name, _, _) in (0..MOST_AREAS).filter_map(|number| manager.moving().area(number)) {
        if let Some(numbers) = name_numbers(name.as_str()) {
            visit(&numbers);
        }
    }
}

/// Shows a counter of the area that a path names.
pub(super) fn show<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
    of: fn(&AreaCounts) -> u64,
) -> Shown {
    let moving = manager.moving();
    let numbers = *numbers.first_chunk().ok_or(FileError::NotFound)?;
    let area = with_name(numbers, |name| moving.area_named(name)).and_then(|at| moving.area(at));
    let (_, _, counts) = area.ok_or(FileError::NotFound)?;
    text::show(out, &of(&counts))
}
