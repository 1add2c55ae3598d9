//! The manager's own files.

mod areas;
mod extfrag;
mod hotplug;
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
        File::read_write(
            "/sys/devices/system/memory/auto_online_blocks",
            hotplug::auto_online_blocks,
            hotplug::set_auto_online_blocks,
        ),
        File::read_only("/sys/devices/system/memory/block_size_bytes", hotplug::block_size_bytes),
        File::read_write(
            "/sys/devices/system/memory/memory*/online",
            hotplug::online,
            hotplug::set_online,
        )
        .numbered(hotplug::blocks),
        File::read_only("/sys/devices/system/memory/memory*/phys_index", hotplug::phys_index)
            .numbered(hotplug::blocks),
        File::read_only("/sys/devices/system/memory/memory*/removable", hotplug::removable)
            .numbered(hotplug::blocks),
        File::read_write(
            "/sys/devices/system/memory/memory*/state",
            hotplug::state,
            hotplug::set_state,
        )
        .numbered(hotplug::blocks),
        File::read_only("/sys/devices/system/memory/memory*/valid_zones", hotplug::valid_zones)
            .numbered(hotplug::blocks),
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
        File::read_write(
            "/sys/module/memory_hotplug/parameters/auto_movable_numa_aware",
            hotplug::numa_aware,
            hotplug::set_numa_aware,
        ),
        File::read_write(
            "/sys/module/memory_hotplug/parameters/auto_movable_ratio",
            hotplug::ratio,
            hotplug::set_ratio,
        ),
        File::read_only(
            "/sys/module/memory_hotplug/parameters/memmap_on_memory",
            hotplug::memmap_on_memory,
        ),
        File::read_write(
            "/sys/module/memory_hotplug/parameters/online_policy",
            hotplug::policy,
            hotplug::set_policy,
        ),
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
