//! `alloc`, `free` and `held`.

use super::{arguments, none};
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::owned::{Owned, give_back};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::manager::AreaError;
use framewright::memblock::NodeChoice;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::{AllocateError, Platform, Request, bootlog};

/// The number of runs between two checks for an interrupt.
const CHECK_EVERY: u64 = 1024;

/// What `alloc` has to allocate.
struct Wanted {
    request: Request,
    count: u64,
    at: Option<Pfn>,
    /// Whether only order, count and type were given: such runs come from the caches of CPUs.
    is_usual: bool,
    /// Whether something was given that `at=` does not take: where else, or what memory.
    excludes_at: bool,
}

impl Wanted {
    fn parse(arguments: &[&str], io: &mut Io<'_>) -> Result<Self, Failed> {
        let mut wanted = Self {
            request: Request::new(Order::PAGE),
            count: 1,
            at: None,
            is_usual: true,
            excludes_at: false,
        };
        let mut places = ["order", "count"].into_iter();
        for &argument in arguments {
            let (name, value) = match argument.split_once('=') {
                Some(pair) => pair,
                None if argument == "zeroed" => (argument, ""),
                None => match places.next() {
                    Some(name) => (name, argument),
                    None => {
                        return Err(
                            io.wrong(format_args!("{argument}: order and count are given already"))
                        );
                    }
                },
            };
            wanted.set(name, value, io)?;
        }
        Ok(wanted)
    }

    fn set(&mut self, name: &str, value: &str, io: &mut Io<'_>) -> Result<(), Failed> {
        let request = &mut self.request;
        match name {
            "order" => request.pages = arguments::order(name, value, io)?.pages(),
            "pages" => request.pages = arguments::number(name, value, io)?,
            "count" => self.count = arguments::number(name, value, io)?,
            "type" => request.migrate_type = arguments::migrate_type(value, io)?,
            "node" => request.node = NodeChoice::Exact(arguments::node(value, io)?),
            "zone" => request.zone = arguments::zone(value, io)?,
            "align" => request.align = arguments::order(name, value, io)?,
            "below" => request.max_address = arguments::number(name, value, io)?,
            "at" => self.at = Some(arguments::address(name, value, io)?),
            "zeroed" => request.zeroed = true,
            _ => {
                return Err(
                    io.wrong(format_args!("{name}= is not known; `help alloc` shows what is"))
                );
            }
        }
        self.is_usual &= matches!(name, "order" | "count" | "type");
        self.excludes_at |= matches!(name, "node" | "zone" | "align" | "below" | "zeroed");
        Ok(())
    }

    /// Allocates run number `index`.
    fn take<P: Platform, H: Host>(
        &self,
        shell: &Shell<'_, P, H>,
        order: Option<Order>,
        index: u64,
    ) -> Result<PfnRange, AllocateError> {
        let Request { pages, migrate_type, .. } = self.request;
        match (self.at, order) {
            (Some(at), Some(order)) => {
                let start = at.0.checked_add(index.saturating_mul(pages)).map(Pfn);
                shell.manager.allocate_at(start.unwrap_or(Pfn(u64::MAX)), order, migrate_type)
            }
            (None, Some(order)) if self.is_usual => {
                let start = shell.manager.allocate_order(order, migrate_type)?;
                Ok(PfnRange { start, end: start.add(pages) })
            }
            _ => shell.manager.allocate(&self.request),
        }
    }
}

pub(super) fn alloc<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let wanted = Wanted::parse(arguments, io)?;
    let pages = wanted.request.pages;
    let order = Order::for_pages(pages).filter(|order| order.pages() == pages);
    if wanted.count == 0 {
        return Err(io.wrong(format_args!("count must be at least 1")));
    }
    if wanted.at.is_some() && wanted.excludes_at {
        return Err(io.wrong(format_args!("at= takes only order, count and type")));
    }
    if wanted.at.is_some() && order.is_none() {
        return Err(io.wrong(format_args!("at= takes an order, not {pages} pages")));
    }
    let handle = shell.held.open();
    for index in 0..wanted.count {
        if index % CHECK_EVERY == CHECK_EVERY - 1 && shell.host.is_interrupted() {
            give_up(shell, handle);
            return Err(io.interrupted());
        }
        let taken = match wanted.take(shell, order, index) {
            Ok(taken) => taken,
            Err(error) => {
                // Explain first, before the other runs are freed.
                explain(shell, &wanted.request, error, io);
                give_up(shell, handle);
                return Err(failed(io, index, wanted.count, format_args!("{error}")));
            }
        };
        if shell.held.add(handle, taken).is_err() {
            // It was just allocated, so freeing it cannot fail.
            let _ = give_back(shell.manager, taken);
            give_up(shell, handle);
            return Err(failed(
                io,
                index,
                wanted.count,
                format_args!("the shell has no room to record more"),
            ));
        }
    }
    let first = shell.held.first(handle).unwrap_or_default();
    let (runs, total) = shell.held.count(Some(handle));
    let size = Size::of_pages(total);
    writeln!(
        io.out,
        "{handle}: {runs} x {}, {size}, first at {:#x}",
        Counted(pages, "page"),
        first.address()
    )?;
    Ok(())
}

