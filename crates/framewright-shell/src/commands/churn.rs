//! `churn` and `fragment`: how memory fragments in long use.
//!
//! Orders of memory: Relaxed: the counts are read when all CPUs are done, which the host orders.

use super::arguments::{self, Timed};
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Size;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::SpinLock;
use framewright::units::Order;
use framewright::zone::FreeError;
use framewright::{AllocateError, Frames, Manager, Platform, Request};
use framewright_workload::{Pile, PileError, Random};

/// The most runs that a CPU holds, limited because they lie on its stack.
const HELD: usize = 256;
/// The number of operations between two readings of the clock.
const STEPS: u64 = 500;
/// The largest run of `churn`, as an order: 2 MiB.
const LARGEST: u64 = 9;

pub(super) fn churn<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let timed = Timed::parse(shell, arguments, io)?;
    let manager = shell.manager;
    let (allocated, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let failure: SpinLock<Option<FreeError>> = SpinLock::new(None);
    shell.host.on_each_cpu(&|cpu| {
        let over = || timed.is_over(manager.platform()) || shell.host.is_interrupted();
        match work(manager, timed.seed.wrapping_add(u64::from(cpu) << 32), &over) {
            Ok(done) => {
                allocated.fetch_add(done.0, Ordering::Relaxed);
                refused.fetch_add(done.1, Ordering::Relaxed);
            }
            Err(error) => failure.with(manager.platform(), |failure| *failure = Some(error)),
        }
    });
    if let Some(error) = failure.with(manager.platform(), |failure| *failure) {
        return Err(io.fail(format_args!("{error}")));
    }
    let elapsed_ms = timed.elapsed_ms(manager.platform());
    let (allocated, refused) = (allocated.into_inner(), refused.into_inner());
    let rate = allocated.saturating_mul(1000).checked_div(elapsed_ms).unwrap_or(0);
    writeln!(
        io.out,
        "{allocated} run{} allocated and freed, {refused} refused, {elapsed_ms} ms, \
         {rate} a second; {}",
        if allocated == 1 { "" } else { "s" },
        Whole::now(manager)
    )?;
    if shell.host.is_interrupted() { Err(io.interrupted()) } else { Ok(()) }
}

/// Allocates and frees until `over`. Returns how many runs were allocated and how many refused.
fn work<P: Platform>(
    manager: &Manager<P>,
    seed: u64,
    over: &dyn Fn() -> bool,
) -> Result<(u64, u64), FreeError> {
    let mut held = [const { None::<Frames<'_, P>> }; HELD];
    let mut random = Random::new(seed);
    let (mut allocated, mut refused) = (0, 0);
    let mut result = Ok(());
    while result.is_ok() {
        for _ in 0..STEPS {
            let index = random.index(HELD);
            let Some(slot) = held.get_mut(index) else { continue };
            if let Some(frames) = slot.take() {
                result = frames.free();
                if result.is_err() {
                    break;
                }
                continue;
            }
            // This makes small runs take as much memory in total as large ones.
            let most = random.below(LARGEST + 1);
            let pages = 1 + random.below(1 << most);
            match manager.frames(&Request { fail_fast: true, ..Request::pages(pages) }) {
                Ok(frames) => {
                    *slot = Some(frames);
                    allocated += 1;
                }
                Err(_) => refused += 1,
            }
        }
        if over() {
            break;
        }
    }
    for frames in held.into_iter().flatten() {
        result = result.and(frames.free());
    }
    result.map(|()| (allocated, refused))
}

pub(super) fn fragment<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (size, seed) = match arguments {
        [] => (None, "1"),
        [size] => (Some(size), "1"),
        ["seed", seed] => (None, *seed),
        [size, "seed", seed] => (Some(size), *seed),
        _ => return Err(io.wrong(format_args!("expected [SIZE] [seed N]"))),
    };
    let most = size.map(|size| arguments::size_pages(size, io)).transpose()?.unwrap_or(u64::MAX);
    let mut random = Random::new(arguments::number("seed", seed, io)?);
    let manager = shell.manager;
    writeln!(io.out, "before: {}", Whole::now(manager))?;
    let mut pile = Pile::new(manager, Request::new(Order::PAGE));
    while pile.runs() < most {
        if pile.runs().is_multiple_of(STEPS) && shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
        match pile.add() {
            Ok(()) => {}
            // All memory is in use.
            Err(PileError::Memory(AllocateError::OutOfMemory { .. })) if size.is_none() => break,
            Err(error) => {
                let got = Size::of_pages(pile.runs());
                return Err(
                    io.fail(format_args!("after {got} of {}: {error}", Size::of_pages(most)))
                );
            }
        }
    }
    writeln!(io.out, "filled {}: {}", Size::of_pages(pile.runs()), Whole::now(manager))?;
    let mut free = |pile: &mut Pile<'_, P>, all: bool, io: &mut Io<'_>| {
        pile.free_some(|| all || random.one_in(2))
            .map_err(|error| io.fail(format_args!("{error}")))?;
        // Frames in the caches of CPUs are not part of free blocks.
        manager.drain().map_err(|error| io.fail(format_args!("{error}")))
    };
    free(&mut pile, false, io)?;
    writeln!(io.out, "half freed, at random: {}", Whole::now(manager))?;
    free(&mut pile, true, io)?;
    writeln!(io.out, "all freed: {}", Whole::now(manager))?;
    Ok(())
}

/// How much memory is free, and how much of it is in whole blocks.
struct Whole {
    free_pages: u64,
    block_pages: u64,
}

impl Whole {
    fn now<P: Platform>(manager: &Manager<P>) -> Self {
        let block_pages = manager.views().map(|zone| zone.free_block_pages()).sum();
        Self { free_pages: manager.totals().free_pages, block_pages }
    }
}

impl core::fmt::Display for Whole {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let tenths =
            self.block_pages.saturating_mul(1000).checked_div(self.free_pages).unwrap_or(0);
        let (free, whole) = (Size::of_pages(self.free_pages), Size::of_pages(self.block_pages));
        write!(f, "{free} free, {whole} of it in whole blocks ({}.{} %)", tenths / 10, tenths % 10)
    }
}
