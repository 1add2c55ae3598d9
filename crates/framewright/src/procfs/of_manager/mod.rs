//! The manager's own files.

mod areas;
mod extfrag;
mod lookup;
mod meminfo;
mod memory;
mod nodes;
mod pages;
mod policies;
mod reporting;
mod settings;
mod vmstat;
mod zoneinfo;

pub(super) use nodes::numbers;

use super::{File, Table};
use crate::manager::Manager;
use crate::platform::Platform;

impl<P: Platform> Manager<P> {
    const FILES: &'static [File<Self>] = &[
        File::read_only("/proc/buddyinfo", pages::buddyinfo),
        File::read_only("/proc/meminfo", meminfo::meminfo),
        File::read_only("/proc/pagetypeinfo", pages::pagetypeinfo),
        File::write_only("/proc/sys/vm/compact_memory", settings::compact_memory),
        File::read_write(
            "/proc/sys/vm/compaction_proactiveness",
            settings::compaction_proactiveness,
            settings::set_compaction_proactiveness,
        ),
        File::read_write(
            "/proc/sys/vm/extfrag_threshold",
            settings::extfrag_threshold,
            settings::set_extfrag_threshold,
        ),
        File::read_write(
            "/proc/sys/vm/lowmem_reserve_ratio",
            settings::lowmem_reserve_ratio,
            settings::set_lowmem_reserve_ratio,
        ),
        File::read_write(
            "/proc/sys/vm/min_free_kbytes",
            settings::min_free_kbytes,
            settings::set_min_free_kbytes,
        ),
        File::read_write(
            "/proc/sys/vm/watermark_scale_factor",
            settings::watermark_scale_factor,
            settings::set_watermark_scale_factor,
        ),
        File::read_only("/proc/vmstat", vmstat::vmstat),
        File::read_only("/proc/zoneinfo", zoneinfo::zoneinfo),
        File::read_only("/sys/devices/system/node/has_cpu", nodes::has_cpu),
        File::read_only("/sys/devices/system/node/has_memory", nodes::has_memory),
        File::read_only("/sys/devices/system/node/has_normal_memory", nodes::has_memory),
        File::read_only("/sys/devices/system/node/online", nodes::all),
        File::read_only("/sys/devices/system/node/possible", nodes::all),
        File::write_only("/sys/devices/system/node/node*/compact", settings::compact_node)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/cpulist", nodes::cpulist)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/distance", nodes::distance)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/meminfo", meminfo::of_node)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/numastat", vmstat::numastat)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/vmstat", vmstat::of_node)
            .numbered(nodes::numbers),
        File::read_only(
            "/sys/devices/virtual/memory_tiering/memory_tier*/nodelist",
            policies::tier_nodelist,
        )
        .numbered(policies::tiers),
        File::read_only("/sys/kernel/debug/extfrag/extfrag_index", extfrag::extfrag_index),
        File::read_only("/sys/kernel/debug/extfrag/unusable_index", extfrag::unusable_index),
        File::read_only("/sys/kernel/debug/framewright/memory", memory::memory),
        File::read_only("/sys/kernel/mm/cma/%/alloc_pages_fail", areas::alloc_pages_fail)
            .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/alloc_pages_success", areas::alloc_pages_success)
            .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/available_pages", areas::available_pages)
            .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/release_pages_success", areas::release_pages_success)
            .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/total_pages", areas::total_pages)
            .numbered(areas::names),
        File::read_write(
            "/sys/kernel/mm/mempolicy/weighted_interleave/auto",
            policies::auto,
            policies::set_auto,
        ),
        File::read_write(
            "/sys/kernel/mm/mempolicy/weighted_interleave/node*",
            policies::weight,
            policies::set_weight,
        )
        .numbered(policies::nodes),
        File::read_only("/sys/module/framewright/parameters/careful", settings::careful),
        File::read_only(
            "/sys/module/framewright/parameters/init_on_alloc",
            settings::init_on_alloc,
        ),
        File::read_only("/sys/module/framewright/parameters/init_on_free", settings::init_on_free),
        File::read_only("/sys/module/framewright/parameters/mem", settings::mem),
        File::read_only("/sys/module/framewright/parameters/memmap_init", settings::memmap_init),
        File::read_only("/sys/module/framewright/parameters/numa", settings::numa),
        File::read_only("/sys/module/framewright/parameters/page_owner", settings::page_owner),
        File::read_only("/sys/module/framewright/parameters/page_poison", settings::page_poison),
        File::read_only("/sys/module/framewright/parameters/pages", settings::pages),
        File::read_only("/sys/module/page_alloc/parameters/shuffle", reporting::shuffle),
        File::read_write(
            "/sys/module/page_reporting/parameters/pace",
            reporting::pace,
            reporting::set_pace,
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/page_reporting_delay_ms",
            reporting::delay_ms,
            reporting::set_delay_ms,
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/page_reporting_order",
            reporting::order,
            reporting::set_order,
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/pools",
            reporting::pools,
            reporting::set_pools,
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/timeout_ms",
            reporting::timeout_ms,
            reporting::set_timeout_ms,
        ),
    ];

    /// The manager's control files, to be put into a [`FileSystem`](super::FileSystem).
    #[must_use]
    pub const fn files(&self) -> Table<'_, Self> {
        Table::new(self, Self::FILES)
    }
}
