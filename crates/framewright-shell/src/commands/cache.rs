//! `cache`: clean pages that are kept until their memory is needed, like a kernel's page cache. A
//! request that finds too little memory, and background reclaim, take the oldest pages
//! ([`Host::reclaim_relay`]).

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::Platform;
use framewright_workload::{CleanPages, PileError};

/// The number of pages between two checks for an interrupt.
const CHECK_EVERY: u64 = 1024;

pub(super) fn cache<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    match arguments {
        [] => {}
        ["read", size] => {
            let pages = arguments::size_pages(size, io)?;
            read(shell, pages, io)?;
        }
        ["free"] => {
            let whole = shell.cache().map_or(Ok(()), |(cache, _)| {
                cache.clear();
                check(cache, io)
            });
            shell.close_cache();
            whole?;
        }
        _ => return Err(io.wrong(format_args!("expected read SIZE, free, or no argument"))),
    }
    status(shell, io)
}

/// Acts as if this many pages of a file were read, none of which is in the cache.
fn read<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    pages: u64,
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let host = shell.host;
    let cache = shell.open_cache().map_err(|error| io.fail(format_args!("{error}")))?;
    for done in 0..pages {
        if done % CHECK_EVERY == CHECK_EVERY - 1 && host.is_interrupted() {
            return Err(io.interrupted());
        }
        cache
            .add()
            .map_err(|error| io.fail(format_args!("{error}, after {}", Counted(done, "page"))))?;
    }
    Ok(())
}

/// Fails if another user has written to a page.
fn check<P: Platform>(cache: &CleanPages<'_, P>, io: &mut Io<'_>) -> Result<(), Failed> {
    let damaged = cache.damaged().map(PileError::Damaged);
    damaged.map_or(Ok(()), |error| Err(io.fail(format_args!("{error}"))))
}

fn status<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let Some((cache, is_registered)) = shell.cache() else {
        writeln!(io.out, "nothing is cached")?;
        return Ok(());
    };
    check(cache, io)?;
    let events = shell.manager.pressure().events();
    writeln!(
        io.out,
        "{} cached; {} given up{}; reclaimed so far: {} in the background and {} while a request \
         waited",
        Size::of_pages(cache.pages()),
        Size::of_pages(cache.given_up()),
        if is_registered { "" } else { " (not registered for reclaim)" },
        Size::of_pages(events.background_pages),
        Size::of_pages(events.reclaim_pages),
    )?;
    Ok(())
}
