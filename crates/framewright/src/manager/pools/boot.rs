//! Pools as the command line wants them, filled when all memory is there (SPEC 6.2, 6.6, 6.7).
//!
//! 1 GiB pages come first, while memory is in large pieces. The node form is filled in parallel like the other.

use super::Manager;
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::pools::{NodeMask, PoolSize};
use crate::sync::table_atomic::Ordering;
use crate::units::{MAX_NODES, NodeId};
use framewright_jobs::Helpers;

/// What became of one pool at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootPool {
    /// Which.
    pub size: PoolSize,
    /// Pages that the command line asks for.
    pub wanted: u64,
    /// Pages that the pool has.
    pub got: u64,
    nodes: Option<[(u32, u32); MAX_NODES]>,
}

impl BootPool {
    /// Wanted and got on a node, in the node form.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> Option<(u64, u64)> {
        let (wanted, got) = self.nodes?[node.index()];
        Some((wanted.into(), got.into()))
    }
}

/// What became of the pools at boot. [`report::huge_pages`](crate::report::huge_pages) logs it.
#[derive(Clone, Copy, Debug)]
pub struct BootFill {
    /// By size, 2 MiB first.
    pub pools: [BootPool; PoolSize::COUNT],
    /// The default size.
    pub default_size: PoolSize,
    /// A count for the default size that was not used ([`HugePageParameters::overridden_pages`](crate::pools::HugePageParameters::overridden_pages)).
    pub overridden: Option<u64>,
    /// A node that the command line names and the machine does not have: all of that parameter was ignored.
    pub absent_node: Option<NodeId>,
    /// 1 GiB pages were wanted, but `hugetlb_cma=` keeps memory for them.
    pub skipped_for_cma: bool,
    /// How long it took.
    pub duration_ns: Option<u64>,
    /// Most threads that it could have.
    pub threads: u32,
}

impl<P: Platform> Manager<P> {
    /// Fills the pools as the command line says. To be called once, when all memory is available and before anybody uses it much; `helpers` may take part.
    pub fn fill_pools<H: Helpers + ?Sized>(&self, parameters: &Parameters, helpers: &H) -> BootFill {
        let words = &parameters.huge_pages;
        let started_ns = self.platform.now_ns();
        let quarter = (self.platform.cpus() / 4).max(1);
        let threads = words.alloc_threads.unwrap_or(quarter);
        let mut fill = BootFill {
            pools: PoolSize::ALL.map(|size| BootPool { size, wanted: 0, got: 0, nodes: None }),
            default_size: words.default_size(),
            overridden: words.overridden_pages(),
            absent_node: None,
            skipped_for_cma: false,
            duration_ns: None,
            threads,
        };
        self.set_optimize_vmemmap(words.free_vmemmap);
        // Relaxed, as below: helpers that read it are started after it was written.
        self.pools.at_boot.store(true, Ordering::Relaxed);
        self.pools.default_is_gigantic.store(words.default_size().is_gigantic(), Ordering::Relaxed);
        for size in PoolSize::ALL.into_iter().rev() {
            let requested = words.requested(size);
            if requested.pages == 0 {
                continue;
            }
            if let Some(absent) = requested.nodes().nodes().find(|node| node.index() >= self.nodes.len()) {
                fill.absent_node = Some(absent);
                continue;
            }
            if size.is_gigantic() && words.cma_bytes.is_some() {
                fill.skipped_for_cma = true;
                continue;
            }
            // Who resizes at this moment came too early; without pages the pool is as it would be without the parameter.
            let Ok(_resizing) = self.start_resizing() else { continue };
            let pool = &mut fill.pools[size.index()];
            pool.wanted = requested.pages;
            let threads = if size.is_gigantic() { threads.max(self.count_nodes_with_memory()) } else { threads };
            if requested.nodes().is_empty() {
                self.resize_pool(size, requested.pages, NodeMask::ALL, helpers, threads);
            } else {
                let mut shares = [0; MAX_NODES];
                for node in requested.nodes().nodes() {
                    shares[node.index()] = requested.on_node(node).unwrap_or(0);
                }
                self.fill_shares(size, &shares, helpers, threads);
            }
            let books = self.pools.books.lock(self.platform);
            pool.got = books.counts(size).all.nr;
            if !requested.nodes().is_empty() {
                pool.nodes = Some(core::array::from_fn(|index| {
                    let node = NodeId::new(index).unwrap_or_default();
                    let count = |pages: u64| u32::try_from(pages).unwrap_or(u32::MAX);
                    (count(requested.on_node(node).unwrap_or(0)), count(books.node(size, node).nr))
                }));
            }
        }
        self.pools.at_boot.store(false, Ordering::Relaxed);
        fill.duration_ns = started_ns.and_then(|started| Some(self.platform.now_ns()?.saturating_sub(started)));
        fill
    }

    fn count_nodes_with_memory(&self) -> u32 {
        u32::try_from(self.nodes_with_memory(NodeMask::ALL).nodes().count()).unwrap_or(1)
    }
}
