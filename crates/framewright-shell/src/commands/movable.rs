//! `movable`: memory that can be moved while it is used. The machine has it mapped
//! ([`Host::mapping`]), or a table of handles gives access to it. The first `fill` makes the
//! tables. From then on they are the mover of `compact`, `contig` and `vacate`, and, until `free`,
//! also of whatever the manager moves on its own ([`Host::relay`]).

use super::{arguments, moving, users};
use crate::host::{Host, MovableMemory, SHARES};
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::manager::ObstacleKind;
use framewright::units::{MAX_ORDER, Order, PAGE_SIZE, PfnRange};
use framewright::{Mover, Occupant, Platform};
use framewright_workload::{Handle, HandleError, Handles, Random};

/// The most handles: their table is one run, of at most 1 GiB.
const MOST_HANDLES: u64 = Order::MAX.pages() * PAGE_SIZE / 8;
/// The most orders in a list.
const MOST_ORDERS: usize = 32;
/// The percentage of memory that `fill` leaves free before it frees random runs.
const LEFT_FREE: u64 = 3;
/// The number of runs between two checks for an interrupt.
const CHECK_EVERY: u64 = 1024;

pub(super) fn movable<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match arguments {
        [] => status(shell, io),
        ["fill", percent, rest @ ..] => {
            let fill = Fill::parse(percent, rest, io)?;
            fill_memory(shell, &fill, io)
        }
        ["check"] => check(shell, io),
        ["pin", count] => {
            let count = arguments::number("pin", count, io)?;
            pin(shell, count, io)
        }
        ["busy", "on"] => {
            table(shell, io)?;
            users::begin(shell, io)
        }
        ["busy", "off"] => {
            shell.users = 0;
            Ok(())
        }
        ["free"] => free(shell, io),
        _ => Err(io.wrong(format_args!(
            "expected fill PERCENT [ORDER,...] [seed N], check, pin COUNT, busy on, busy off, \
             free, or no argument"
        ))),
    }
}

/// What `fill` has to do.
struct Fill {
    percent: u64,
    orders: [Order; MOST_ORDERS],
    count: usize,
    seed: u64,
}

impl Fill {
    fn parse(percent: &str, rest: &[&str], io: &mut Io<'_>) -> Result<Self, Failed> {
        let (orders, seed) = match rest {
            [] => ("0", "1"),
            ["seed", seed] => ("0", *seed),
            [orders] => (*orders, "1"),
            [orders, "seed", seed] => (*orders, *seed),
            _ => {
                return Err(io.wrong(format_args!(
                    "only orders separated by commas and then seed N may follow the percentage"
                )));
            }
        };
        let mut fill = Self {
            percent: arguments::number("a percentage", percent, io)?,
            orders: [Order::PAGE; MOST_ORDERS],
            count: 0,
            seed: arguments::number("seed", seed, io)?,
        };
        if fill.percent > 100 - LEFT_FREE {
            return Err(io.wrong(format_args!(
                "at most {} % of memory can be filled, not {percent}",
                100 - LEFT_FREE
            )));
        }
        for text in orders.split(',') {
            let order = arguments::order("an order", text, io)?;
            let Some(place) = fill.orders.get_mut(fill.count) else {
                return Err(io.wrong(format_args!("at most {MOST_ORDERS} orders")));
            };
            *place = order;
            fill.count += 1;
        }
        Ok(fill)
    }

    fn orders(&self) -> &[Order] {
        self.orders.get(..self.count).unwrap_or(&[])
    }
}

