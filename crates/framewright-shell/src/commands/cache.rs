//! `cache`: pages that are kept as long as nobody needs their memory, as a kernel keeps what it
//! read from files. Requests that find too little and reclaim in the background take the oldest
//! ([`Host::reclaim_relay`]).

use super::arguments;
use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::{Counted, Size};
use framewright::Platform;

/// Pages between two checks for an interrupt.
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
            let damaged = shell.cache().and_then(|(cache, _)| {
                cache.clear();
                cache.damaged()
            });
            shell.close_cache();
            if let Some(pfn) = damaged {
                return Err(io.fail(format_args!(
                    "pfn {pfn} does not hold what was written there: somebody else has it too"
                )));
            }
        }
        _ => return Err(io.wrong(format_args!("read SIZE, free, or nothing"))),
    }
    status(shell, io)
}

/// As if so many pages of a file were read, of which none is there.
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

fn status<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let Some((cache, is_registered)) = shell.cache() else {
        writeln!(io.out, "nothing is cached")?;
        return Ok(());
    };
    if let Some(pfn) = cache.damaged() {
        return Err(io.fail(format_args!(
            "pfn {pfn} does not hold what was written there: somebody else has it too"
        )));
    }
    let events = shell.manager.pressure().events();
    writeln!(
        io.out,
        "{} cached; {} given up{}; of all that was ever freed, {} in the background and {} while a \
         request waited",
        Size::of_pages(cache.pages()),
        Size::of_pages(cache.given_up()),
        if is_registered { "" } else { " (nobody asks for them here)" },
        Size::of_pages(events.background_pages),
        Size::of_pages(events.reclaim_pages),
    )?;
    Ok(())
}
