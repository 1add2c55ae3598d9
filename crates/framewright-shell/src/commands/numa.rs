//! `numa`: nodes and their speeds, and allocations under a policy.

use super::arguments;
use super::memory::{failed, give_up};
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::owned::give_back;
use crate::shell::Shell;
use crate::size::{Counted, Size};
use core::fmt::{self, Write};
use framewright::manager::{InterleaveCursor, NumaPolicy, PolicyMode, Weights};
use framewright::units::{MAX_NODES, NodeMask, Order};
use framewright::{Platform, Request};

/// The number of runs between two checks for an interrupt.
const CHECK_EVERY: u64 = 1024;

/// The name of each mode in this command.
const MODES: [(&str, PolicyMode); 7] = [
    ("default", PolicyMode::Default),
    ("preferred", PolicyMode::Preferred),
    ("bind", PolicyMode::Bind),
    ("interleave", PolicyMode::Interleave),
    ("local", PolicyMode::Local),
    ("preferred-many", PolicyMode::PreferredMany),
    ("weighted", PolicyMode::WeightedInterleave),
];

/// What to allocate, and where.
struct Wanted {
    request: Request,
    count: u64,
    mode: PolicyMode,
    nodes: NodeMask,
    weights: Option<Weights>,
}

impl Wanted {
    fn parse(mode: &str, arguments: &[&str], io: &mut Io<'_>) -> Result<Self, Failed> {
        let found = MODES.into_iter().find(|(name, _)| *name == mode);
        let (_, mode) = found.ok_or_else(|| {
            io.wrong(format_args!("{mode}: no such policy; `help numa` lists them"))
        })?;
        let request = Request::new(Order::PAGE);
        let (nodes, weights) = (NodeMask::EMPTY, None);
        let mut wanted = Self { request, count: 1, mode, nodes, weights };
        for (index, &argument) in arguments.iter().enumerate() {
            match argument.split_once('=') {
                Some((name, value)) => wanted.set(name, value, io)?,
                None if index == 0 => {
                    wanted.nodes =
                        argument.parse().map_err(|error| io.wrong(format_args!("{error}")))?;
                }
                None => return Err(io.wrong(format_args!("{argument}: nodes come first"))),
            }
        }
        Ok(wanted)
    }

    fn set(&mut self, name: &str, value: &str, io: &mut Io<'_>) -> Result<(), Failed> {
        match name {
            "order" => self.request.pages = arguments::order(name, value, io)?.pages(),
            "pages" => self.request.pages = arguments::number(name, value, io)?,
            "count" => self.count = arguments::number(name, value, io)?,
            "type" => self.request.migrate_type = arguments::migrate_type(value, io)?,
            "weights" => self.weights = Some(weights(value, io)?),
            _ => {
                return Err(
                    io.wrong(format_args!("{name}= is not known; `help numa` shows what is"))
                );
            }
        }
        Ok(())
    }
}

/// Parses the weights of the first nodes, in ascending order.
fn weights(text: &str, io: &mut Io<'_>) -> Result<Weights, Failed> {
    let mut all = [1; MAX_NODES];
    for (index, part) in text.split(',').enumerate() {
        let weight = arguments::number("a weight", part, io)?;
        let weight = u8::try_from(weight)
            .map_err(|_| io.wrong(format_args!("a weight is 1 to 255, not {weight}")))?;
        *all.get_mut(index)
            .ok_or_else(|| io.wrong(format_args!("at most {MAX_NODES} weights")))? = weight;
    }
    Weights::new(&all).map_err(|error| io.wrong(format_args!("{error}")))
}

pub(super) fn numa<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match *arguments {
        [] => show(shell, io),
        ["tier", ref rest @ ..] => set_tier(shell, rest, io),
        ["bandwidth", ref rest @ ..] => set_bandwidth(shell, rest, io),
        [mode, ref rest @ ..] => allocate(shell, mode, rest, io),
    }
}

