//! Measures the costs on this machine, in a few seconds. None is measured on what the checks
//! predict: machines and pools have other sizes, and rates are those of plain loops and system
//! calls.
//!
//! The least time of several runs counts, as other load on the machine only adds to it.

use super::costs::{Costs, Line, Rate};
use super::here::{self, Pool};
use super::predict::Maps;
use crate::bench::common::{failed, median, synthetic};
use crate::bench::host;
use crate::bench::init::growth::by_requests;
use crate::bench::init::limit::{Buffer, Fill};
use crate::progress;
use framewright::hugetlb::PoolSize;
use framewright::units::Order;
use framewright_cli::error::Error;
use framewright_cli::hosted::{Session, Silent};
use framewright_hosted::HostedHelpers;
use framewright_jobs::Job;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The least number of runs of each measurement.
const RUNS: usize = 7;
/// How long to repeat plain fills, so that some of them run undisturbed.
const LONG_ENOUGH: Duration = Duration::from_millis(200);
/// The size of a plain fill.
const BUFFER_BYTES: usize = 256 << 20;
/// The memory that the system takes back or supplies: little, so that some runs are undisturbed.
const SYSTEM_BUFFER_BYTES: usize = 8 << 20;
/// The size of a section's descriptors.
const SECTION_BYTES: f64 = (2 << 20) as f64;

/// Measures all constants.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or threads cannot be started.
pub fn measure() -> Result<Costs, Error> {
    let threads = host::cpus()?.len();
    let mut costs = Costs::NONE;
    progress::step(&"model: bandwidth")?;
    bandwidth(&mut costs, threads)?;
    system(&mut costs)?;
    progress::step(&"model: bring-up of machines of other sizes")?;
    bring_up(&mut costs)?;
    progress::step(&"model: one section by request")?;
    costs.section_ns = (section_ns()? - SECTION_BYTES / costs.write.of(1.0) * 1e9).max(0.0);
    progress::step(&"model: helpers and flushes")?;
    helpers(&mut costs, threads);
    costs.flush = flush(threads)?;
    progress::step(&"model: small pools")?;
    pools(&mut costs)?;
    Ok(costs)
}

/// The least time of several runs.
fn least(mut run: impl FnMut() -> Result<f64, Error>) -> Result<f64, Error> {
    let started = Instant::now();
    let (mut least, mut runs) = (f64::INFINITY, 0);
    while runs < RUNS || started.elapsed() < LONG_ENOUGH {
        least = least.min(run()?);
        runs += 1;
    }
    Ok(least)
}

/// The time of `work`. A single thread's CPU time is used, as other load disturbs it least.
fn timed(threads: usize, work: impl FnOnce() -> Result<f64, Error>) -> Result<f64, Error> {
    let before = host::thread_cpu_seconds();
    let elapsed = work()?;
    Ok(if threads == 1 { host::thread_cpu_seconds() - before } else { elapsed })
}

/// Measures plain fills of memory that is backed.
fn bandwidth(costs: &mut Costs, threads: usize) -> Result<(), Error> {
    let fills = Fill::of_this_cpu(false);
    // Where CLZERO exists, it is the fastest fill.
    let fills = if fills.contains(&Fill::Clzero) { vec![Fill::Clzero] } else { fills };
    costs.write = rate(BUFFER_BYTES, threads, &mut |buffer, threads| {
        let mut best = f64::INFINITY;
        for &fill in &fills {
            buffer.dirty();
            best = best.min(timed(threads, || buffer.fill(fill, threads))?);
        }
        Ok(best)
    })?;
    Ok(())
}

/// Measures what several threads reach together: bandwidth, and how much their helpers add.
///
/// # Errors
/// Fails if threads cannot be started.
pub fn together(costs: &mut Costs) -> Result<(), Error> {
    let threads = host::cpus()?.len();
    bandwidth(costs, threads)?;
    helpers(costs, threads);
    Ok(())
}

/// Measures giving memory back to the system, and writing to memory that it supplies. The cost
/// changes with what else the system, and a host below it, have to do.
///
/// # Errors
/// Fails if threads cannot be started.
pub fn system(costs: &mut Costs) -> Result<(), Error> {
    let threads = host::cpus()?.len();
    costs.release = rate(SYSTEM_BUFFER_BYTES, threads, &mut |buffer, threads| {
        buffer.dirty();
        timed(threads, || buffer.release(threads))
    })?;
    costs.supply = rate(SYSTEM_BUFFER_BYTES, threads, &mut |buffer, threads| {
        buffer.forget();
        timed(threads, || buffer.fill(Fill::Memset, threads))
    })?;
    Ok(())
}

