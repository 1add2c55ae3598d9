//! Parses numbers and names in a command's arguments.

use crate::host::Host;
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Size;
use framewright::Platform;
use framewright::manager::Budget;
use framewright::parameters::parse_size;
use framewright::procfs::parse_number;
use framewright::units::{
    NodeId, Order, PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange,
};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType, ZoneKind};

/// The grades of blocks by name.
const GRADES: [(&str, Grade); 3] =
    [("any", Grade::Any), ("movable", Grade::MovableOnly), ("removable", Grade::Removable)];

/// Parses a decimal number, or a hexadecimal one after `0x`.
pub(super) fn number(what: &str, text: &str, io: &mut Io<'_>) -> Result<u64, Failed> {
    // In files a leading zero means octal, which nobody expects here.
    let decimal = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok());
    let number = decimal.flatten().or_else(|| parse_number(text).ok());
    number.ok_or_else(|| io.wrong(format_args!("{what} must be a number, not {text:?}")))
}

pub(super) fn order(what: &str, text: &str, io: &mut Io<'_>) -> Result<Order, Failed> {
    let order = text.parse().ok().and_then(Order::new);
    order.ok_or_else(|| {
        io.wrong(format_args!("{what} must be 0 to {}, not {text:?}", Order::MAX.get()))
    })
}

pub(super) fn node(text: &str, io: &mut Io<'_>) -> Result<NodeId, Failed> {
    let node = text.parse().ok().and_then(NodeId::new);
    node.ok_or_else(|| io.wrong(format_args!("node must be the number of a node, not {text:?}")))
}

pub(super) fn zone(text: &str, io: &mut Io<'_>) -> Result<ZoneKind, Failed> {
    let kind = ZoneKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
    kind.ok_or_else(|| io.wrong(format_args!("zone must be DMA, DMA32 or Normal, not {text:?}")))
}

pub(super) fn migrate_type(text: &str, io: &mut Io<'_>) -> Result<MigrateType, Failed> {
    // The other types cannot be allocated.
    let kinds = MigrateType::ALL.into_iter().filter(|kind| kind.is_mergeable());
    let kind = kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
    kind.ok_or_else(|| {
        io.wrong(format_args!("type must be Unmovable, Movable or Reclaimable, not {text:?}"))
    })
}

/// The grade with this name.
pub(super) fn grade(name: &str) -> Option<Grade> {
    GRADES.into_iter().find(|&(known, _)| known == name).map(|(_, grade)| grade)
}

pub(super) fn grade_name(grade: Grade) -> &'static str {
    GRADES.into_iter().find(|&(_, known)| known == grade).map_or("any", |(name, _)| name)
}

/// Parses an address in bytes, at the beginning of a page.
pub(super) fn address(what: &str, text: &str, io: &mut Io<'_>) -> Result<Pfn, Failed> {
    let address = number(what, text, io)?;
    if address.is_multiple_of(PAGE_SIZE) {
        Ok(Pfn::containing(address))
    } else {
        Err(io.wrong(format_args!("{what} must be a multiple of {PAGE_SIZE:#x}, not {text:?}")))
    }
}

/// Parses a size such as 512M into pages, rounded up.
pub(super) fn size_pages(text: &str, io: &mut Io<'_>) -> Result<u64, Failed> {
    match parse_size(text) {
        Ok(bytes) => Ok(bytes.div_ceil(PAGE_SIZE)),
        Err(error) => Err(io.wrong(format_args!("{text:?}: {error}"))),
    }
}

/// Parses `SIZE@ADDRESS` or frame numbers `FIRST..END`, with at least one page.
pub(super) fn range(text: &str, io: &mut Io<'_>) -> Result<PfnRange, Failed> {
    let (start, pages) = if let Some((size, place)) = text.split_once('@') {
        (address("an address", place, io)?, size_pages(size, io)?)
    } else if let Some((first, end)) = text.split_once("..") {
        let first = number("the first frame", first, io)?;
        let end = number("the frame after the last", end, io)?;
        (Pfn(first), end.saturating_sub(first))
    } else {
        return Err(io.wrong(format_args!("expected SIZE@ADDRESS or FRAME..FRAME, not {text:?}")));
    };
    if pages == 0 {
        return Err(io.wrong(format_args!("{text}: the range must have at least one page")));
    }
    let end = start.0.checked_add(pages).map(Pfn);
    let end = end.filter(|end| end.0 <= PHYSICAL_ADDRESS_END / PAGE_SIZE);
    let end =
        end.ok_or_else(|| io.wrong(format_args!("{text}: the range ends beyond all addresses")))?;
    Ok(PfnRange { start, end })
}

