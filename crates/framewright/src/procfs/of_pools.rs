//! The files of huge-page pools (Linux: `mm/hugetlb.c`, `hugetlb_sysfs_init`):
//! `/sys/kernel/mm/hugepages`, the same for each node, `/proc/sys/vm`, and the pools' lines in
//! `meminfo` and `vmstat`.
//!
//! As in Linux, `/sys` shows the pages that a pool has, surplus ones included, and
//! `/proc/sys/vm/nr_hugepages` those that are to stay. A size has no `demote` if there is no
//! smaller one.

use super::of_manager::numbers;
use super::text::{Shown, show};
use super::{File, FileError, Table, parse_number, write_kib};
use crate::hugetlb::{PoolError, parse_count};
use crate::manager::{Hugetlb, Manager, Pool};
use crate::parameters::parse_size;
use crate::platform::Platform;
use crate::units::NodeId;
use crate::units::PoolSize;
use core::fmt::Write;
use framewright_jobs::Helpers;

/// The pools of a manager, and the helpers that help when one is resized through a file.
pub struct PoolFiles<'a, P: Platform> {
    manager: &'a Manager<P>,
    helpers: &'a dyn Helpers,
}

/// Values of `hugetlb_restore`: pages that leave a pool get their part of the vmemmap back at once,
/// as in Linux, or have descriptors inside once they are split.
const EAGER: &str = "eager";
const LAZY: &str = "lazy";

