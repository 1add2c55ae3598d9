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

use super::text::{show, show_switch};
use super::{File, FileError, Table, parse_bool, parse_number, write_cpu_list};
use crate::manager::{Manager, Node};
use crate::parameters::{OnlinePolicy, OnlineType};
use crate::platform::Platform;
use crate::reporting::Pace;

impl<P: Platform> Manager<P> {
    const FILES: &'static [File<Self>] = &[
        File::read_only("/proc/buddyinfo", pages::buddyinfo),
        File::read_only("/proc/meminfo", meminfo::meminfo),
        File::read_only("/proc/pagetypeinfo", pages::pagetypeinfo),
        File::write_only("/proc/sys/vm/compact_memory", settings::compact_memory),
        File::read_write(
            "/proc/sys/vm/compaction_proactiveness",
            |m, _, out| show(out, &m.sysctl().compaction_proactiveness()),
            |m, _, text| {
                settings::set(text, |value| m.sysctl().set_compaction_proactiveness(value))
            },
        ),
        File::read_write(
            "/proc/sys/vm/extfrag_threshold",
            |m, _, out| show(out, &m.sysctl().extfrag_threshold()),
            |m, _, text| settings::set(text, |value| m.sysctl().set_extfrag_threshold(value)),
        ),
        File::read_write(
            "/proc/sys/vm/lowmem_reserve_ratio",
            |m, _, out| {
                let [dma, dma32, normal, movable] = m.sysctl().lowmem_reserve_ratio();
                show(out, &format_args!("{dma}\t{dma32}\t{normal}\t{movable}"))
            },
            settings::set_lowmem_reserve_ratio,
        ),
        File::read_write(
            "/proc/sys/vm/min_free_kbytes",
            |m, _, out| show(out, &m.sysctl().min_free_kbytes()),
            |m, _, text| settings::set(text, |value| m.sysctl().set_min_free_kbytes(value)),
        ),
        File::read_write(
            "/proc/sys/vm/watermark_scale_factor",
            |m, _, out| show(out, &m.sysctl().watermark_scale_factor()),
            |m, _, text| settings::set(text, |value| m.sysctl().set_watermark_scale_factor(value)),
        ),
        File::read_only("/proc/vmstat", vmstat::vmstat),
        File::read_only("/proc/zoneinfo", zoneinfo::zoneinfo),
        File::read_write(
            "/sys/devices/system/memory/auto_online_blocks",
            |m, _, out| show(out, &m.hotplug().settings().auto_online),
            |m, _, text| {
                let kind = OnlineType::parse(text.trim()).ok_or(FileError::Invalid)?;
                hotplug::change(m, |settings| settings.auto_online = kind)
            },
        ),
        File::read_only("/sys/devices/system/memory/block_size_bytes", |m, _, out| {
            show(out, &format_args!("{:x}", m.hotplug().settings().block_bytes))
        }),
        File::read_write(
            "/sys/devices/system/memory/memory*/online",
            hotplug::online,
            hotplug::set_online,
        )
        .numbered(hotplug::blocks),
        File::read_only(
            "/sys/devices/system/memory/memory*/phys_index",
            |_: &Self, numbers, out| {
                let number = numbers.first().ok_or(FileError::NotFound)?;
                show(out, &format_args!("{number:08x}"))
            },
        )
        .numbered(hotplug::blocks),
        File::read_only(
            "/sys/devices/system/memory/memory*/removable",
            // All memory can be taken out of use.
            |_: &Self, _, out| show(out, &1),
        )
        .numbered(hotplug::blocks),
        File::read_write(
            "/sys/devices/system/memory/memory*/state",
            hotplug::state,
            hotplug::set_state,
        )
        .numbered(hotplug::blocks),
        File::read_only("/sys/devices/system/memory/memory*/valid_zones", hotplug::valid_zones)
            .numbered(hotplug::blocks),
        File::read_only("/sys/devices/system/node/has_cpu", |m, _, out| {
            let has_cpu =
                |node: &Node| m.cpus().iter().any(|cpu| m.platform().cpu_node(cpu) == node.id);
            nodes::list(m, out, &has_cpu)
        }),
        File::read_only("/sys/devices/system/node/has_memory", nodes::has_memory),
        File::read_only("/sys/devices/system/node/has_normal_memory", nodes::has_normal_memory),
        File::read_only("/sys/devices/system/node/online", nodes::all),
        File::read_only("/sys/devices/system/node/possible", nodes::all),
        File::write_only("/sys/devices/system/node/node*/compact", settings::compact_node)
            .numbered(nodes::numbers),
        File::read_only("/sys/devices/system/node/node*/cpulist", |m: &Self, numbers, out| {
            let id = lookup::node(m, numbers).ok_or(FileError::NotFound)?.id;
            let is_near = |&cpu: &u32| m.platform().cpu_node(cpu) == id;
            write_cpu_list(out, m.cpus().iter().filter(is_near))
        })
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
        File::read_only("/sys/kernel/mm/cma/%/alloc_pages_fail", |m: &Self, numbers, out| {
            areas::show(m, numbers, out, |area| area.fail_pages)
        })
        .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/alloc_pages_success", |m: &Self, numbers, out| {
            areas::show(m, numbers, out, |area| area.success_pages)
        })
        .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/available_pages", |m: &Self, numbers, out| {
            areas::show(m, numbers, out, |area| area.available_pages)
        })
        .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/release_pages_success", |m: &Self, numbers, out| {
            areas::show(m, numbers, out, |area| area.released_pages)
        })
        .numbered(areas::names),
        File::read_only("/sys/kernel/mm/cma/%/total_pages", |m: &Self, numbers, out| {
            areas::show(m, numbers, out, |area| area.total_pages)
        })
        .numbered(areas::names),
        File::read_write(
            "/sys/kernel/mm/mempolicy/weighted_interleave/auto",
            |m, _, out| show(out, &m.numa().weights_are_auto()),
            |m, _, text| {
                m.numa().set_weights_auto(parse_bool(text)?);
                Ok(())
            },
        ),
        File::read_write(
            "/sys/kernel/mm/mempolicy/weighted_interleave/node*",
            |m: &Self, numbers, out| show(out, &m.numa().weight(policies::node(m, numbers)?)),
            // 1 to 255. Weights no longer follow bandwidths then.
            |m, numbers, text| {
                let (node, weight) = (policies::node(m, numbers)?, parse_number(text)?);
                m.numa().set_weight(node, weight).map_err(|_| FileError::Invalid)
            },
        )
        .numbered(policies::nodes),
        File::read_only(
            "/sys/module/framewright/parameters/careful",
            // The seed; 0 if the mode is off.
            |m, _, out| show(out, &m.debug().aids().placement_seed.unwrap_or(0)),
        ),
        File::read_only("/sys/module/framewright/parameters/init_on_alloc", |m, _, out| {
            show_switch(out, m.debug().aids().init_on_alloc)
        }),
        File::read_only("/sys/module/framewright/parameters/init_on_free", |m, _, out| {
            show_switch(out, m.debug().aids().init_on_free)
        }),
        File::read_only(
            "/sys/module/framewright/parameters/mem",
            // In bytes; 0 if there is no limit.
            |m, _, out| show(out, &m.settings().memory_limit.unwrap_or(0)),
        ),
        File::read_only("/sys/module/framewright/parameters/memmap_init", |m, _, out| {
            show(out, &m.vmemmap().policy().name())
        }),
        File::read_only("/sys/module/framewright/parameters/numa", |m, _, out| {
            show_switch(out, m.settings().numa)
        }),
        File::read_only("/sys/module/framewright/parameters/page_owner", |m, _, out| {
            show_switch(out, m.debug().aids().page_owner)
        }),
        File::read_only("/sys/module/framewright/parameters/page_poison", |m, _, out| {
            show_switch(out, m.debug().aids().page_poison)
        }),
        File::read_only("/sys/module/framewright/parameters/pages", |m, _, out| {
            show(out, &m.settings().pages.name())
        }),
        File::read_write(
            "/sys/module/memory_hotplug/parameters/auto_movable_numa_aware",
            |m, _, out| show_switch(out, m.hotplug().settings().auto_movable_numa_aware),
            |m, _, text| {
                let aware = parse_bool(text)?;
                hotplug::change(m, |settings| settings.auto_movable_numa_aware = aware)
            },
        ),
        File::read_write(
            "/sys/module/memory_hotplug/parameters/auto_movable_ratio",
            |m, _, out| show(out, &m.hotplug().settings().auto_movable_ratio),
            |m, _, text| {
                let ratio = u32::try_from(parse_number(text)?).map_err(|_| FileError::Invalid)?;
                hotplug::change(m, |settings| settings.auto_movable_ratio = ratio.into())
            },
        ),
        File::read_only(
            "/sys/module/memory_hotplug/parameters/memmap_on_memory",
            // Only the command line changes it.
            |m, _, out| show_switch(out, m.hotplug().settings().memmap_on_memory),
        ),
        File::read_write(
            "/sys/module/memory_hotplug/parameters/online_policy",
            |m, _, out| show(out, &m.hotplug().settings().policy.name()),
            |m, _, text| {
                let policy = OnlinePolicy::parse(text.trim()).ok_or(FileError::Invalid)?;
                hotplug::change(m, |settings| settings.policy = policy)
            },
        ),
        File::read_only("/sys/module/page_alloc/parameters/shuffle", |m, _, out| {
            show_switch(out, m.settings().shuffle)
        }),
        File::read_write(
            "/sys/module/page_reporting/parameters/pace",
            |m, _, out| show(out, &m.reporting().pace().name()),
            |m, _, text| {
                m.reporting().set_pace(Pace::parse(text.trim()).ok_or(FileError::Invalid)?);
                Ok(())
            },
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/page_reporting_delay_ms",
            |m, _, out| show(out, &m.reporting().delay_ms()),
            |m, _, text| {
                m.reporting().set_delay_ms(reporting::milliseconds(text)?);
                Ok(())
            },
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/page_reporting_order",
            reporting::order,
            reporting::set_order,
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/pools",
            // Whether free pages of huge-page pools are reported, too.
            |m, _, out| show_switch(out, m.reporting().has_pools()),
            |m, _, text| {
                m.reporting().set_pools(parse_bool(text)?);
                Ok(())
            },
        ),
        File::read_write(
            "/sys/module/page_reporting/parameters/timeout_ms",
            |m, _, out| show(out, &m.reporting().timeout_ms()),
            |m, _, text| {
                m.reporting().set_timeout_ms(reporting::milliseconds(text)?);
                Ok(())
            },
        ),
    ];

    /// The manager's control files, to be put into a [`FileSystem`](super::FileSystem).
    #[must_use]
    pub const fn files(&self) -> Table<'_, Self> {
        Table::new(self, Self::FILES)
    }
}