/// Parses a [`range`] of whole blocks.
pub(super) fn blocks(text: &str, io: &mut Io<'_>) -> Result<BlockRange, Failed> {
    let PfnRange { start, end } = range(text, io)?;
    let block = |pfn: Pfn| {
        let number = u32::try_from(pfn.0 / PAGES_PER_BLOCK).ok()?;
        pfn.0.is_multiple_of(PAGES_PER_BLOCK).then_some(BlockNumber(number))
    };
    match (block(start), block(end)) {
        (Some(start), Some(end)) => Ok(BlockRange { start, end }),
        _ => Err(io.wrong(format_args!(
            "{text}: the range must be whole blocks of {}, at least one",
            Size::of_pages(PAGES_PER_BLOCK)
        ))),
    }
}

/// Parses a number of seconds that a clock can count.
pub(super) fn seconds(text: &str, io: &mut Io<'_>) -> Result<u64, Failed> {
    let seconds = number("a time in seconds", text, io)?;
    if seconds <= u64::from(u32::MAX) {
        Ok(seconds)
    } else {
        Err(io.wrong(format_args!("{text} seconds are too many")))
    }
}

/// A trailing `within MS`: how long a call may move memory; without it there is no limit.
#[derive(Clone, Copy)]
pub(super) struct Within(Option<u64>);

impl Within {
    /// Splits the arguments into those before `within` and the limit.
    pub(super) fn split<'a, 'w, P: Platform, H: Host>(
        shell: &Shell<'_, P, H>,
        arguments: &'a [&'w str],
        io: &mut Io<'_>,
    ) -> Result<(&'a [&'w str], Self), Failed> {
        match arguments {
            [rest @ .., "within", ms] => {
                let ms = number("a time in milliseconds", ms, io)?;
                // A limit of 0 is over at once, so it needs no clock.
                if ms != 0 && shell.manager.platform().now_ns().is_none() {
                    return Err(io.fail(format_args!("this machine has no clock")));
                }
                Ok((rest, Self(Some(ms))))
            }
            [.., "within"] => Err(io.wrong(format_args!("within how many milliseconds?"))),
            _ => Ok((arguments, Self(None))),
        }
    }

    /// The budget, which begins now.
    pub(super) fn budget<P: Platform>(self, platform: &P) -> Budget {
        match self.0 {
            None => Budget::UNLIMITED,
            Some(0) => Budget::until(0),
            Some(ms) => {
                let ns = ms.saturating_mul(1_000_000);
                Budget::until(platform.now_ns().map_or(0, |now| now.saturating_add(ns)))
            }
        }
    }
}

/// `SECONDS [seed N]`: how long to do random work. The time begins when this is parsed.
pub(super) struct Timed {
    pub(super) seed: u64,
    start_ns: u64,
    pub(super) end_ns: u64,
}

impl Timed {
    pub(super) fn parse<P: Platform, H: Host>(
        shell: &Shell<'_, P, H>,
        arguments: &[&str],
        io: &mut Io<'_>,
    ) -> Result<Self, Failed> {
        let (length, seed) = match arguments {
            [length] => (length, 1),
            [length, "seed", seed] => (length, number("seed", seed, io)?),
            _ => return Err(io.wrong(format_args!("expected SECONDS [seed N]"))),
        };
        let length = seconds(length, io)?;
        let clock = shell.manager.platform().now_ns();
        let start_ns = clock.ok_or_else(|| io.fail(format_args!("this machine has no clock")))?;
        Ok(Self {
            seed,
            start_ns,
            end_ns: start_ns.saturating_add(length.saturating_mul(1_000_000_000)),
        })
    }

    /// Whether the time is over.
    pub(super) fn is_over<P: Platform>(&self, platform: &P) -> bool {
        platform.now_ns().is_none_or(|now| now >= self.end_ns)
    }

    /// The time since the beginning.
    pub(super) fn elapsed_ms<P: Platform>(&self, platform: &P) -> u64 {
        platform.now_ns().map_or(0, |now| now.saturating_sub(self.start_ns)) / 1_000_000
    }
}