/// Reports why there is no memory and where memory is, as a kernel's log does. Prints nothing for
/// other errors.
pub(super) fn explain<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    request: &Request,
    error: AllocateError,
    io: &mut Io<'_>,
) {
    if matches!(error, AllocateError::OutOfMemory { .. }) {
        // An error message that cannot be written is lost.
        let _ = write!(io.errors, "{}", bootlog::allocation_failure(shell.manager, request));
    }
}

pub(super) fn failed(
    io: &mut Io<'_>,
    index: u64,
    count: u64,
    why: core::fmt::Arguments<'_>,
) -> Failed {
    if count == 1 {
        io.fail(why)
    } else {
        io.fail(format_args!("after {index} of {count}, all freed again: {why}"))
    }
}

/// Frees what a command allocated before it failed.
pub(super) fn give_up<P: Platform, H: Host>(shell: &mut Shell<'_, P, H>, handle: u32) {
    // Only the shell has it, so freeing it cannot fail.
    let _ = shell.held.free(shell.manager, Some(handle));
}

pub(super) fn free<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let freed = match arguments {
        [] => return Err(io.wrong(format_args!("which handle or address? `held` shows handles"))),
        ["all"] => shell.held.free(shell.manager, None).map_err(|error| cannot(io, &error))?,
        [address, rest @ ..] if address.starts_with("0x") => free_at(shell, address, rest, io)?,
        handles => {
            let number = |handle: &str| handle.parse::<u32>().ok();
            // Check all handles first: if one does not exist, nothing is freed.
            for (index, handle) in handles.iter().enumerate() {
                let found = number(handle).filter(|&found| shell.held.count(Some(found)).0 != 0);
                if found.is_none() {
                    return Err(io.fail(format_args!("there is no handle {handle}")));
                }
                if handles.iter().take(index).any(|earlier| number(earlier) == found) {
                    return Err(io.fail(format_args!("handle {handle} is given twice")));
                }
            }
            let mut freed = 0;
            for handle in handles.iter().filter_map(|handle| number(handle)) {
                freed += shell
                    .held
                    .free(shell.manager, Some(handle))
                    .map_err(|error| cannot(io, &error))?;
            }
            freed
        }
    };
    Ok(writeln!(io.out, "freed {}", Size::of_pages(freed))?)
}

fn cannot(io: &mut Io<'_>, error: &AreaError) -> Failed {
    io.fail(format_args!("{error}"))
}

/// Frees the run at an address: one that a handle holds or, if a size is given, any run.
fn free_at<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    address: &str,
    rest: &[&str],
    io: &mut Io<'_>,
) -> Result<u64, Failed> {
    let start = arguments::address("an address", address, io)?;
    let pages = match rest {
        [] => None,
        [size] => Some(match size.split_once('=') {
            Some(("order", value)) => arguments::order("order", value, io)?.pages(),
            Some(("pages", value)) => arguments::number("pages", value, io)?,
            _ => {
                return Err(
                    io.wrong(format_args!("{size}: only order=N or pages=N may follow an address"))
                );
            }
        }),
        [_, more, ..] => return Err(io.wrong(format_args!("{more}: one address at a time"))),
    };
    let held = shell.held.find(start).filter(|(_, run)| run.range.start == start);
    let run = match (held, pages) {
        (Some((_, run)), pages) if pages.is_none_or(|pages| pages == run.range.pages()) => {
            if !shell.held.can_forget() {
                return Err(io.fail(format_args!(
                    "the shell has no room to record what is left of the handle"
                )));
            }
            run
        }
        (None, None) => {
            return Err(io.fail(format_args!("no run that a handle holds begins at {address}")));
        }
        (_, pages) => {
            let range = PfnRange::new(start.0, start.0.saturating_add(pages.unwrap_or(0)));
            if shell.held.touches(range) {
                return Err(io.fail(format_args!(
                    "a handle holds a part of {range:?}; free whole runs of it"
                )));
            }
            Owned::from(range)
        }
    };
    give_back(shell.manager, run).map_err(|error| cannot(io, &error))?;
    // The room for the entries on both sides was checked before.
    let _ = shell.held.forget(start);
    Ok(run.range.pages())
}

pub(super) fn held<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    none(arguments, io)?;
    for handle in shell.held.handles() {
        let (runs, pages) = shell.held.count(Some(handle));
        let first = shell.held.first(handle).unwrap_or_default();
        let size = Size::of_pages(pages);
        writeln!(
            io.out,
            "{handle}: {}, {}, {size}, first at {:#x}",
            Counted(runs, "run"),
            Counted(pages, "page"),
            first.address()
        )?;
    }
    Ok(())
}
