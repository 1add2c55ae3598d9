//! `hugetlb` and `resize`: use the huge pages of a pool, and resize a pool.

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io, Text};
use crate::shell::Shell;
use crate::size::Counted;
use core::fmt::Write;
use framewright::Platform;
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::memblock::NodeChoice;
use framewright::parameters::parse_size;
use framewright::units::NodeId;
use framewright_workload::{Pile, PileError};

/// The longest path of a pool's file, in bytes.
const LONGEST_PATH: usize = 96;

/// What `hugetlb` has to do.
struct Use {
    size: PoolSize,
    count: u64,
    seconds: u64,
    node: Option<NodeId>,
}

/// When the parts of a round ended.
#[derive(Clone, Copy, Default)]
struct Times {
    started_ns: Option<u64>,
    written_ns: Option<u64>,
    checked_ns: Option<u64>,
    freed_ns: Option<u64>,
}

/// Reserves pages, takes them from the pool, writes to every 4 KiB of them, uses them through a
/// window if the machine has one, checks that all content is still there, and frees them: once, or
/// repeatedly for some seconds. Afterwards the pool's counts must be what they were.
pub(super) fn hugetlb<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    // Pages that are being reported are not free for a while.
    let wanted = shell.undisturbed(|| what_to_use(shell, arguments, io))?;
    let Use { size, count, seconds, .. } = wanted;
    let now_ns = || shell.manager.platform().now_ns();
    if seconds != 0 && now_ns().is_none() {
        return Err(io.fail(format_args!("this machine has no clock")));
    }
    let end_ns =
        now_ns().map_or(0, |now| now.saturating_add(seconds.saturating_mul(1_000_000_000)));
    let pool = shell.manager.pool(size);
    let (mut rounds, mut last) = (0, Times::default());
    while rounds == 0 || seconds != 0 && now_ns().is_some_and(|now| now < end_ns) {
        last = shell.undisturbed(|| {
            let before = pool.counts();
            let last = round(shell, &wanted, rounds, io)?;
            let after = pool.counts();
            if before == after {
                return Ok(last);
            }
            Err(io.fail(format_args!("the pool counted {before:?} before and {after:?} after")))
        })?;
        // A round of no pages would not check for an interrupt itself; and hosts do here what they
        // do in the background.
        if shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
        rounds += 1;
    }
    write!(io.out, "{} of {size}: each 4 KiB written and read back", Counted(count, "page"))?;
    let Times { started_ns, written_ns, checked_ns, freed_ns } = last;
    let times = started_ns.zip(written_ns).zip(checked_ns.zip(freed_ns));
    if let Some(((started, written), (checked, freed))) = times {
        let us = |from: u64, to: u64| to.saturating_sub(from) / 1000;
        let (take, check, free) = (us(started, written), us(written, checked), us(checked, freed));
        write!(io.out, ", {take} us to take and write, {check} us to check, {free} us to free")?;
    }
    if shell.host.window().is_some() {
        write!(io.out, ", used at addresses of their own")?;
    }
    if seconds != 0 {
        write!(io.out, ", {}", Counted(rounds, "round"))?;
    }
    Ok(writeln!(io.out)?)
}

/// Uses the pages once.
fn round<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    wanted: &Use,
    number: u64,
    io: &mut Io<'_>,
) -> Result<Times, Failed> {
    let &Use { size, count, node, .. } = wanted;
    let pool = shell.manager.pool(size);
    let (nodes, choice) = node.map_or((NodeMask::ALL, NodeChoice::Any), |node| {
        (NodeMask::only(node), NodeChoice::Exact(node))
    });
    let now_ns = || shell.manager.platform().now_ns();
    let started_ns = now_ns();
    pool.reserve(count, nodes)
        .map_err(|error| io.fail(format_args!("{}: {error}", Counted(count, "page"))))?;
    let mut pile = Pile::of_pool(shell.manager, size, choice);
    let mut result = Ok(());
    while result.is_ok() && pile.runs() < count {
        if shell.host.is_interrupted() {
            result = Err(io.interrupted());
        } else if let Err(error) = pile.add() {
            result = Err(io.fail(format_args!("page {} of {count}: {error}", pile.runs() + 1)));
        }
    }
    let taken = pile.runs();
    let written_ns = now_ns();
    let note = |result: Result<(), Failed>, done: Result<(), PileError>, io: &mut Io<'_>| {
        result.and_then(|()| done.map_err(|error| io.fail(format_args!("{error}"))))
    };
    if result.is_ok()
        && let Some(window) = shell.host.window()
    {
        // Each shift uses other addresses, so that a CPU with a stale translation sees another
        // page.
        for shift in [2 * number, 2 * number + 1] {
            // SAFETY: the creator of the shell guarantees that only its commands use the window.
            let used =
                unsafe { pile.use_through(window, shift, &|work| shell.host.on_each_cpu(work)) };
            result = note(result, used, io);
        }
    }
    if result.is_ok() {
        result = note(result, pile.check(), io);
    }
    let checked_ns = now_ns();
    result = match (result, pile.free_all()) {
        (Ok(()), Err(error)) => Err(io.fail(format_args!("{error}"))),
        (result, _) => result,
    };
    if taken < count
        && let Err(error) = pool.unreserve(count - taken)
    {
        result = result.and(Err(io.fail(format_args!("{error}"))));
    }
    result.map(|()| Times { started_ns, written_ns, checked_ns, freed_ns: now_ns() })
}