/// Fills nearly all memory with runs, and then frees random runs until the wanted share is in use,
/// so that every block has holes.
fn fill_memory<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    fill: &Fill,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (manager, host) = (shell.manager, shell.host);
    let totals = manager.totals();
    let (all, free) = (totals.managed_pages, totals.free_pages);
    let most = free.saturating_sub(all * LEFT_FREE / 100);
    let backing = host.backing(all.saturating_sub(free) * PAGE_SIZE);
    if let Some(backing) = backing.filter(|backing| backing / PAGE_SIZE < most) {
        return Err(io.fail(format_args!(
            "it writes to {} before it frees any of it, but this host has {} for that; a smaller \
             machine would do",
            Size::of_pages(most),
            Size::of_pages(backing / PAGE_SIZE)
        )));
    }
    let count_of_handles = u32::try_from(all.min(MOST_HANDLES)).unwrap_or(u32::MAX);
    let handles = shell
        .open_movable(count_of_handles)
        .map_err(|error| io.fail(format_args!("no tables: {error}")))?;
    let mut random = Random::new(fill.seed);
    let mut added: u64 = 0;
    let mut are_left = true;
    while manager.totals().free_pages * 100 > all * LEFT_FREE {
        if added % CHECK_EVERY == CHECK_EVERY - 1 && host.is_interrupted() {
            return Err(io.interrupted());
        }
        let order = random.choose(fill.orders()).unwrap_or(Order::PAGE);
        match handles.allocate(order) {
            Ok(_) => added += 1,
            // Watermarks protect the rest, or no free run is large enough.
            Err(HandleError::Memory(_)) => break,
            // There are as many handles as there were pages when the tables were made.
            Err(HandleError::NoHandle) => {
                are_left = false;
                break;
            }
            Err(error) => return Err(io.fail(format_args!("{error}"))),
        }
    }
    let used = |free: u64| all.saturating_sub(free);
    let target = all * fill.percent / 100;
    // Each pass frees about as much as is too much; the next pass corrects random deviations.
    for _ in 0..64 {
        let start = used(manager.totals().free_pages);
        if start <= target {
            break;
        }
        let mut freed = 0;
        for handle in held(handles) {
            if start - freed <= target {
                break;
            }
            if random.below(start) >= start - target {
                continue;
            }
            let pages = handles.range(handle).map_or(0, PfnRange::pages);
            match handles.free(handle) {
                Ok(()) => freed += pages.min(start - freed),
                // Pinned runs stay.
                Err(HandleError::Busy(_)) => {}
                Err(error) => return Err(io.fail(format_args!("{error}"))),
            }
        }
        if host.is_interrupted() {
            return Err(io.interrupted());
        }
        // Pages in the caches of CPUs count as in use.
        manager.drain().map_err(|error| io.fail(format_args!("{error}")))?;
        if freed == 0 {
            break;
        }
    }
    let (runs, pages) = count(handles);
    let now = used(manager.totals().free_pages);
    writeln!(
        io.out,
        "{} with {} hold {}; {} of {} is in use ({} %)",
        Counted(runs, "handle"),
        Orders(fill.orders()),
        Size::of_pages(pages),
        Size::of_pages(now),
        Size::of_pages(all),
        (now * 100 + all / 2).checked_div(all).unwrap_or(0)
    )?;
    if !are_left && now < target {
        return Err(io.fail(format_args!(
            "no handles are left; `movable free` and another fill make tables for all memory"
        )));
    }
    Ok(())
}

/// The orders of a list, each once, ascending.
struct Orders<'a>(&'a [Order]);

impl core::fmt::Display for Orders<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("runs of order")?;
        let mut before = ' ';
        for order in (0..=MAX_ORDER).filter_map(Order::new).filter(|order| self.0.contains(order)) {
            write!(f, "{before}{}", order.get())?;
            before = ',';
        }
        Ok(())
    }
}

/// All runs, in ascending order of handles.
fn held(handles: &dyn MovableMemory) -> impl Iterator<Item = Handle> {
    let mut next = Some(0);
    core::iter::from_fn(move || {
        let handle = handles.next(next?)?;
        next = handle.0.checked_add(1);
        Some(handle)
    })
}

fn count(handles: &dyn MovableMemory) -> (u64, u64) {
    held(handles).fold((0, 0), |(runs, pages), handle| {
        (runs + 1, pages + handles.range(handle).map_or(0, PfnRange::pages))
    })
}

fn table<'s, P: Platform, H: Host>(
    shell: &'s Shell<'_, P, H>,
    io: &mut Io<'_>,
) -> Result<&'s dyn MovableMemory, Failed> {
    let none = "no memory is held by handles; `movable fill` takes some";
    shell.movable().ok_or_else(|| io.fail(format_args!("{none}")))
}