/// One counter of a pool, for one node if there is one.
type Counter<P> = fn(&Pool<'_, P>, Option<NodeId>) -> Result<u64, FileError>;

impl<'a, P: Platform> PoolFiles<'a, P> {
    const FILES: &'a [File<Self>] = &[
        File::read_only("/proc/meminfo", |files, _, out| files.meminfo(out)),
        File::read_write(
            "/proc/sys/vm/hugetlb_optimize_vmemmap",
            |files, _, out| show(out, &u8::from(files.manager.hugetlb().optimizes_vmemmap())),
            |files, _, text| {
                files.manager.hugetlb().set_optimize_vmemmap(parse_number(text)? != 0);
                Ok(())
            },
        ),
        File::read_write(
            "/proc/sys/vm/hugetlb_shm_group",
            |files, _, out| show(out, &files.manager.hugetlb().shm_group()),
            |files, _, text| {
                let group = u32::try_from(parse_number(text)?).map_err(|_| FileError::Invalid)?;
                files.manager.hugetlb().set_shm_group(group);
                Ok(())
            },
        ),
        File::read_write(
            "/proc/sys/vm/nr_hugepages",
            |files, _, out| show(out, &files.default_pool().counts().target),
            |files, _, text| files.resize(&files.default_pool(), None, parse_number(text)?),
        ),
        File::read_write(
            "/proc/sys/vm/nr_hugepages_mempolicy",
            |files, _, out| show(out, &files.default_pool().counts().target),
            |files, _, text| files.resize(&files.default_pool(), None, parse_number(text)?),
        ),
        File::read_write(
            "/proc/sys/vm/nr_overcommit_hugepages",
            |files, _, out| show(out, &files.default_pool().counts().overcommit),
            |files, _, text| Ok(files.default_pool().set_overcommit(parse_number(text)?)?),
        ),
        File::read_only("/proc/vmstat", |files, _, out| files.vmstat(out)),
        File::write_only("/sys/kernel/mm/hugepages/hugepages-*kB/demote", Self::demote)
            .numbered(Self::gigantic),
        File::read_write(
            "/sys/kernel/mm/hugepages/hugepages-*kB/demote_size",
            Self::demote_size,
            Self::set_demote_size,
        )
        .numbered(Self::gigantic),
        File::read_only("/sys/kernel/mm/hugepages/hugepages-*kB/free_hugepages", Self::free)
            .numbered(Self::sizes),
        File::read_write(
            "/sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages",
            Self::nr,
            Self::set_nr,
        )
        .numbered(Self::sizes),
        // There are no memory policies here, so this means all nodes.
        File::read_write(
            "/sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages_mempolicy",
            Self::nr,
            Self::set_nr,
        )
        .numbered(Self::sizes),
        File::read_write(
            "/sys/kernel/mm/hugepages/hugepages-*kB/nr_overcommit_hugepages",
            Self::overcommit,
            Self::set_overcommit,
        )
        .numbered(Self::sizes),
        File::read_only("/sys/kernel/mm/hugepages/hugepages-*kB/resv_hugepages", Self::reserved)
            .numbered(Self::sizes),
        File::read_only("/sys/kernel/mm/hugepages/hugepages-*kB/surplus_hugepages", Self::surplus)
            .numbered(Self::sizes),
        File::read_write(
            "/sys/module/framewright/parameters/hugetlb_restore",
            |files, _, out| {
                show(out, &if files.manager.hugetlb().eager_restore() { EAGER } else { LAZY })
            },
            |files, _, text| {
                let eager = match text.trim_ascii() {
                    EAGER => true,
                    LAZY => false,
                    _ => return Err(FileError::Invalid),
                };
                files.manager.hugetlb().set_eager_restore(eager);
                Ok(())
            },
        ),
        File::read_only("/sys/devices/system/node/node*/meminfo", Self::node_meminfo)
            .numbered(Self::nodes),
        File::write_only(
            "/sys/devices/system/node/node*/hugepages/hugepages-*kB/demote",
            Self::demote,
        )
        .numbered(Self::nodes_and_gigantic),
        File::read_write(
            "/sys/devices/system/node/node*/hugepages/hugepages-*kB/demote_size",
            Self::demote_size,
            Self::set_demote_size,
        )
        .numbered(Self::nodes_and_gigantic),
        File::read_only(
            "/sys/devices/system/node/node*/hugepages/hugepages-*kB/free_hugepages",
            Self::free,
        )
        .numbered(Self::nodes_and_sizes),
        File::read_write(
            "/sys/devices/system/node/node*/hugepages/hugepages-*kB/nr_hugepages",
            Self::nr,
            Self::set_nr,
        )
        .numbered(Self::nodes_and_sizes),
        File::read_only(
            "/sys/devices/system/node/node*/hugepages/hugepages-*kB/surplus_hugepages",
            Self::surplus,
        )
        .numbered(Self::nodes_and_sizes),
    ];

    /// The files, to be put into a [`FileSystem`](super::FileSystem) behind the manager's own, to
    /// whose `meminfo` and `vmstat` they add lines.
    #[must_use]
    pub const fn table(&'a self) -> Table<'a, Self> {
        Table::new(self, Self::FILES)
    }

    fn sizes(&self, visit: &mut dyn FnMut(&[u64])) {
        PoolSize::ALL.into_iter().for_each(|size| visit(&[size.kbytes()]));
    }

    fn gigantic(&self, visit: &mut dyn FnMut(&[u64])) {
        sizes_to_demote().for_each(|size| visit(&[size.kbytes()]));
    }

    fn nodes(&self, visit: &mut dyn FnMut(&[u64])) {
        numbers(self.manager, visit);
    }

    fn nodes_and_sizes(&self, visit: &mut dyn FnMut(&[u64])) {
        numbers(self.manager, &mut |node| {
            PoolSize::ALL.into_iter().for_each(|size| visit(&[node[0], size.kbytes()]));
        });
    }

    fn nodes_and_gigantic(&self, visit: &mut dyn FnMut(&[u64])) {
        numbers(self.manager, &mut |node| {
            sizes_to_demote().for_each(|size| visit(&[node[0], size.kbytes()]))
        });
    }

    fn default_pool(&self) -> Pool<'_, P> {
        self.manager.pool(self.manager.hugetlb().default_size())
    }

    /// The pool that a path's numbers name, and the node, if they name one.
    fn pool(&self, numbers: &[u64]) -> Result<(Pool<'_, P>, Option<NodeId>), FileError> {
        let (node, kbytes) = match *numbers {
            [kbytes] => (None, kbytes),
            [node, kbytes] => (Some(node_of(node)?), kbytes),
            _ => return Err(FileError::NotFound),
        };
        let size =
            kbytes.checked_mul(1024).and_then(PoolSize::of_bytes).ok_or(FileError::NotFound)?;
        Ok((self.manager.pool(size), node))
    }

    #[inline(never)]
    fn show_counter(&self, numbers: &[u64], out: &mut dyn Write, counter: Counter<P>) -> Shown {
        let (pool, node) = self.pool(numbers)?;
        show(out, &counter(&pool, node)?)
    }

    fn nr(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        self.show_counter(numbers, out, |pool, node| Ok(counts(pool, node)?.nr))
    }

    fn free(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        self.show_counter(numbers, out, |pool, node| Ok(counts(pool, node)?.free))
    }

    fn surplus(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        self.show_counter(numbers, out, |pool, node| Ok(counts(pool, node)?.surplus))
    }

    fn reserved(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        self.show_counter(numbers, out, |pool, _| Ok(pool.counts().reserved))
    }

    fn overcommit(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        self.show_counter(numbers, out, |pool, _| Ok(pool.counts().overcommit))
    }

    fn set_overcommit(&self, numbers: &[u64], text: &str) -> Shown {
        Ok(self.pool(numbers)?.0.set_overcommit(parse_count(text)?)?)
    }

    fn set_nr(&self, numbers: &[u64], text: &str) -> Shown {
        let (pool, node) = self.pool(numbers)?;
        self.resize(&pool, node, parse_count(text)?)
    }

    /// Resizes a pool as far as there is memory. To learn the new size, read the file.
    fn resize(&self, pool: &Pool<'_, P>, node: Option<NodeId>, pages: u64) -> Shown {
        match node {
            None => pool.resize(pages, self.helpers)?,
            Some(node) => pool.resize_node(node, pages, self.helpers)?,
        };
        Ok(())
    }

    /// Fails only if pages are free and not reserved and yet none can be demoted. Where no page is
    /// available it succeeds (Linux: `demote_store`, which ends in that case).
    fn demote(&self, numbers: &[u64], text: &str) -> Shown {
        let (pool, node) = self.pool(numbers)?;
        let pages = parse_count(text)?;
        let demoted = match node {
            None => pool.demote(pages),
            Some(node) => pool.demote_node(node, pages),
        };
        match demoted {
            Err(PoolError::NothingToDemote)
                if counts(&pool, node)?.free.min(pool.counts().available()) == 0 =>
            {
                Ok(())
            }
            demoted => Ok(demoted.map(drop)?),
        }
    }

    fn demote_size(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        let size = self.pool(numbers)?.0.demote_size().ok_or(FileError::NotFound)?;
        show(out, &format_args!("{}kB", size.kbytes()))
    }

    /// Takes a size with its unit, so that what the file shows can be written back.
    fn set_demote_size(&self, numbers: &[u64], text: &str) -> Shown {
        let bytes = parse_size(text.trim_ascii()).map_err(|_| FileError::Invalid)?;
        Ok(self.pool(numbers)?.0.set_demote_size(bytes)?)
    }

    /// Writes the lines in Linux's columns.
    fn meminfo(&self, out: &mut dyn Write) -> Shown {
        let counts = self.default_pool().counts();
        writeln!(out, "HugePages_Total:   {:5}", counts.all.nr)?;
        writeln!(out, "HugePages_Free:    {:5}", counts.all.free)?;
        writeln!(out, "HugePages_Rsvd:    {:5}", counts.reserved)?;
        writeln!(out, "HugePages_Surp:    {:5}", counts.all.surplus)?;
        write_kib(
            out,
            format_args!(""),
            "Hugepagesize",
            self.manager.hugetlb().default_size().kbytes(),
        )?;
        write_kib(out, format_args!(""), "Hugetlb", self.manager.hugetlb().kbytes())
    }

    fn node_meminfo(&self, numbers: &[u64], out: &mut dyn Write) -> Shown {
        let node = node_of(*numbers.first().ok_or(FileError::NotFound)?)?;
        let counts = self.default_pool().node_counts(node)?;
        writeln!(out, "Node {node} HugePages_Total: {:5}", counts.nr)?;
        writeln!(out, "Node {node} HugePages_Free:  {:5}", counts.free)?;
        Ok(writeln!(out, "Node {node} HugePages_Surp:  {:5}", counts.surplus)?)
    }

    /// What map reclaim (HVO) saves and costs. Linux has none of these lines.
    fn vmstat(&self, out: &mut dyn Write) -> Shown {
        let manager = self.manager;
        // Negative if nothing but page tables is left of it.
        writeln!(out, "memmap_saved_pages {}", manager.vmemmap().saved_pages())?;
        writeln!(out, "memmap_reclaimed_blocks {}", manager.vmemmap().reclaimed_blocks())?;
        writeln!(out, "memmap_unbuilt_blocks {}", manager.vmemmap().unbuilt_blocks())?;
        Ok(writeln!(out, "memmap_pool_flush {}", manager.hugetlb().flushes())?)
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// The control files of the pools. Writing a number of pages to one resizes the pool with the
    /// help of `helpers` ([`NoHelpers`](framewright_jobs::NoHelpers) for none). `/proc/sys/vm` and
    /// `meminfo` are about the [default size](Self::default_size).
    ///
    /// ```
    /// # use framewright::{Manager, Platform, procfs::{FileSystem, FileError}};
    /// # use framewright_jobs::NoHelpers;
    /// fn reserve<P: Platform>(manager: &Manager<P>, pages: &str) -> Result<(), FileError> {
    ///     let pools = manager.hugetlb().files(&NoHelpers);
    ///     let (memory, pools) = (manager.files(), pools.table());
    ///     FileSystem::new(&[&memory, &pools]).write("/proc/sys/vm/nr_hugepages", pages)
    /// }
    /// ```
    #[must_use]
    pub const fn files<'a>(self, helpers: &'a dyn Helpers) -> PoolFiles<'a, P>
    where
        'm: 'a,
    {
        PoolFiles { manager: self.manager, helpers }
    }
}

/// The sizes that can be demoted.
fn sizes_to_demote() -> impl Iterator<Item = PoolSize> {
    PoolSize::ALL.into_iter().filter(|size| size.smaller().is_some())
}

fn node_of(number: u64) -> Result<NodeId, FileError> {
    usize::try_from(number).ok().and_then(NodeId::new).ok_or(FileError::NotFound)
}

fn counts<P: Platform>(
    pool: &Pool<'_, P>,
    node: Option<NodeId>,
) -> Result<crate::hugetlb::NodeCounts, FileError> {
    Ok(match node {
        None => pool.counts().all,
        Some(node) => pool.node_counts(node)?,
    })
}

impl From<PoolError> for FileError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NoNode(_) => Self::NotFound,
            PoolError::NoPage(_) => Self::NoMemory,
            PoolError::NothingToDemote | PoolError::Busy => Self::Busy,
            PoolError::NotANumber
            | PoolError::NotPossible(_)
            | PoolError::NotReserved { .. }
            | PoolError::NotAllocated(_) => Self::Invalid,
        }
    }
}
