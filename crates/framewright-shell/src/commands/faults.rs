//! `page_fault1` and `page_fault2`: the load that will-it-scale's tests of these names put on an
//! allocator. Each CPU goes through a mapping again and again: it allocates a run for each fault,
//! writes to each page and frees everything. Nothing is cleared, as that would hide the cost of the
//! allocator. An iteration is a page of 4 KiB that was written to.
//!
//! Orders of memory: Relaxed: the counts and bits are read when all CPUs are done, which the host
//! orders.

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Counted;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::SpinLock;
use framewright::units::Order;
use framewright_workload::{Pile, PileError};

/// The most pages of a mapping: 128 MiB, as in will-it-scale.
const MAPPING_PAGES: u64 = 128 << 8;
/// The number of runs between two readings of the clock.
const RUNS_AT_ONCE: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// CPUs with higher numbers do not take part.
const MOST_CPUS: u32 = 1024;

/// The CPUs that take part, a bit for each: stopped CPUs do not, and a host may have fewer threads
/// than its machine has CPUs.
struct Cpus([AtomicU64; MOST_CPUS as usize / 64]);

impl Cpus {
    fn of<H: Host>(host: &H) -> Self {
        let cpus = Self([const { AtomicU64::new(0) }; MOST_CPUS as usize / 64]);
        host.on_each_cpu(&|cpu| {
            if let Some(word) = cpus.0.get(cpu as usize / 64) {
                word.fetch_or(1 << (cpu % 64), Ordering::Relaxed);
            }
        });
        cpus
    }

    /// How many CPUs with numbers below `cpu` take part.
    fn below(&self, cpu: u32) -> u32 {
        let word = |(index, word): (u32, &AtomicU64)| {
            let below = cpu.saturating_sub(index * 64);
            let mask = 1_u64.checked_shl(below).map_or(u64::MAX, |bit| bit - 1);
            (word.load(Ordering::Relaxed) & mask).count_ones()
        };
        (0..).zip(&self.0).map(word).sum()
    }
}

pub(super) fn page_fault<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    order: Order,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (seconds, only) = match arguments {
        [seconds] => (seconds, None),
        [seconds, "cpus", cpus] => (seconds, Some(arguments::number("cpus", cpus, io)?)),
        _ => return Err(io.wrong(format_args!("expected SECONDS [cpus N]"))),
    };
    let seconds = arguments::seconds(seconds, io)?;
    let there = Cpus::of(shell.host);
    let all = there.below(MOST_CPUS);
    match only {
        Some(cpus) => match u32::try_from(cpus) {
            Ok(cpus) if (1..=all).contains(&cpus) => one(shell, order, seconds, (&there, cpus), io),
            _ => Err(io.wrong(format_args!("cpus must be 1 to {all} on this machine, not {cpus}"))),
        },
        None => {
            let powers = (0..u32::BITS).map(|shift| 1 << shift).take_while(|&cpus| cpus < all);
            for cpus in powers.chain([all]) {
                one(shell, order, seconds, (&there, cpus), io)?;
            }
            Ok(())
        }
    }
}

/// Measures this many of the CPUs in rounds of a second, at least one round.
fn one<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    order: Order,
    seconds: u64,
    (there, cpus): (&Cpus, u32),
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (mut rounds, mut sum, mut squares) = (0_u64, 0_u128, 0_u128);
    while rounds < seconds.max(1) {
        let rate = u128::from(round(shell, order, (there, cpus), io)?);
        (rounds, sum, squares) = (rounds + 1, sum + rate, squares + rate * rate);
        if shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
    }
    let rounds = u128::from(rounds);
    let mean = sum / rounds;
    // The sample variance of the rounds.
    let variance =
        (squares * rounds).saturating_sub(sum * sum) / (rounds * rounds.saturating_sub(1).max(1));
    let tenths = (variance.isqrt() * 1000).checked_div(mean).unwrap_or(0);
    let name = io.name;
    writeln!(
        io.out,
        "{name} cpus {cpus}: {mean} iterations/s, deviation {}.{} %, {}",
        tenths / 10,
        tenths % 10,
        Counted(u64::try_from(rounds).unwrap_or(u64::MAX), "round")
    )?;
    Ok(())
}

/// Measures the iterations per second, over one second.
fn round<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    order: Order,
    (there, cpus): (&Cpus, u32),
    io: &mut Io<'_>,
) -> Result<u64, Failed> {
    let manager = shell.manager;
    let clock = || manager.platform().now_ns();
    let start = clock().ok_or_else(|| io.fail(format_args!("this machine has no clock")))?;
    let end = start.saturating_add(SECOND_NS);
    // All CPUs together use half of the free memory, so that no allocation fails.
    let share = manager.totals().free_pages / 2 / u64::from(cpus);
    let runs = (share.min(MAPPING_PAGES) >> order.get()).max(1);
    let done = AtomicU64::new(0);
    let failure: SpinLock<Option<PileError>> = SpinLock::new(None);
    shell.host.on_each_cpu(&|cpu| {
        if there.below(cpu) >= cpus {
            return;
        }
        let mut pile = Pile::near(manager, order);
        let over = || clock().is_none_or(|now| now >= end) || shell.host.is_interrupted();
        let mut work = || {
            loop {
                while pile.runs() < runs {
                    pile.add()?;
                    if pile.runs().is_multiple_of(RUNS_AT_ONCE) && over() {
                        break;
                    }
                }
                done.fetch_add(pile.runs() << order.get(), Ordering::Relaxed);
                pile.free_all()?;
                if over() {
                    return Ok(());
                }
            }
        };
        if let Err(error) = work() {
            failure.with(manager.platform(), |failure| *failure = Some(error));
        }
    });
    if let Some(error) = failure.with(manager.platform(), |failure| *failure) {
        return Err(io.fail(format_args!("{error}")));
    }
    let elapsed = clock().map_or(SECOND_NS, |now| now.saturating_sub(start)).max(1);
    let rate = u128::from(done.into_inner()) * u128::from(SECOND_NS) / u128::from(elapsed);
    Ok(u64::try_from(rate).unwrap_or(u64::MAX))
}
