//! Describes memory when it is short, in the form of Linux's `warn_alloc` and `show_mem`
//! (mm/page_alloc.c, mm/show_mem.c): the failed request and why it failed, then nodes, zones, free
//! runs by size, and pools.

use crate::block::MigrateType;
use crate::manager::{Manager, Request, ZoneView};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::units::PoolSize;
use core::fmt;

const KIB_PER_PAGE: u64 = PAGE_SIZE / 1024;

/// The state of all memory, as [`show_memory`] prints it.
struct ShowMemory<'a, P: Platform>(&'a Manager<P>);

/// A failed request, as [`allocation_failure`] prints it.
struct Failure<'a, P: Platform>(&'a Manager<P>, &'a Request);

/// Describes the state of memory as text of several lines: for each zone its free memory, its
/// watermarks, and its free runs by size, with letters for their migrate types (`U`nmovable,
/// `M`ovable, r`E`claimable, movable `O`nly, `C`MA, `I`solated). Each time the text is printed, it
/// reads the state anew.
pub fn show_memory<P: Platform>(manager: &Manager<P>) -> impl fmt::Display + '_ {
    ShowMemory(manager)
}

/// Describes why a failed request was not served, followed by [`show_memory`].
pub fn allocation_failure<'a, P: Platform>(
    manager: &'a Manager<P>,
    request: &'a Request,
) -> impl fmt::Display + 'a {
    Failure(manager, request)
}

impl<P: Platform> fmt::Display for Failure<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self(manager, request) = self;
        let kind = request.migrate_type.name();
        write!(f, "page allocation failure: {} pages, migratetype:{kind}, ", request.pages)?;
        write!(f, "node:{:?}, zone:{}: ", request.node, request.zone)?;
        match manager.shortfall(request) {
            Ok(why) => writeln!(f, "{why}")?,
            Err(error) => writeln!(f, "{error}")?,
        }
        ShowMemory(manager).fmt(f)
    }
}

impl<P: Platform> fmt::Display for ShowMemory<'_, P> {
    #[inline(never)]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manager = self.0;
        let totals = manager.totals();
        writeln!(f, "Mem-Info:")?;
        let (free, cached, isolated) =
            (totals.free_pages, manager.caches().pages(), totals.isolated_pages);
        writeln!(
            f,
            "free:{free} free_pcp:{cached} isolated:{isolated} memmap:{}",
            totals.descriptor_pages
        )?;
        for zone in manager.views() {
            state(manager, &zone, f)?;
        }
        for zone in manager.views() {
            sizes(&zone, f)?;
        }
        for node in manager.nodes() {
            for size in PoolSize::ALL {
                let Ok(counts) = manager.pool(size).node_counts(node.id) else { continue };
                write!(
                    f,
                    "Node {} hugepages_total={} hugepages_free={} ",
                    node.id, counts.nr, counts.free
                )?;
                writeln!(
                    f,
                    "hugepages_surp={} hugepages_size={}kB",
                    counts.surplus,
                    size.kbytes()
                )?;
            }
        }
        writeln!(f, "{} pages RAM", totals.present_pages)?;
        writeln!(f, "{} pages reserved", totals.reserved_pages)
    }
}

/// Writes what a zone has, and what it keeps in reserve.
fn state<P: Platform>(
    manager: &Manager<P>,
    zone: &ZoneView<'_, P>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let marks = zone.watermarks();
    let cpus = (0..manager.platform().cpus()).filter_map(|cpu| manager.caches().cpu(cpu));
    let cached: u64 = cpus.filter(|cache| cache.zone == zone.id()).map(|cache| cache.pages).sum();
    write!(f, "Node {} {}", zone.id().node, zone.id().kind)?;
    for (name, pages) in [
        ("free", zone.free_pages()),
        ("min", marks.min_pages),
        ("low", marks.low_pages),
        ("high", marks.high_pages),
        ("present", zone.present_pages()),
        ("managed", zone.managed_pages()),
        ("free_pcp", cached),
    ] {
        write!(f, " {name}:{}kB", pages * KIB_PER_PAGE)?;
    }
    write!(f, "\nlowmem_reserve[]:")?;
    let reserve = zone.lowmem_reserve();
    reserve.iter().try_for_each(|pages| write!(f, " {pages}"))?;
    writeln!(f)
}

/// Writes a zone's free runs by size.
fn sizes<P: Platform>(zone: &ZoneView<'_, P>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let areas = zone.free_areas();
    write!(f, "Node {} {}: ", zone.id().node, zone.id().kind)?;
    for (order, runs) in areas.by_order().into_iter().enumerate() {
        write!(f, "{runs}*{}kB ", KIB_PER_PAGE << order)?;
        if runs != 0 {
            f.write_str("(")?;
            for (kind, runs) in MigrateType::ALL.iter().zip(areas.runs) {
                if runs[order] != 0 {
                    f.write_str(letter(*kind))?;
                }
            }
            f.write_str(") ")?;
        }
    }
    writeln!(f, "= {}kB", areas.pages() * KIB_PER_PAGE)
}

/// Linux's letter for a migrate type.
const fn letter(kind: MigrateType) -> &'static str {
    match kind {
        MigrateType::Unmovable => "U",
        MigrateType::Movable => "M",
        MigrateType::Reclaimable => "E",
        MigrateType::MovableOnly => "O",
        MigrateType::Cma => "C",
        MigrateType::Isolate => "I",
    }
}
