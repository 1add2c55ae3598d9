//! `memhog`, `sleep` and `stress`.

use super::arguments::{self, Timed};
use super::memory::{explain, give_up};
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::owned::give_back;
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::SpinLock;
use framewright::units::Order;
use framewright::{Manager, Platform, Request};
use framewright_workload::{Failure, Held, Shared, Tally, Worker};

/// The most runs that a worker of `stress` holds, limited because they lie on its stack.
const STRESS_RUNS: usize = 128;
/// The number of operations between two readings of the clock.
const STRESS_STEPS: u64 = 500;
/// How long workers run between two checks that account for every page.
const STRESS_ROUND_NS: u64 = 1_000_000_000;

pub(super) fn memhog<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let [size, options @ ..] = arguments else { return Err(io.wrong(format_args!("how much?"))) };
    let wanted_pages = arguments::size_pages(size, io)?;
    let (mut hold, mut touch) = (None, true);
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        match option {
            "untouched" => touch = false,
            "hold" => {
                let value = options
                    .next()
                    .ok_or_else(|| io.wrong(format_args!("hold for how many seconds?")))?;
                hold = Some(arguments::seconds(value, io)?);
            }
            _ => {
                return Err(io.wrong(format_args!(
                    "{option}: only hold SECONDS and untouched may follow the size"
                )));
            }
        }
    }
    let handle = shell.held.open();
    let result = take_all(shell, handle, wanted_pages, touch, io).and_then(|()| {
        let (runs, pages) = shell.held.count(Some(handle));
        let done = if touch { "wrote to" } else { "hold" };
        writeln!(io.out, "{done} {} in {}", Size::of_pages(pages), Counted(runs, "run"))?;
        hold.map_or(Ok(()), |seconds| shell.sleep(seconds, io))
    });
    give_up(shell, handle);
    result
}

/// Allocates this many pages, the largest runs first.
fn take_all<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    handle: u32,
    wanted_pages: u64,
    touch: bool,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let mut left = wanted_pages;
    let mut order = Order::MAX;
    while left != 0 {
        if shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
        while order.pages() > left {
            order = lower(order);
        }
        // Smaller runs may succeed where larger ones fail, so only the last attempt may reclaim.
        let request =
            Request { zeroed: touch, fail_fast: order > Order::PAGE, ..Request::new(order) };
        match shell.manager.allocate(&request) {
            Ok(taken) => {
                if shell.held.add(handle, taken).is_err() {
                    let _ = give_back(shell.manager, taken);
                    return Err(io.fail(format_args!(
                        "the shell has no room to record more runs of {order:?}"
                    )));
                }
                left -= order.pages();
            }
            Err(_) if order > Order::PAGE => order = lower(order),
            Err(error) => {
                explain(shell, &request, error, io);
                let got = Size::of_pages(wanted_pages - left);
                return Err(io.fail(format_args!(
                    "after {got} of {}: {error}",
                    Size::of_pages(wanted_pages)
                )));
            }
        }
    }
    Ok(())
}

fn lower(order: Order) -> Order {
    Order::new(order.get().saturating_sub(1)).unwrap_or(Order::PAGE)
}

pub(super) fn sleep<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let [seconds] = arguments else { return Err(io.wrong(format_args!("how many seconds?"))) };
    let seconds = arguments::seconds(seconds, io)?;
    shell.sleep(seconds, io)
}

/// The results of all workers.
#[derive(Clone, Copy)]
struct Results {
    tally: Tally,
    failure: Option<Failure>,
}

pub(super) fn stress<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let timed = Timed::parse(shell, arguments, io)?;
    let platform = shell.manager.platform();
    let mut tally = Tally::default();
    let mut rounds: u64 = 0;
    let mut interrupted = false;
    while !interrupted && (rounds == 0 || !timed.is_over(platform)) {
        let until = platform
            .now_ns()
            .map_or(timed.end_ns, |now| now.saturating_add(STRESS_ROUND_NS))
            .min(timed.end_ns);
        let seed = timed.seed.wrapping_add(rounds.wrapping_mul(0x1_0000));
        tally += round(shell, seed, until).map_err(|failure| io.fail(format_args!("{failure}")))?;
        rounds += 1;
        interrupted = shell.host.is_interrupted();
    }
    let ms = timed.elapsed_ms(platform);
    writeln!(io.out, "{tally}, {ms} ms, every page accounted for {}", Counted(rounds, "time"))?;
    if interrupted { Err(io.interrupted()) } else { Ok(()) }
}

/// Runs traffic on all CPUs until a deadline; then everything is freed and accounted for.
fn round<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    seed: u64,
    until_ns: u64,
) -> Result<Tally, Failure> {
    let manager = shell.manager;
    let shared = shell.undisturbed(|| Shared::new(manager));
    let results = SpinLock::new(Results { tally: Tally::default(), failure: None });
    shell.host.on_each_cpu(&|cpu| {
        let mut room = [Held::NOTHING; STRESS_RUNS];
        let worker = Worker::new(manager, &shared, &mut room, seed.wrapping_add(u64::from(cpu)));
        let has_failed = || results.with(manager.platform(), |results| results.failure.is_some());
        let stop = || has_failed() || shell.host.is_interrupted();
        let done = work(manager, worker, until_ns, &stop);
        results.with(manager.platform(), |results| match done {
            Ok(tally) => results.tally += tally,
            Err(failure) => results.failure = results.failure.or(Some(failure)),
        });
    });
    let Results { tally, failure } = results.with(manager.platform(), |results| *results);
    failure.map_or(Ok(()), Err)?;
    shell.undisturbed(|| shared.settle(manager))?;
    Ok(tally)
}

fn work<P: Platform>(
    manager: &Manager<P>,
    mut worker: Worker<'_, P>,
    until_ns: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Tally, Failure> {
    loop {
        worker.run(STRESS_STEPS)?;
        if stop() || manager.platform().now_ns().is_none_or(|now| now >= until_ns) {
            return worker.finish();
        }
    }
}