/// Allocates under a policy.
fn allocate<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    mode: &str,
    rest: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let wanted = Wanted::parse(mode, rest, io)?;
    if wanted.count == 0 {
        return Err(io.wrong(format_args!("count must be at least 1")));
    }
    if wanted.weights.is_some() && wanted.mode != PolicyMode::WeightedInterleave {
        return Err(io.wrong(format_args!("weights= is for `numa weighted` only")));
    }
    let policy = NumaPolicy::new(wanted.mode, wanted.nodes);
    let mut policy = policy.map_err(|error| io.wrong(format_args!("{error}")))?;
    if let Some(weights) = &wanted.weights {
        policy = policy.with_weights(weights);
    }
    let handle = shell.held.open();
    let (mut cursor, mut runs) = (InterleaveCursor::START, [0_u64; MAX_NODES]);
    for index in 0..wanted.count {
        if index % CHECK_EVERY == CHECK_EVERY - 1 && shell.host.is_interrupted() {
            give_up(shell, handle);
            return Err(io.interrupted());
        }
        let placed = match shell.manager.numa().allocate(&wanted.request, &policy, &mut cursor) {
            Ok(placed) => placed,
            Err(error) => {
                give_up(shell, handle);
                return Err(failed(io, index, wanted.count, format_args!("{error}")));
            }
        };
        if shell.held.add(handle, placed.range).is_err() {
            // It was just allocated, so freeing it cannot fail.
            let _ = give_back(shell.manager, placed.range);
            give_up(shell, handle);
            let why = format_args!("the shell has no room to record more");
            return Err(failed(io, index, wanted.count, why));
        }
        if let Some(runs) = runs.get_mut(placed.node().index()) {
            *runs += 1;
        }
    }
    let pages = wanted.request.pages;
    let size = Size::of_pages(wanted.count.saturating_mul(pages));
    write!(io.out, "{handle}: {} x {}, {size}:", wanted.count, Counted(pages, "page"))?;
    let mut comma = "";
    for (node, runs) in runs.into_iter().enumerate().filter(|&(_, runs)| runs != 0) {
        write!(io.out, "{comma} {runs} of node {node}")?;
        comma = ",";
    }
    Ok(writeln!(io.out)?)
}

/// Sets the memory tier of a node, which says how slow its memory is.
fn set_tier<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let [node, tier] = arguments else {
        return Err(io.wrong(format_args!("which node, and which tier? Higher tiers are slower")));
    };
    let (node, tier) = (arguments::node(node, io)?, arguments::number("a tier", tier, io)?);
    let tier = u8::try_from(tier)
        .map_err(|_| io.wrong(format_args!("a tier must be 0 to 255, not {tier}")))?;
    let numa = shell.manager.numa();
    numa.set_tier(node, tier).map_err(|error| io.fail(format_args!("{error}")))?;
    write!(io.out, "node {node}: tier {tier}")?;
    let (targets, allowed) = (numa.demotion_targets(node), numa.demotion_allowed(node));
    if targets.is_empty() {
        return Ok(writeln!(io.out, ", the slowest: its pages are not demoted")?);
    }
    Ok(writeln!(io.out, ", its pages are demoted to {targets}, or to {allowed} when that is full")?)
}

/// Sets how much a node can move in a second.
fn set_bandwidth<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let [node, bandwidth] = arguments else {
        return Err(io.wrong(format_args!("which node, and how many MB/s? 0 means unknown")));
    };
    let node = arguments::node(node, io)?;
    let bandwidth = arguments::number("a bandwidth in MB/s", bandwidth, io)?;
    let numa = shell.manager.numa();
    numa.set_bandwidth(node, bandwidth).map_err(|error| io.fail(format_args!("{error}")))?;
    let weight = numa.weight(node);
    let follows = if numa.weights_are_auto() { "" } else { ", which was set by hand and is kept" };
    Ok(writeln!(io.out, "node {node}: {bandwidth} MB/s, weight {weight}{follows}")?)
}

/// Counts the bytes that are written.
struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Shows the properties of nodes, and the results of policies.
fn show<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let numa = shell.manager.numa();
    writeln!(
        io.out,
        "node weight tier demotes-to        hit       miss    foreign interleave refused       MB/s"
    )?;
    for node in numa.with_memory().nodes() {
        let (counts, targets) = (numa.counts(node), numa.demotion_targets(node));
        write!(io.out, "{:>4} {:>6} {:>4} ", node.index(), numa.weight(node), numa.tier(node))?;
        if targets.is_empty() {
            write!(io.out, "{:>10}", "-")?;
        } else {
            // A list ignores a format width, and may be longer than any column.
            let mut length = Length(0);
            write!(length, "{targets}")?;
            write!(io.out, "{:1$}{targets}", "", 10_usize.saturating_sub(length.0))?;
        }
        write!(
            io.out,
            " {:>10} {:>10} {:>10} {:>10} {:>7} ",
            counts.hit, counts.miss, counts.foreign, counts.interleave, counts.refused
        )?;
        match numa.bandwidth(node) {
            0 => writeln!(io.out, "{:>10}", "-")?,
            known => writeln!(io.out, "{known:>10}")?,
        }
    }
    Ok(())
}