/// Measures a rate with one and with all threads; `work` returns seconds.
fn rate(
    bytes: usize,
    threads: usize,
    work: &mut dyn FnMut(&mut Buffer, usize) -> Result<f64, Error>,
) -> Result<Rate, Error> {
    let mut buffer = Buffer::new(bytes)?;
    let mut of =
        |threads: usize| Ok::<f64, Error>(bytes as f64 / least(|| work(&mut buffer, threads))?);
    let (single, all) = (of(1)?, of(threads)?);
    Ok(Rate::through((1, single), (u32::try_from(threads).unwrap_or(u32::MAX), all)))
}

/// Brings up machines of 2 and 6 GiB, which differ by a zone, of 1 and 8 TiB, of one, two and eight
/// nodes, and of one and 65 CPUs.
fn bring_up(costs: &mut Costs) -> Result<(), Error> {
    const GIB: u64 = 1 << 30;
    let one = |gib: u64, nodes, cpus| {
        let machine = synthetic(gib * GIB, nodes, cpus)?;
        let (times, shape) = here::bring_up(&machine, RUNS)?;
        Ok::<_, Error>((times.least * 1e6, f64::from(shape.zones)))
    };
    let (small, small_zones) = one(2, 1, 1)?;
    let (crowded, _) = one(2, 1, 65)?;
    let (zoned, zoned_zones) = one(6, 1, 1)?;
    let (large, large_zones) = one(8 << 10, 1, 1)?;
    let (whole, whole_zones) = one(1 << 10, 1, 1)?;
    let (halved, halved_zones) = one(1 << 10, 2, 2)?;
    let (divided, divided_zones) = one(1 << 10, 8, 8)?;
    costs.cpu_zone_ns = ((crowded - small) / (64.0 * small_zones)).max(0.0);
    // There are two unknowns: the large machine has more GiB and more zones than the small one, and
    // the one with another zone has a few GiB more.
    let gib_ns = (large - zoned) / (8192.0 - 6.0);
    costs.zone_ns = ((zoned - small - 4.0 * gib_ns) / (zoned_zones - small_zones)).max(0.0);
    let large = large - costs.zone_ns * (large_zones - small_zones);
    costs.bring_up = Line::through((2.0, small), (8192.0, large));
    // The firmware's tables of nodes are only read if there are at least two nodes.
    let of_nodes = |ns: f64, zones: f64, further_cpus: f64| {
        ns - whole
            - costs.zone_ns * (zones - whole_zones)
            - costs.cpu_zone_ns * further_cpus * zones
    };
    costs.nodes = Line::through(
        (1.0, of_nodes(halved, halved_zones, 1.0)),
        (7.0, of_nodes(divided, divided_zones, 7.0)),
    );
    Ok(())
}

/// The time of initialising one section because a request needs it, in nanoseconds.
fn section_ns() -> Result<f64, Error> {
    let order = Order::new(15).ok_or_else(|| failed("order 15 is 128 MiB"))?;
    let machine = synthetic(16 << 30, 1, 1)?;
    let session = Session::open(&machine, "memmap_init=deferred")?;
    // The machine is large, so that its array is not in a cache. The first bring-up makes the
    // array's memory backed and dirty.
    let mut session = session.bring_up(&mut Silent)?.end_dirty()?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let pass = session.bring_up_withheld()?;
        let seconds = by_requests(pass.manager(), order).into_iter();
        best = seconds.map(|seconds| seconds * 1e9).fold(best, f64::min);
        session = pass.end_dirty()?;
    }
    best.is_finite().then_some(best).ok_or_else(|| failed("no section came up by request"))
}

/// Measures how much helpers add at this moment.
fn helpers(costs: &mut Costs, threads: usize) {
    costs.helper_share = helper_share(threads);
    costs.helper_ns = helper_ns(threads);
}

/// The time from asking for a helper until it works, as jobs themselves measure it.
fn helper_ns(threads: usize) -> f64 {
    if threads < 2 {
        return 0.0;
    }
    let helpers = HostedHelpers::shared();
    for _ in 0..50 {
        let job = Job::new(0..2).min_chunk(1).max_threads(2);
        let done = job.run(helpers, |_, _| {
            let started = Instant::now();
            while started.elapsed() < Duration::from_micros(300) {
                std::hint::spin_loop();
            }
            Ok::<(), Infallible>(())
        });
        black_box(done.is_ok());
        // Let the helpers go to sleep, as a job at boot finds them asleep.
        std::thread::sleep(Duration::from_micros(500));
    }
    helpers.mean_start_ns() as f64
}