/// Parses the size, the number of pages and the seconds, the last two of which may be left out, and
/// optionally an existing node. The default number is all free pages, of the node if there is one,
/// that are not reserved.
fn what_to_use<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<Use, Failed> {
    let (words, node) = match arguments {
        [words @ .., "node", node] => (words, Some(arguments::node(node, io)?)),
        words => (words, None),
    };
    let (size, count, seconds) = match *words {
        [] => (None, None, None),
        [size] => (Some(size), None, None),
        [size, count] => (Some(size), Some(count), None),
        [size, count, seconds] => (Some(size), Some(count), Some(seconds)),
        _ => return Err(io.wrong(format_args!("expected [SIZE [COUNT [SECONDS]]] [node N]"))),
    };
    let size =
        size.map_or(Ok(shell.manager.hugetlb().default_size()), |size| pool_size(size, io))?;
    let seconds = seconds.map_or(Ok(0), |seconds| arguments::seconds(seconds, io))?;
    let on_node = match node {
        Some(node) => free_on_node(shell, size, node, io)?,
        None => u64::MAX,
    };
    let counts = shell.manager.pool(size).counts();
    let all = counts.all.free.saturating_sub(counts.reserved).min(on_node);
    let count =
        count.map_or(Ok(all), |count| arguments::number("the number of pages", count, io))?;
    Ok(Use { size, count, seconds, node })
}

fn pool_size(text: &str, io: &mut Io<'_>) -> Result<PoolSize, Failed> {
    let size = parse_size(text).ok().and_then(PoolSize::of_bytes);
    size.ok_or_else(|| io.wrong(format_args!("{text:?}: pools have pages of 2M or 1G")))
}

/// The free pages of a node, if it exists.
fn free_on_node<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    size: PoolSize,
    node: NodeId,
    io: &mut Io<'_>,
) -> Result<u64, Failed> {
    let found = shell.manager.pool(size).node_counts(node);
    found.map(|counts| counts.free).map_err(|error| io.fail(format_args!("{error}")))
}

/// Parses a size, a number of pages, and optionally an existing node.
fn which<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(PoolSize, u64, Option<NodeId>), Failed> {
    let (size, count, node) = match arguments {
        [size, count] => (size, count, None),
        [size, count, "node", node] => (size, count, Some(arguments::node(node, io)?)),
        _ => return Err(io.wrong(format_args!("expected SIZE COUNT [node N]"))),
    };
    let size = pool_size(size, io)?;
    let count = arguments::number("the number of pages", count, io)?;
    if let Some(node) = node {
        free_on_node(shell, size, node, io)?;
    }
    Ok((size, count, node))
}

/// Resizes a pool through its control file, so that helpers take part.
pub(super) fn resize<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (size, count, node) = which(shell, arguments, io)?;
    let (mut path, mut text) = (Text::<LONGEST_PATH>::new(), Text::<20>::new());
    match node {
        Some(node) => write!(path, "/sys/devices/system/node/node{node}/hugepages")?,
        None => path.write_str("/sys/kernel/mm/hugepages")?,
    }
    write!(path, "/hugepages-{}kB/nr_hugepages", size.kbytes())?;
    write!(text, "{count}")?;
    let now_ns = || shell.manager.platform().now_ns();
    let started_ns = now_ns();
    let written = shell.files.write(path.as_str(), text.as_str());
    let ended_ns = now_ns();
    written.map_err(|error| io.fail(format_args!("{}: {error}", path.as_str())))?;
    let counts = shell.manager.pool(size).counts();
    let target = Counted(counts.target, "page");
    write!(io.out, "{size}: {target} to stay, {} surplus", counts.all.surplus)?;
    if let Some((started, ended)) = started_ns.zip(ended_ns) {
        write!(io.out, ", {} ns", ended.saturating_sub(started))?;
    }
    Ok(writeln!(io.out)?)
}
