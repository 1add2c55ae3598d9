//! The policies for making the memory map, measured in turn with their limit over one array of one
//! process.

use super::Scale;
use super::fill::Fill;
use super::ground::Ground;
use crate::bench::common::{failed, synthetic};
use crate::bench::host;
use crate::rows::{Init, InitLimit, Measured, Spread};
use framewright::parameters::Policy;
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent, cpu_seconds};
use serde_json::Value;

/// The initial value of descriptors if it is not zero.
const TEMPLATE: [u64; 7] = [7; 7];
/// The size of a descriptor.
pub const DESCRIPTOR: u64 = 64;
/// How often each plain fill is tried to find those that may be the fastest.
const TRIALS: usize = 3;
/// A fill this many times slower than the best is clearly slower.
const CLEARLY: f64 = 1.4;

/// The settings that rows measured together share.
#[derive(Clone, Copy)]
pub struct Group {
    /// The policies; each becomes a row.
    pub policies: &'static [Policy],
    pub template: bool,
    pub threads: usize,
    pub first_touch: bool,
}

/// The times of one run.
#[derive(Clone, Copy, Default)]
struct Run {
    seconds: f64,
    cpu_seconds: f64,
}

/// Measures a group: in each round the plain fill and every policy run once, alternately forwards
/// and backwards, each over memory that was dirtied just before.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn rows(group: Group, scale: Scale) -> Result<Vec<Init>, Error> {
    for policy in group.policies {
        crate::progress::step(&format_args!("init: {}, {} threads", policy.name(), group.threads))?;
    }
    if group.threads > 1 {
        return on_this_thread(group, scale);
    }
    on_last_cpu(|| on_this_thread(group, scale))
}

/// Runs `work` on a thread that is pinned to the last CPU, so that nothing moves between fill and
/// bring-up; the last CPU handles the fewest interrupts.
pub fn on_last_cpu<R: Send>(work: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Error> {
    let cpu = host::cpus()?.last().copied().unwrap_or(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| host::stay_on(cpu).and_then(|()| work()));
        thread.join().unwrap_or_else(|_| Err(failed("the thread that measures panicked")))
    })
}

fn on_this_thread(group: Group, scale: Scale) -> Result<Vec<Init>, Error> {
    let cpus = u32::try_from(group.threads).unwrap_or(1);
    let machine = synthetic(scale.memory_bytes, 1, cpus)?;
    let line =
        |policy: &Policy| format!("memmap_init={} memmap_init_threads={cpus}", policy.name());
    let lines: Vec<String> = group.policies.iter().map(line).collect();
    // Open the session with a policy that wants an array, if there is one.
    let array = group.policies.iter().position(|&policy| policy != Policy::OnDemand);
    let mut session =
        Session::open(&machine, lines.get(array.unwrap_or(0)).map_or("", String::as_str))?
            .with_template(group.template.then_some(TEMPLATE));
    if array.is_some() && !session.has_page_array() {
        return Err(failed("this host has too little memory for the vmemmap"));
    }
    // The first bring-ups touch everything.
    let mut pages = vec![0; lines.len()];
    for (line, pages) in lines.iter().zip(&mut pages) {
        let pass = session.with_command_line(line).bring_up(&mut Silent)?;
        *pages = described(&pass.report);
        session = pass.end_dirty()?;
    }
    let bytes = usize::try_from(pages.iter().max().copied().unwrap_or(0) * DESCRIPTOR).unwrap_or(0);
    let mut ground = Ground::new(&session.vmemmap_parts(), bytes);
    let fills = if bytes == 0 { Vec::new() } else { fast_fills(&session, &mut ground, group)? };
    let (mut limits, mut runs) = (vec![Vec::new(); fills.len()], vec![Vec::new(); lines.len()]);
    let places = fills.len() + lines.len();
    for round in 0..scale.repetitions {
        for turn in 0..places {
            let place = if round % 2 == 0 { turn } else { places - 1 - turn };
            if group.first_touch {
                session.forget_page_array()?;
            }
            let Some(number) = place.checked_sub(fills.len()) else {
                limits[place].push(plain(&session, &mut ground, fills[place], group)?);
                continue;
            };
            let pass = session.with_command_line(&lines[number]).bring_up(&mut Silent)?;
            let seconds = pass.report["totals"]["all_memory_us"].as_f64().unwrap_or(0.0) / 1e6;
            runs[number].push(Run { seconds, cpu_seconds: pass.cpu_seconds });
            session = pass.end_dirty()?;
        }
    }
    let eager = group.policies.iter().position(|&policy| policy == Policy::Eager);
    let eager = eager.and_then(|place| runs.get(place));
    let title = |place: usize| (group.policies[place], pages[place]);
    let limit = Limit::best_of(&fills, &limits);
    Ok((0..lines.len())
        .map(|place| value(group, title(place), &runs[place], limit, eager))
        .collect())
}

