//! Fills the pools as the command line asks, once all memory is available (Linux: `mm/hugetlb.c`,
//! `hugepages_setup`).
//!
//! 1 GiB pages come first, while memory is in large pieces. The per-node form of a parameter is
//! filled in parallel like the plain form. If pages in pools are to have no map, bring-up takes
//! most of them from the memblock allocator ([`choose_boot_pages`]), so that they never get one;
//! this module then adopts them.

use crate::block::{Chain, PageList, Segment};
use crate::hugetlb::{Shares, spread};
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::resizing::PagesOnTheWay;
use crate::manager::hugetlb::take::Moment;
use crate::manager::state::pools::may_have_no_vmemmap;
use crate::memblock::Memblock;
use crate::parameters::{Parameters, Requested};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{MAX_NODES, NodeId, NodeMask, PoolSize};
use crate::vmemmap::{BootPages, SegmentsOfNodes, most_frames};
use framewright_jobs::Helpers;

/// The result for one pool at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootPool {
    /// The size of its pages.
    pub size: PoolSize,
    /// Pages that the command line asks for.
    pub wanted: u64,
    /// Pages that the pool has.
    pub got: u64,
    /// Those of them whose map was never made (Linux: `mm/hugetlb_vmemmap.c`,
    /// `hugetlb_vmemmap_init_early`).
    pub without_vmemmap: u64,
    nodes: Option<[(u32, u32); MAX_NODES]>,
}

impl BootPool {
    /// Returns how many pages a node was to get and got, if the parameter is in the per-node form.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<(u64, u64)> {
        let (wanted, got) = self.nodes?[node.index()];
        Some((wanted.into(), got.into()))
    }
}

/// The result for all pools at boot. [`bootlog::huge_pages`](crate::bootlog::huge_pages) logs it.
#[derive(Clone, Copy, Debug)]
pub struct BootFill {
    /// By size, 2 MiB first.
    pub pools: [BootPool; PoolSize::COUNT],
    /// The default size.
    pub default_size: PoolSize,
    /// A count for the default size that was not used
    /// ([`overridden_pages`](crate::hugetlb::HugePageParameters::overridden_pages)).
    pub overridden: Option<u64>,
    /// A node that the command line names and the machine does not have: the whole parameter was
    /// ignored.
    pub absent_node: Option<NodeId>,
    /// How long filling took.
    pub duration_ns: Option<u64>,
    /// The most threads that it may use: `hugepage_alloc_threads=`, or a quarter of the CPUs. Pools
    /// of 1 GiB pages use as many as there are nodes with memory, if that is more.
    pub threads: u32,
    /// The most threads that are worth starting: one for 64 GiB, and at most `n` in memory of `n`
    /// nodes. If a hook handles the descriptors, which takes much longer, one for 128 MiB.
    pub threads_of_use: u32,
    /// The most threads that took part for any pool; fewer than `threads_of_use` if helpers came
    /// late or there are none.
    pub threads_used: u32,
}

