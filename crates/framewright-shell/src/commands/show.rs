//! `stat`, `cpus`, `dmesg` and `verify`.

use super::none;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::Platform;

pub(super) fn dmesg<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    none(arguments, io)?;
    if shell.host.log(io.out)? {
        Ok(())
    } else {
        Err(io.fail(format_args!("this machine keeps no log")))
    }
}

pub(super) fn stat<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    none(arguments, io)?;
    let manager = shell.manager;
    let head = ["present", "managed", "free", "in blocks", "map"];
    write!(io.out, "node  zone  ")?;
    head.iter().try_for_each(|name| write!(io.out, "{name:>12}"))?;
    writeln!(io.out)?;
    for zone in manager.views() {
        write!(io.out, "{:>4}  {:<6}", zone.id().node, zone.id().kind)?;
        for pages in [
            zone.present_pages(),
            zone.managed_pages(),
            zone.free_pages(),
            zone.free_block_pages(),
            zone.descriptor_pages(),
        ] {
            write!(io.out, "{:>12}", Size::of_pages(pages))?;
        }
        writeln!(io.out)?;
    }
    let totals = manager.totals();
    let (runs, held) = shell.held.count(None);
    for (name, pages) in [
        ("managed", totals.managed_pages),
        ("free", totals.free_pages),
        ("allocated", totals.allocated_pages.saturating_sub(manager.caches().pages())),
        ("kept by CPUs", manager.caches().pages()),
        ("isolated", totals.isolated_pages),
        ("descriptors", totals.descriptor_pages),
    ] {
        writeln!(
            io.out,
            "{name:<12} {:>12} {:>12}",
            Size::of_pages(pages),
            Counted(pages, "page")
        )?;
    }
    let pages = Counted(held, "page");
    writeln!(
        io.out,
        "{:<12} {:>12} {pages:>12} in {}",
        "held here",
        Size::of_pages(held),
        Counted(runs, "run")
    )?;
    Ok(())
}

pub(super) fn cpus<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    none(arguments, io)?;
    let platform = shell.manager.platform();
    writeln!(io.out, " cpu  node  keeps frames of        keeps      at most")?;
    for cpu in 0..platform.cpus() {
        write!(io.out, "{cpu:>4}  {:>4}  ", platform.cpu_node(cpu))?;
        match shell.manager.caches().cpu(cpu) {
            Some(cache) => {
                let (now, most) = (Size::of_pages(cache.pages), Size::of_pages(cache.most_pages));
                writeln!(
                    io.out,
                    "node {} {:<7} {now:>12} {most:>12}",
                    cache.zone.node, cache.zone.kind
                )?;
            }
            None => writeln!(io.out, "nothing")?,
        }
    }
    Ok(())
}

pub(super) fn verify<P: Platform, H: Host>(
    shell: &Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    none(arguments, io)?;
    let counts = shell
        .manager
        .verify()
        .map_err(|fault| io.fail(format_args!("the tables are wrong: {fault}")))?;
    writeln!(io.out, "verified: {} of {} pages free", counts.free_pages, counts.present_pages)?;
    Ok(())
}