/// The fill with the least median time, and its runs.
#[derive(Clone, Copy)]
struct Limit<'a> {
    fill: Option<Fill>,
    runs: &'a [Run],
}

impl<'a> Limit<'a> {
    fn best_of(fills: &[Fill], runs: &'a [Vec<Run>]) -> Self {
        let middle = |runs: &[Run]| {
            Spread::of(runs.iter().map(|run| run.seconds)).middle.unwrap_or(f64::INFINITY)
        };
        let best =
            fills.iter().zip(runs).min_by(|one, other| middle(one.1).total_cmp(&middle(other.1)));
        best.map_or(Self { fill: None, runs: &[] }, |(&fill, runs)| Self { fill: Some(fill), runs })
    }
}

/// The plain fills that may be the fastest: those that are not clearly slower than the best.
fn fast_fills(
    session: &Session<'_>,
    ground: &mut Ground,
    group: Group,
) -> Result<Vec<Fill>, Error> {
    let mut least = Vec::new();
    for fill in Fill::of_this_cpu(group.template) {
        let mut best = f64::INFINITY;
        for _ in 0..TRIALS {
            if group.first_touch {
                session.forget_page_array()?;
            }
            best = best.min(plain(session, ground, fill, group)?.seconds);
        }
        least.push((fill, best));
    }
    let best = least.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
    Ok(least
        .into_iter()
        .filter(|&(_, seconds)| seconds < best * CLEARLY)
        .map(|(fill, _)| fill)
        .collect())
}

/// Runs one plain fill; the array is dirty afterwards.
fn plain(
    session: &Session<'_>,
    ground: &mut Ground,
    fill: Fill,
    group: Group,
) -> Result<Run, Error> {
    let before = cpu_seconds();
    // SAFETY: the ground is the array of this session, which has no manager.
    let seconds = unsafe { ground.fill(fill, group.threads) }?;
    let cpu_seconds = cpu_seconds() - before;
    session.dirty_page_array();
    Ok(Run { seconds, cpu_seconds })
}

/// The number of pages whose descriptors were written: all that can be handed out.
fn described(report: &Value) -> u64 {
    if report["totals"]["vmemmap_bytes"].as_u64() == Some(0) {
        return 0;
    }
    report["totals"]["managed_pages"].as_u64().unwrap_or(0)
}

fn value(
    group: Group,
    title: (Policy, u64),
    runs: &[Run],
    limit: Limit<'_>,
    eager: Option<&Vec<Run>>,
) -> Init {
    let (policy, pages) = title;
    let limits = if pages == 0 { &[][..] } else { limit.runs };
    let fill = limit.fill.filter(|_| pages != 0).map(Fill::name);
    let seconds = Spread::of(runs.iter().map(|run| run.seconds));
    let limit = Spread::of(limits.iter().map(|limit| limit.seconds));
    // Each ratio is of one round.
    let ratio = Spread::of(limits.iter().zip(runs).map(|(limit, run)| limit.seconds / run.seconds));
    let cpu = |runs: &[Run]| Spread::of(runs.iter().map(|run| run.cpu_seconds));
    let eager = if policy == Policy::Deferred { eager.map_or(&[][..], Vec::as_slice) } else { &[] };
    let cpu_ratio =
        Spread::of(eager.iter().zip(runs).map(|(eager, run)| run.cpu_seconds / eager.cpu_seconds));
    // Unlike elapsed time, CPU time does not grow when other load takes the CPU away.
    let limit_cpu =
        Spread::of(limits.iter().zip(runs).map(|(limit, run)| limit.cpu_seconds / run.cpu_seconds));
    let row = InitLimit {
        cpu_seconds: cpu(runs),
        limit_fill: Measured(fill.map(Into::into)),
        limit_seconds: limit,
        limit_cpu_seconds: cpu(limits),
        limit_ratio: ratio,
        limit_ratio_low: Measured(ratio.low),
        limit_ratio_high: Measured(ratio.high),
        limit_of_minima_ratio: Measured(
            limit.least.zip(seconds.least).map(|(limit, run)| limit / run),
        ),
        limit_cpu_ratio: limit_cpu.quarters(),
        eager_cpu_ratio: cpu_ratio,
    };
    Init {
        policy: policy.name().into(),
        init: if group.template { "template" } else { "zero" }.into(),
        threads: group.threads as u64,
        pages,
        bytes: pages * DESCRIPTOR,
        seconds,
        limit: Some(row),
        growth: None,
        first_touch: group.first_touch,
    }
}
