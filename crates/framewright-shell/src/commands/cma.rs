//! `cma`: reserve areas, which can be allocated as one piece and are lent to movable pages
//! meanwhile.

use super::arguments::{self, Within};
use super::{grade, moving};
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::owned::Owned;
use crate::shell::Shell;
use crate::size::{Counted, Size};
use core::fmt;
use framewright::Platform;
use framewright::manager::{AreaError, AreaName, MOST_AREAS};
use framewright::units::{Order, PAGE_SIZE};

pub(super) fn cma<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match arguments {
        [] => list(shell, io),
        ["alloc", name, amount, options @ ..] => alloc(shell, (name, amount, options), io),
        ["alloc", ..] => Err(io.wrong(format_args!("which area, and how much? `cma` lists areas"))),
        ["create", name, range] => create(shell, name, range, io),
        ["create", ..] => {
            Err(io.wrong(format_args!("expected a name and SIZE@ADDRESS or FRAME..FRAME")))
        }
        [what, ..] => Err(io.wrong(format_args!("{what}: expected alloc, create or no argument"))),
    }
}

/// Lists all areas, and the results of requests for them.
fn list<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let moving = shell.manager.moving();
    let mut areas = (0..MOST_AREAS).filter_map(|number| moving.area(number)).peekable();
    if areas.peek().is_none() {
        writeln!(io.out, "there are no areas; `cma create` makes one")?;
    } else {
        let [name, from, to, size, pages] = ["area", "from", "to", "size", "pages"];
        write!(io.out, "{name:<16} {from:<16} {to:<16} {size:>10} {pages:>10}")?;
        for count in ["in use", "free", "success", "failed", "released"] {
            write!(io.out, " {count:>10}")?;
        }
        writeln!(io.out)?;
    }
    for (name, range, counts) in areas {
        writeln!(
            io.out,
            "{:<16} {:016x} {:016x} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            name.as_str(),
            range.start.address(),
            range.end.address(),
            Size::of_pages(counts.total_pages),
            counts.total_pages,
            counts.total_pages.saturating_sub(counts.available_pages),
            counts.available_pages,
            counts.success_pages,
            counts.fail_pages,
            counts.released_pages
        )?;
    }
    if let failed @ 1.. = moving.failed_area_bytes() {
        let failed = Size::of_pages(failed.div_ceil(PAGE_SIZE));
        writeln!(io.out, "{failed} requested on the command line could not be set aside")?;
    }
    Ok(())
}

/// Why an area cannot serve a request; uses the singular for one page.
struct Refused(AreaError);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AreaError::NoRun { pages } => {
                write!(f, "no run of {} could be vacated", Counted(pages, "page"))
            }
            error => error.fmt(f),
        }
    }
}

/// Allocates a run of an area under a handle; freeing the handle returns the run to the area.
fn alloc<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    (name, amount, options): (&str, &str, &[&str]),
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (options, within) = Within::split(shell, options, io)?;
    let platform = shell.manager.platform();
    let pages = match amount.split_once('=') {
        Some(("pages", pages)) => arguments::number("pages", pages, io)?,
        _ => arguments::size_pages(amount, io)?,
    };
    let align = match *options {
        [] => Order::PAGE,
        [option] if let Some(order) = option.strip_prefix("align=") => {
            arguments::order("align", order, io)?
        }
        [option, ..] => {
            return Err(io.wrong(format_args!(
                "{option}: only align=ORDER and then within MS may follow the size"
            )));
        }
    };
    let number = shell.manager.moving().area_named(name);
    let area = number.and_then(|number| u8::try_from(number).ok());
    let area =
        area.ok_or_else(|| io.fail(format_args!("there is no area {name}; `cma` lists areas")))?;
    moving::take(shell, io, |moving| {
        let range = moving.allocate_in_area(area.into(), pages, align, within.budget(platform));
        range.map(|range| Owned { range, area: Some(area) }).map_err(Refused)
    })
}

/// Makes an area of the blocks in a range; the area stays for ever.
fn create<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    name: &str,
    range: &str,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let known = AreaName::new(name).ok_or_else(|| {
        io.wrong(format_args!(
            "{name:?}: a name must be 1 to 16 printable characters without a slash"
        ))
    })?;
    let blocks = arguments::blocks(range, io)?;
    if !grade::is_there(shell, grade::bytes(blocks)) {
        return Err(io.fail(format_args!("no memory is online there; no area was made")));
    }
    let made = shell.manager.moving().create_area(known, blocks);
    made.map_err(|error| io.fail(format_args!("{error}; no area was made")))?;
    let pages = blocks.end.start().0 - blocks.start.start().0;
    let start = blocks.start.start().address();
    Ok(writeln!(io.out, "{name}: {} at {start:#x}", Size::of_pages(pages))?)
}
