//! The boot log's lines about huge-page pools.

use super::BootLog;
use crate::manager::{BootFill, BootPool, Resized};
use crate::units::PoolSize;
use crate::units::{MAX_NODES, NodeId};

/// Logs how the pools were filled at boot: which parameters were ignored, which requests exceeded
/// the memory, and which pages there are.
pub fn huge_pages(log: &mut dyn BootLog, fill: &BootFill) {
    let default = fill.pools[fill.default_size as usize];
    if let Some(ignored) = fill.overridden {
        log.tell(format_args!(
            "HugeTLB: Ignoring hugepages={ignored} associated with {} page size",
            fill.default_size
        ));
        log.tell(format_args!(
            "HugeTLB: Using hugepages={} for number of default huge pages",
            default.wanted
        ));
    }
    if let Some(node) = fill.absent_node {
        log.tell(format_args!(
            "HugeTLB: Invalid hugepages parameter: there is no node {node}, ignored"
        ));
    }
    for pool in fill.pools.iter().rev() {
        let size = pool.size;
        let mut any_node = false;
        for node in (0..MAX_NODES).filter_map(NodeId::new) {
            if let Some((wanted, got)) = pool.on_node(node).filter(|(wanted, got)| got < wanted) {
                any_node = true;
                log.tell(format_args!(
                    "HugeTLB: allocating {wanted} of page size {size} failed node{node}.  Only \
                     allocated {got} hugepages."
                ));
            }
        }
        if pool.got < pool.wanted && !any_node {
            log.tell(format_args!("{}", Resized { size, wanted: pool.wanted, reached: pool.got }));
        }
    }
    let is_any_wanted = fill.pools.iter().any(|pool| pool.wanted != 0);
    if is_any_wanted && let Some(duration_ns) = fill.duration_ns {
        let (micros, threads) = (duration_ns / 1000, fill.threads);
        log.tell(format_args!(
            "HugeTLB: allocation took {}.{:03}ms with hugepage_allocation_threads={threads}",
            micros / 1000,
            micros % 1000,
        ));
    }
    if is_any_wanted && fill.threads_used < fill.threads {
        log.tell(format_args!(
            "HugeTLB: {} of {} threads took part: no more than {} help with so few pages and nodes",
            fill.threads_used, fill.threads, fill.threads_of_use,
        ));
    }
    for size in PoolSize::ALL.into_iter().rev() {
        let BootPool { got, without_vmemmap, .. } = fill.pools[size as usize];
        log.tell(format_args!("HugeTLB: registered {size} page size, pre-allocated {got} pages"));
        if without_vmemmap != 0 {
            log.tell(format_args!(
                "HugeTLB: {without_vmemmap} pages of page size {size} never had a memory map"
            ));
        }
    }
}
