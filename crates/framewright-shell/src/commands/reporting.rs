//! `reporting`: shows and controls free page reporting.

use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::Platform;
use framewright::zone::Zone;

/// How long a flush may take to begin or end, in addition to the device's time-out.
const PATIENCE_NS: u64 = 60_000_000_000;
/// The time between two checks.
const POLL_NS: u64 = 1_000_000;

pub(super) fn reporting<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let reporting = shell.manager.reporting();
    match arguments {
        [] | ["status"] => status(shell, io),
        ["flush"] => flush(shell, io),
        ["pause"] => {
            reporting.pause();
            Ok(())
        }
        ["resume"] => {
            reporting.resume();
            Ok(())
        }
        ["pools", word @ ("on" | "off")] => {
            reporting.set_pools(*word == "on");
            Ok(())
        }
        _ => Err(io.wrong(format_args!("expected status, flush, pause, resume or pools on|off"))),
    }
}

fn status<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let manager = shell.manager;
    let reporting = manager.reporting();
    let device = match (reporting.is_registered(), reporting.is_paused()) {
        (false, _) => "no device",
        (true, false) => "on",
        (true, true) => "paused",
    };
    let (pace, delay_ms) = (reporting.pace().name(), reporting.delay_ms());
    write!(io.out, "{device}, pace {pace}, delay {delay_ms} ms, order ")?;
    match reporting.order() {
        Some(order) => write!(io.out, "{}", order.get())?,
        None => write!(io.out, "as the device says")?,
    }
    writeln!(io.out, "{}", if reporting.has_pools() { ", with pools of huge pages" } else { "" })?;
    let counters = manager.reporting_counters();
    let sum = |of: fn(&Zone) -> u64| manager.zones().iter().map(of).sum::<u64>();
    for (name, pages) in [
        ("reported so far", counters.reported_pages),
        ("of pools", counters.pool_pages),
        ("handed out again", counters.reused_pages),
        ("free, reported", sum(Zone::reported_pages)),
        ("free, not reported", sum(Zone::unreported_pages)),
    ] {
        writeln!(
            io.out,
            "{name:<18} {:>12} {:>12}",
            Size::of_pages(pages),
            Counted(pages, "page")
        )?;
    }
    writeln!(
        io.out,
        "{}, {}, {} busy, {}, {}, {}",
        Counted(counters.calls, "call"),
        Counted(counters.errors, "error"),
        Counted(counters.busy, "time"),
        Counted(counters.timeouts, "time-out"),
        Counted(counters.resets, "reset"),
        format_args!("{} pass{}", counters.passes, if counters.passes == 1 { "" } else { "es" })
    )?;
    Ok(())
}

/// Reports all free memory, and returns when that is done.
fn flush<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let manager = shell.manager;
    let reporting = manager.reporting();
    if !reporting.is_registered() {
        return Err(io.fail(format_args!("no device takes reports")));
    }
    let clock = || manager.platform().now_ns();
    let start = clock().ok_or_else(|| io.fail(format_args!("this machine has no clock")))?;
    let patience =
        PATIENCE_NS.saturating_add(u64::from(reporting.timeout_ms()).saturating_mul(1_000_000));
    let before = manager.reporting_counters();
    reporting.flush();
    loop {
        let now = manager.reporting_counters();
        if now.flushes != before.flushes {
            let pages = now.reported_pages - before.reported_pages;
            writeln!(
                io.out,
                "reported {} in {}",
                Size::of_pages(pages),
                Counted(now.calls - before.calls, "call")
            )?;
            return Ok(());
        }
        if now.errors != before.errors {
            return Err(io.fail(format_args!(
                "the device failed or refused memory; what is left is reported later"
            )));
        }
        if clock().is_none_or(|now| now.saturating_sub(start) > patience) {
            return Err(io.fail(format_args!("the device does not answer")));
        }
        if shell.host.is_interrupted() {
            return Err(io.interrupted());
        }
        shell.host.pause(POLL_NS);
    }
}