/// The share of a CPU that helpers get: how much faster a job of arithmetic is with all of them.
fn helper_share(threads: usize) -> f64 {
    const UNITS: u64 = 400;
    if threads < 2 {
        return 1.0;
    }
    let work = |units: std::ops::Range<u64>| {
        for unit in units {
            black_box(
                (0..20_000_u64)
                    .fold(unit, |value, step| black_box(value.wrapping_mul(31).wrapping_add(step))),
            );
        }
    };
    let time = |most: u32| {
        let once = |_| {
            let started = Instant::now();
            let job = Job::new(0..UNITS).min_chunk(1).max_threads(most);
            let done = job.run(HostedHelpers::shared(), |units, _| {
                work(units);
                Ok::<(), Infallible>(())
            });
            black_box(done.is_ok());
            started.elapsed().as_secs_f64()
        };
        (0..RUNS).map(once).fold(f64::INFINITY, f64::min)
    };
    let most = u32::try_from(threads).unwrap_or(u32::MAX);
    ((time(1) / time(most) - 1.0) / f64::from(most - 1)).clamp(0.0, 1.0)
}

/// Measures unmapping a page of this process, while other CPUs run the process and while none does.
fn flush(threads: usize) -> Result<Line, Error> {
    let alone = flush_ns()?;
    if threads < 2 {
        return Ok(Line { call_ns: alone, unit_ns: 0.0 });
    }
    let cpus = host::cpus()?;
    let over = AtomicBool::new(false);
    let crowded = std::thread::scope(|scope| {
        for &cpu in &cpus[1..] {
            let over = &over;
            scope.spawn(move || {
                // If pinning fails, the thread still runs, only less surely on another CPU.
                let _ = host::stay_on(cpu);
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let timed = scope.spawn(|| host::stay_on(cpus[0]).and_then(|()| flush_ns())).join();
        over.store(true, Ordering::Relaxed);
        timed.unwrap_or_else(|_| Err(failed("a thread that flushes panicked")))
    })?;
    Ok(Line { call_ns: alone, unit_ns: ((crowded - alone) / (threads - 1) as f64).max(0.0) })
}

/// Takes the median here, as a CPU that other load has taken need not be notified at all.
fn flush_ns() -> Result<f64, Error> {
    let mut page = Buffer::new(4096)?;
    let mut times: Vec<f64> = (0..2000)
        .map(|_| {
            page.dirty();
            let started = Instant::now();
            page.forget();
            started.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(median(&times).unwrap_or(0.0))
}

/// Measures pools of other sizes than those that are predicted.
fn pools(costs: &mut Costs) -> Result<(), Error> {
    let machine = synthetic(64 << 30, 1, 1)?;
    let plain = Pool::open(&machine, false)?;
    let two = |size, few, many| {
        let least = |pages| {
            plain
                .resize(size, pages, Maps::Kept, 1, RUNS * 3)
                .map(|(fill, empty)| (fill.least * 1e6, empty.least * 1e6))
        };
        let ((few_fill, few_empty), (many_fill, many_empty)) = (least(few)?, least(many)?);
        let (few, many) = (few as f64, many as f64);
        Ok::<_, Error>((
            Line::through((few, few_fill), (many, many_fill)),
            Line::through((few, few_empty), (many, many_empty)),
        ))
    };
    (costs.fill_two_mib, costs.empty_two_mib) = two(PoolSize::TwoMib, 4096, 16384)?;
    (costs.fill_one_gib, costs.empty_one_gib) = two(PoolSize::OneGib, 2, 40)?;
    drop(plain);
    let machine = synthetic(8 << 30, 1, 1)?;
    let mapped = Pool::open(&machine, true)?;
    let run = |size, pages, maps| {
        mapped
            .resize(size, pages, maps, 1, RUNS)
            .map(|(fill, empty)| (fill.least * 1e6, empty.least * 1e6))
    };
    let (few, many) = (128, 384);
    let map_ns = |rate: Rate| few as f64 * 32768.0 / rate.of(1.0) * 1e9;
    // So few pages take one system call and are split at other costs than many, so their cost
    // without maps is measured separately.
    let (kept_fill, kept_empty) = run(PoolSize::TwoMib, few, Maps::Kept)?;
    let (fill, few_leave) = run(PoolSize::TwoMib, few, Maps::Lazy)?;
    costs.withdraw_ns = ((fill - kept_fill - map_ns(costs.release)) / few as f64).max(0.0);
    let (_, empty) = run(PoolSize::TwoMib, few, Maps::Eager)?;
    costs.restore_ns = ((empty - kept_empty - map_ns(costs.supply)) / few as f64).max(0.0);
    // The system has just taken the map back and polluted the caches, so this costs more than
    // without maps.
    let (_, many_leave) = run(PoolSize::TwoMib, many, Maps::Lazy)?;
    costs.leave_two_mib = Line::through((few as f64, few_leave), (many as f64, many_leave));
    let leave =
        |pages| run(PoolSize::OneGib, pages, Maps::Lazy).map(|(_, empty)| (pages as f64, empty));
    costs.leave_one_gib = Line::through(leave(1)?, leave(3)?);
    Ok(())
}