impl<P: Platform> MovableMemory for Handles<'_, P> {
    fn allocate(&self, order: Order) -> Result<Handle, HandleError> {
        self.allocate(order)
    }

    fn next(&self, from: u32) -> Option<Handle> {
        self.held_from(from).next()
    }

    fn range(&self, handle: Handle) -> Option<PfnRange> {
        self.range(handle)
    }

    fn is_pinned(&self, handle: Handle) -> bool {
        self.range(handle).is_some_and(|run| self.occupant(run.start) == Occupant::Pinned)
    }

    fn pin(&self, handle: Handle, pinned: bool) -> Result<(), HandleError> {
        self.pin(handle, pinned)
    }

    fn check(&self, handle: Handle) -> Result<(), HandleError> {
        self.check(handle)
    }

    fn free(&self, handle: Handle) -> Result<(), HandleError> {
        self.free(handle)
    }

    fn table_pages(&self) -> u64 {
        self.table_pages()
    }

    /// Enters each run and checks it.
    fn use_share(&self, share: u32) -> Result<u64, HandleError> {
        let mut used = 0;
        for handle in held(self).filter(|handle| handle.0 % SHARES == share) {
            match self.check(handle) {
                Ok(()) => used += 1,
                // The run was freed meanwhile.
                Err(HandleError::NotHeld(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }
}

fn status<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let handles = table(shell, io)?;
    let (runs, pages) = count(handles);
    let pinned = held(handles).filter(|&handle| handles.is_pinned(handle)).count() as u64;
    writeln!(
        io.out,
        "{} hold {}, {pinned} of them pinned; the table takes {}",
        Counted(runs, "handle"),
        Size::of_pages(pages),
        Size::of_pages(handles.table_pages())
    )?;
    Ok(())
}

fn check<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let handles = table(shell, io)?;
    let (mut runs, mut wrong) = (0_u64, 0_u64);
    for handle in held(handles) {
        if runs % CHECK_EVERY == CHECK_EVERY - 1 && shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
        runs += 1;
        if let Err(error) = handles.check(handle) {
            wrong += 1;
            if wrong <= super::moving::MOST_NAMED {
                io.fail(format_args!("{error}"));
            }
        }
    }
    if wrong != 0 {
        return Err(io.fail(format_args!("{wrong} of {} are damaged", Counted(runs, "handle"))));
    }
    let pages = count(handles).1;
    writeln!(io.out, "{}, {}: all intact", Counted(runs, "handle"), Size::of_pages(pages))?;
    Ok(())
}

/// Pins this many random runs, and unpins all others. Long-term pins must not stay in memory that
/// is reserved for movable pages, so runs there are moved out first; a run that cannot be moved is
/// not pinned.
fn pin<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    wanted: u64,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let handles = table(shell, io)?;
    let (mut left, _) = count(handles);
    if wanted > left {
        let there = Counted(left, "handle");
        return Err(io.fail(format_args!("there are {there}, not {wanted}")));
    }
    let mut random = Random::new(wanted);
    let mut wanted_left = wanted;
    let (mut moved, mut refused) = (0, Refused::default());
    for handle in held(handles) {
        // Each remaining run has equal chances, so that exactly the wanted number is chosen.
        let is_chosen = random.below(left) < wanted_left;
        left -= 1;
        wanted_left -= u64::from(is_chosen);
        // Nothing may move the run back between the move and the pin.
        let pinned = shell.undisturbed(|| {
            if is_chosen && !handles.is_pinned(handle) {
                match move_for_pin(shell, handles, handle) {
                    Ok(was_moved) => moved += u64::from(was_moved),
                    Err(why) => {
                        refused.note(handle, why);
                        return Ok(());
                    }
                }
            }
            handles.pin(handle, is_chosen)
        });
        pinned.map_err(|error| io.fail(format_args!("{error}")))?;
    }
    write!(io.out, "{} pinned", Counted(wanted - refused.count, "handle"))?;
    if moved != 0 {
        write!(io.out, ", {moved} of them moved out of movable-only memory first")?;
    }
    writeln!(io.out)?;
    match refused.first {
        None => Ok(()),
        Some((Handle(number), why)) => Err(io.fail(format_args!(
            "{} could not be moved first; handle {number} is {why}",
            Counted(refused.count, "handle")
        ))),
    }
}

/// Handles that were not pinned because they could not be moved out of memory for movable pages.
#[derive(Default)]
struct Refused {
    count: u64,
    first: Option<(Handle, ObstacleKind)>,
}

impl Refused {
    fn note(&mut self, handle: Handle, why: ObstacleKind) {
        self.count += 1;
        self.first.get_or_insert((handle, why));
    }
}

/// Moves a run out of memory that is reserved for movable pages. Returns whether it was there.
fn move_for_pin<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    handles: &dyn MovableMemory,
    handle: Handle,
) -> Result<bool, ObstacleKind> {
    let Some(run) = handles.range(handle) else { return Ok(false) };
    moving::moving(shell).move_for_pin(run).map(|now| now != run)
}

/// Checks and frees all runs, and frees the table.
fn free<P: Platform, H: Host>(shell: &mut Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let handles = table(shell, io)?;
    let (_, pages) = count(handles);
    let mut failed = Ok(());
    for handle in held(handles) {
        let freed = handles.pin(handle, false).and_then(|()| handles.free(handle));
        if let Err(error) = freed {
            failed = failed.and(Err(io.fail(format_args!("{error}"))));
        }
    }
    // Damaged runs, which could not be freed above, are freed now.
    shell.close_movable();
    failed?;
    writeln!(io.out, "freed {}", Size::of_pages(pages))?;
    Ok(())
}
