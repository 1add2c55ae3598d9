//! `hugetlb` and `resize`: somebody who uses huge pages, and somebody who provides them.

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io, Text};
use crate::shell::Shell;
use core::fmt::Write;
use framewright::Platform;
use framewright::early::NodeChoice;
use framewright::parameters::parse_size;
use framewright::pools::{NodeMask, PoolSize};
use framewright::units::NodeId;
use framewright_stress::Pile;

/// Bytes of a path of a pool's file.
const LONGEST_PATH: usize = 96;

/// Reserves pages, takes them from the pool, writes to every 4 KiB of them, looks whether that still stands there, and frees them.
pub(super) fn hugetlb<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let (size, count, node) = which(shell, arguments, io)?;
    let pool = shell.manager.pool(size);
    let (nodes, choice) =
        node.map_or((NodeMask::ALL, NodeChoice::Any), |node| (NodeMask::only(node), NodeChoice::Exact(node)));
    let now_ns = || shell.manager.platform().now_ns();
    let started_ns = now_ns();
    pool.reserve(count, nodes).map_err(|error| io.fail(format_args!("{count} pages: {error}")))?;
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
    let checked_ns = now_ns();
    if result.is_ok()
        && let Err(error) = pile.check()
    {
        result = Err(io.fail(format_args!("{error}")));
    }
    let ended_ns = now_ns();
    if let Err(error) = pile.free_all() {
        result = result.and(Err(io.fail(format_args!("{error}"))));
    }
    if taken < count
        && let Err(error) = pool.unreserve(count - taken)
    {
        result = result.and(Err(io.fail(format_args!("{error}"))));
    }
    let freed_ns = now_ns();
    result?;
    write!(io.out, "{count} pages of {size}: each 4 KiB written and read back")?;
    let times = started_ns.zip(checked_ns).zip(ended_ns.zip(freed_ns));
    if let Some(((started, checked), (ended, freed))) = times {
        let us = |from: u64, to: u64| to.saturating_sub(from) / 1000;
        let (written, read, freed) = (us(started, checked), us(checked, ended), us(ended, freed));
        write!(io.out, ", {written} us to take and write, {read} us to check, {freed} us to free")?;
    }
    Ok(writeln!(io.out)?)
}

/// A size, a number of pages, and perhaps a node that there is.
fn which<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(PoolSize, u64, Option<NodeId>), Failed> {
    let (size, count, node) = match arguments {
        [size, count] => (size, count, None),
        [size, count, "node", node] => (size, count, Some(arguments::node(node, io)?)),
        _ => return Err(io.wrong(format_args!("SIZE COUNT, and perhaps node N"))),
    };
    let size = parse_size(size)
        .ok()
        .and_then(PoolSize::of_bytes)
        .ok_or_else(|| io.wrong(format_args!("{size:?}: pools are of pages of 2M and 1G")))?;
    let count = arguments::number("how many pages", count, io)?;
    if let Some(node) = node {
        shell.manager.pool(size).node_counts(node).map_err(|error| io.fail(format_args!("{error}")))?;
    }
    Ok((size, count, node))
}

/// Writes to the file, so that whoever helps with that helps.
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
    write!(io.out, "{size}: {} pages to stay, {} surplus", counts.target, counts.all.surplus)?;
    if let Some((started, ended)) = started_ns.zip(ended_ns) {
        write!(io.out, ", {} ns", ended.saturating_sub(started))?;
    }
    Ok(writeln!(io.out)?)
}
