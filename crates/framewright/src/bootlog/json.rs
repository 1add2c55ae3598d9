//! Writes the JSON object of `framewright boot --json`. All names and values are ASCII words and
//! numbers, so nothing needs escaping.

use crate::manager::Manager;
use crate::platform::Platform;
use core::fmt;

/// Prints nanoseconds as microseconds with three decimals, or `null`.
struct Microseconds(Option<u64>);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ns) => write!(f, "{}.{:03}", ns / 1000, ns % 1000),
            None => f.write_str("null"),
        }
    }
}

/// Prints nanoseconds as milliseconds with six decimals, or `null`.
struct Milliseconds(Option<u64>);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ns) => write!(f, "{}.{:06}", ns / 1_000_000, ns % 1_000_000),
            None => f.write_str("null"),
        }
    }
}

/// Writes the object on one line, without the members that only the surrounding program knows
/// (`log`, `qemu`).
///
/// # Errors
/// The errors of `out`.
pub fn json<P: Platform>(
    out: &mut dyn fmt::Write,
    platform_name: &str,
    manager: &Manager<P>,
) -> fmt::Result {
    let policy = manager.vmemmap().policy().name();
    let workers: u32 = manager.vmemmap().deferred_nodes().map(|node| node.threads).sum();
    // A thread that finished one node and then helped another counts as a worker of both.
    let threads = workers.min(manager.cpus().count()).max(1);
    write!(
        out,
        r#"{{"platform":"{platform_name}","policy":"{policy}","threads":{threads},"nodes":["#
    )?;
    for (index, node) in manager.nodes().iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let zones = || manager.views().filter(|zone| zone.id().node == node.id);
        let present: u64 = zones().map(|zone| zone.present_pages()).sum();
        let managed: u64 = zones().map(|zone| zone.managed_pages()).sum();
        write!(
            out,
            "{comma}{{\"node\":{},\"cpus\":{},\"present_pages\":{present},\
             \"managed_pages\":{managed},\"init_ms\":{},\"bookkeeping_ms\":{}}}",
            node.id,
            node.cpus,
            Milliseconds(node.init_ns),
            Milliseconds(node.bookkeeping_ns),
        )?;
    }
    out.write_str(r#"],"zones":["#)?;
    for (index, zone) in manager.views().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let span = zone.span();
        write!(out, r#"{comma}{{"node":{},"zone":"{}""#, zone.id().node, zone.id().kind)?;
        write!(out, r#","start_pfn":{},"spanned_pages":{}"#, span.start.0, span.pages())?;
        write!(
            out,
            r#","present_pages":{},"managed_pages":{}"#,
            zone.present_pages(),
            zone.managed_pages()
        )?;
        write!(
            out,
            r#","free_pages":{},"unaccepted_pages":{}}}"#,
            zone.free_pages(),
            zone.unaccepted_pages()
        )?;
    }
    out.write_str(r#"],"deferred":["#)?;
    for (index, node) in manager.vmemmap().deferred_nodes().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(
            out,
            r#"{comma}{{"node":{},"pages":{},"grown_pages":{},"threads":{},"elapsed_ms":{}}}"#,
            node.node,
            node.pages,
            node.grown_pages,
            node.threads,
            Milliseconds(node.elapsed_ns),
        )?;
    }
    let totals = manager.totals();
    let times = manager.times();
    write!(
        out,
        "],\"totals\":{{\"present_pages\":{},\"managed_pages\":{},\"reserved_pages\":{},\
         \"deferred_pages\":{},\"unaccepted_pages\":{}",
        totals.present_pages,
        totals.managed_pages,
        totals.reserved_pages,
        totals.deferred_pages,
        totals.unaccepted_pages,
    )?;
    write!(
        out,
        ",\"metadata_bytes\":{},\"vmemmap_bytes\":{},\"first_alloc_us\":{},\
         \"bring_up_us\":{},\"all_memory_us\":{}}}}}",
        manager.metadata_bytes(),
        manager.vmemmap().bytes(),
        Microseconds(times.first_alloc_ns),
        Microseconds(times.bring_up_ns),
        Microseconds(times.all_memory_ns),
    )
}
