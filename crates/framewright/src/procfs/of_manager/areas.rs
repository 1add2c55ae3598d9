//! `/sys/kernel/mm/cma`: a folder for each reserve area (Linux: `mm/cma_sysfs.c`).

use super::super::FileError;
use super::super::path::{name_numbers, with_name};
use crate::manager::{AreaCounts, MOST_AREAS, Manager};
use crate::platform::Platform;
use core::fmt::Write;

/// The names of all areas.
pub(super) fn names<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    for (name, _, _) in (0..MOST_AREAS).filter_map(|number| manager.moving().area(number)) {
        if let Some(numbers) = name_numbers(name.as_str()) {
            visit(&numbers);
        }
    }
}

fn show<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
    of: fn(&AreaCounts) -> u64,
) -> Result<(), FileError> {
    let moving = manager.moving();
    let numbers = *numbers.first_chunk().ok_or(FileError::NotFound)?;
    let area = with_name(numbers, |name| moving.area_named(name)).and_then(|at| moving.area(at));
    let (_, _, counts) = area.ok_or(FileError::NotFound)?;
    Ok(writeln!(out, "{}", of(&counts))?)
}

macro_rules! counts {
    ($($name:ident = $field:ident;)+) => {$(
        pub(super) fn $name<P: Platform>(
            manager: &Manager<P>,
            numbers: &[u64],
            out: &mut dyn Write,
        ) -> Result<(), FileError> {
            show(manager, numbers, out, |counts| counts.$field)
        }
    )+};
}

counts! {
    alloc_pages_success = success_pages;
    alloc_pages_fail = fail_pages;
    release_pages_success = released_pages;
    total_pages = total_pages;
    available_pages = available_pages;
}
