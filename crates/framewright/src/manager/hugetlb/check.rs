//! Recounts the pools.
//!
//! Orders of memory: Relaxed: the check whether a resize is in progress is made under the
//! accounting lock, which a resize takes to change anything.

use crate::block::list::NONE;
use crate::block::{BLOCK_ORDERS, Chain, State, first_link};
use crate::hugetlb::{NodeCounts, PoolFault};
use crate::manager::facets::Hugetlb;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PoolSize};
use crate::zone::Zone;

impl<P: Platform> Hugetlb<'_, P> {
    /// Recounts the pools from their lists and from the tables, and checks the rules among their
    /// counters (Linux: `mm/hugetlb.c`, `struct hstate`). The recount needs that nobody resizes
    /// pools or allocates or frees their pages meanwhile; only the rules hold at any time.
    ///
    /// # Errors
    /// The first [`PoolFault`] found.
    pub fn verify(self) -> Result<(), PoolFault> {
        for size in PoolSize::ALL {
            let mut accounting = self.accounting();
            let resizing = self.manager.pools.resizer.load(Ordering::Relaxed) != 0;
            accounting.check(size, resizing)?;
            for node in self.manager.nodes {
                let mut free = 0;
                for (slot, zone) in self.manager.hugetlb().node_zones(node.id) {
                    for list in accounting.list(size, slot).chains() {
                        free += count(zone, size, list)
                            .ok_or(PoolFault::List { size, zone: zone.id() })?;
                    }
                }
                let NodeCounts { free: says, .. } = accounting.node(size, node.id);
                if says != free {
                    let node = Some(node.id);
                    return Err(PoolFault::Count {
                        size,
                        node,
                        counter: "free",
                        says,
                        counted: free,
                    });
                }
            }
        }
        self.verify_pool_pages()
    }

    /// Checks that the tables have as many pages as the accounting says, and none of an order
    /// without a pool.
    fn verify_pool_pages(self) -> Result<(), PoolFault> {
        for node in self.manager.nodes {
            let mut found = [0; BLOCK_ORDERS];
            for (_, zone) in self.manager.hugetlb().node_zones(node.id) {
                let counts = zone.count_pool_pages(self.manager.platform);
                found.iter_mut().zip(counts).for_each(|(sum, pages)| *sum += pages);
            }
            for size in PoolSize::ALL {
                let says = self.accounting().node(size, node.id).nr;
                let counted = found[usize::from(size.order().get() - Order::BLOCK.get())];
                if says != counted {
                    return Err(PoolFault::Count {
                        size,
                        node: Some(node.id),
                        counter: "nr",
                        says,
                        counted,
                    });
                }
            }
            let strange: u64 = found[1..BLOCK_ORDERS - 1].iter().sum();
            if strange != 0 {
                let (size, node) = (PoolSize::TwoMib, Some(node.id));
                return Err(PoolFault::Count {
                    size,
                    node,
                    counter: "pages of other sizes",
                    says: 0,
                    counted: strange,
                });
            }
        }
        Ok(())
    }
}

/// Returns how many pages a chain of free pages has; `None` if it is broken or contains anything
/// else.
fn count(zone: &Zone, size: PoolSize, chain: Chain) -> Option<u64> {
    let (mut index, mut previous, mut pages) = (chain.first, NONE, 0);
    while index != NONE {
        let links = zone.table().links(index);
        let (head, state) = zone.table().head_of(index)?;
        let fits = head == index && state.is(State::Pool) && state.order() == size.order();
        let expected = if previous == NONE { NONE } else { first_link(previous, chain.reported) };
        if !fits || links.0 != expected || pages >= chain.pages {
            return None;
        }
        pages += 1;
        (previous, index) = (index, links.1);
    }
    (previous == chain.last && pages == chain.pages).then_some(pages)
}