impl<P: Platform> Hugetlb<'_, P> {
    /// Fills the pools as the command line says. To be called once, when all memory is available
    /// and before much of it is in use; `helpers` may take part.
    pub fn fill<H: Helpers + ?Sized>(self, parameters: &Parameters, helpers: &H) -> BootFill {
        let words = &parameters.huge_pages;
        let started_ns = self.manager.platform.now_ns();
        let quarter = (self.manager.platform.cpus() / 4).max(1);
        let threads = words.alloc_threads.unwrap_or(quarter);
        let mut fill = BootFill {
            pools: PoolSize::ALL.map(|size| BootPool {
                size,
                wanted: 0,
                got: 0,
                without_vmemmap: 0,
                nodes: None,
            }),
            default_size: words.default_size(),
            overridden: words.overridden_pages(),
            absent_node: None,
            duration_ns: None,
            threads,
            threads_of_use: 1,
            threads_used: 1,
        };
        self.manager.hugetlb().set_optimize_vmemmap(words.free_vmemmap);
        // Relaxed, as below: helpers that read this are started after it was written.
        self.manager.pools.at_boot.store(true, Ordering::Relaxed);
        self.manager.pools.threads_of_use.store(1, Ordering::Relaxed);
        self.manager.pools.threads_used.store(1, Ordering::Relaxed);
        self.manager
            .pools
            .default_is_gigantic
            .store(words.default_size().is_gigantic(), Ordering::Relaxed);
        let adopted = self.adopt_boot_pages();
        for size in PoolSize::ALL.into_iter().rev() {
            let requested = words.requested(size);
            let adopted = &adopted[size.index()];
            let ours: u64 = adopted.iter().sum();
            fill.pools[size.index()].without_vmemmap = ours;
            if requested.pages == 0 && ours == 0 {
                continue;
            }
            if let Some(absent) =
                requested.nodes().nodes().find(|node| node.index() >= self.manager.nodes.len())
            {
                fill.absent_node = Some(absent);
                continue;
            }
            // A caller that is already resizing came too early. The pool then gets no pages, as if
            // the parameter were absent.
            let Ok(_resizing) = self.manager.hugetlb().start_resizing() else { continue };
            let pool_of = self.manager.pool(size);
            let pool = &mut fill.pools[size.index()];
            pool.wanted = requested.pages;
            let threads = if size.is_gigantic() {
                threads.max(self.count_nodes_with_memory())
            } else {
                threads
            };
            let plain = requested.nodes().is_empty();
            if !plain || ours != 0 {
                let nodes = self.manager.hugetlb().nodes_with_memory(NodeMask::ALL);
                let mut shares =
                    shares_of(&requested, nodes, &|node| pool_of.managed_on(node) / size.frames());
                shares
                    .iter_mut()
                    .zip(adopted)
                    .for_each(|(share, &has)| *share = share.saturating_sub(has));
                pool_of.fill_shares(&shares, &helpers, threads);
            }
            if plain {
                pool_of.resize_locked(requested.pages, NodeMask::ALL, &helpers, threads);
            }
            let accounting = self.accounting();
            pool.got = accounting.counts(size).all.nr;
            if !requested.nodes().is_empty() {
                pool.nodes = Some(core::array::from_fn(|index| {
                    let node = NodeId::new(index).unwrap_or_default();
                    let count = |pages: u64| u32::try_from(pages).unwrap_or(u32::MAX);
                    (
                        count(requested.on_node(node).unwrap_or(0)),
                        count(accounting.node(size, node).nr),
                    )
                }));
            }
        }
        self.manager.pools.at_boot.store(false, Ordering::Relaxed);
        fill.threads_of_use = self.manager.pools.threads_of_use.swap(1, Ordering::Relaxed);
        fill.threads_used = self.manager.pools.threads_used.swap(1, Ordering::Relaxed);
        fill.duration_ns = started_ns
            .and_then(|started| Some(self.manager.platform.now_ns()?.saturating_sub(started)));
        fill
    }

    /// Puts the pages that bring-up took for the pools into them, once. Returns how many, by size
    /// and node.
    fn adopt_boot_pages(self) -> [Shares; PoolSize::COUNT] {
        let mut adopted = [[0; MAX_NODES]; PoolSize::COUNT];
        // Relaxed: bring-up is long over.
        if self.manager.pools.adopted.swap(true, Ordering::Relaxed) {
            return adopted;
        }
        let _moving = PagesOnTheWay::start(self.manager);
        for range in self.manager.pools.boot_pages.ranges() {
            let Some(size) = PoolSize::ALL.into_iter().find(|size| size.order() == range.order)
            else {
                continue;
            };
            for (slot, zone) in self.manager.hugetlb().node_zones(range.node) {
                let chain =
                    zone.adopt_all_for_pool(self.manager.platform, range.frames, range.order);
                if chain == Chain::EMPTY {
                    continue;
                }
                if self.manager.pools.has_vmemmap_hook.load(Ordering::Relaxed) {
                    self.manager.pool(size).announce(zone, chain, Moment::Publish);
                }
                let mut accounting = self.accounting();
                accounting.add_free(size, range.node, chain.pages);
                accounting.counts_mut(size).target += chain.pages;
                accounting.list(size, slot).append(zone.table(), PageList::unreported(chain));
                adopted[size.index()][range.node.index()] += chain.pages;
            }
        }
        adopted
    }

    fn count_nodes_with_memory(self) -> u32 {
        u32::try_from(self.manager.hugetlb().nodes_with_memory(NodeMask::ALL).nodes().count())
            .unwrap_or(1)
    }
}

/// Returns how many pages each node is to have.
fn shares_of(requested: &Requested, nodes: NodeMask, room: &dyn Fn(NodeId) -> u64) -> Shares {
    if requested.nodes().is_empty() {
        return spread(requested.pages, 0, nodes, room).0;
    }
    let mut shares = [0; MAX_NODES];
    requested
        .nodes()
        .nodes()
        .for_each(|node| shares[node.index()] = requested.on_node(node).unwrap_or(0));
    shares
}

/// Takes the pages that the command line asks for from the memblock allocator, before the array
/// gets its memory, as far as they leave enough. To be called only if there will be an array.
#[inline(never)]
pub(crate) fn choose_boot_pages<P: Platform>(
    early: &mut Memblock<'_, P>,
    parameters: &Parameters,
    directory: &[Segment],
    node_of: &dyn Fn(&Segment) -> NodeId,
    pages: &mut BootPages,
) {
    if !may_have_no_vmemmap(parameters) {
        return;
    }
    let words = &parameters.huge_pages;
    let topology = early.topology();
    let (mut present, mut free) = ([0; MAX_NODES], [0; MAX_NODES]);
    early.runs().for_each(|run| present[run.node.index()] += run.range.pages());
    early.for_each_free(&mut |range, node| free[node.index()] += range.pages());
    let with_memory = |mask: NodeMask, node: NodeId| {
        if present[node.index()] == 0 { mask } else { mask.with(node) }
    };
    let nodes = topology.nodes().fold(NodeMask::EMPTY, with_memory);
    let mut most: [u64; MAX_NODES] = core::array::from_fn(|index| {
        let node = NodeId::new(index).filter(|&node| nodes.contains(node));
        node.map_or(0, |node| {
            most_frames(
                free[index],
                SegmentsOfNodes { directory, node_of }.sections(node).count() as u64,
            )
        })
    });
    for size in PoolSize::ALL.into_iter().rev() {
        // Areas are made later, and 1 GiB pages come from areas first.
        if size.is_gigantic() && words.cma.total_bytes != 0 {
            continue;
        }
        let requested = words.requested(size);
        let is_absent = |node: NodeId| node.index() >= topology.node_count();
        if requested.nodes().nodes().any(is_absent) {
            continue;
        }
        let shares = shares_of(&requested, nodes, &|node| present[node.index()] / size.frames());
        for node in nodes.nodes() {
            let most = &mut most[node.index()];
            let wanted = shares[node.index()].min(*most / size.frames());
            *most -= pages.choose(early, node, size.order(), wanted) * size.frames();
        }
    }
}
