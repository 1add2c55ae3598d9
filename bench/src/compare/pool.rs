//! Pools of huge pages, filled and emptied by both in one way.

use super::linux::Resize;
use super::rows::{Demand, Row, Unit};

const OPTIMIZE: &str = "/proc/sys/vm/hugetlb_optimize_vmemmap";
const RESTORE: &str = "/sys/module/framewright/parameters/hugetlb_restore";

/// The most pages of 2 MiB, or of 1 GiB.
const MOST_PAGES: u64 = 2048;
/// A smaller pool shows nothing.
const LEAST_PAGES: u64 = 128;

/// How many times faster than Linux ours must be, without HVO and with it.
const DEMANDED: [f64; 2] = [2.0, 10.0];

/// A pool: the size and the number of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    pub size_kb: u64,
    pub pages: u64,
}

/// Whether pages in the pool give up their part of the memory map (HVO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaim {
    Off,
    On,
}

/// When a pool was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measured {
    Boot,
    RunTime,
}

impl Reclaim {
    /// Both variants, in the order in which they are measured.
    pub const ALL: [Self; 2] = [Self::Off, Self::On];

    /// The variant's name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

/// The pools for a machine of this size: a quarter of it in 1 GiB pages, which come first, while
/// memory is not fragmented, and half of it in 2 MiB pages.
pub fn all(memory_bytes: u64) -> Vec<Pool> {
    let (small, large) = (small(memory_bytes), large(memory_bytes));
    [large, small].into_iter().flatten().collect()
}

fn small(memory_bytes: u64) -> Option<Pool> {
    let pages = (memory_bytes >> 22).min(MOST_PAGES);
    (pages >= LEAST_PAGES).then_some(Pool { size_kb: 2 << 10, pages })
}

fn large(memory_bytes: u64) -> Option<Pool> {
    let pages = memory_bytes >> 32;
    (pages > 0).then_some(Pool { size_kb: 1 << 20, pages })
}

/// Rows for pools that this memory is too small for.
pub fn skipped(memory_bytes: u64) -> Vec<Row> {
    let why = |least: &str| {
        Some(format!(
            "{} MiB of memory are too little: at least {least} are needed",
            memory_bytes >> 20
        ))
    };
    let row = |name: &str, least: &str| {
        let mut row = Row::new(&format!("pool of {name}, fill"), Unit::Milliseconds);
        row.skipped = why(least);
        row
    };
    let mut rows = Vec::new();
    if small(memory_bytes).is_none() {
        rows.push(row("2 MiB", "512 MiB"));
    }
    if large(memory_bytes).is_none() {
        rows.push(row("1 GiB", "4 GiB"));
    }
    rows
}

impl Pool {
    /// The file by which Linux resizes the pool.
    pub fn linux_file(self) -> &'static str {
        if self.size_kb == 2 << 10 {
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        } else {
            "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
        }
    }

    /// The name of the size in the guest's shell and in both logs.
    pub fn our_name(self) -> &'static str {
        if self.size_kb == 2 << 10 { "2.00 MiB" } else { "1.00 GiB" }
    }

    fn name(self) -> &'static str {
        if self.size_kb == 2 << 10 { "2 MiB" } else { "1 GiB" }
    }

    /// The boot parameters, for both, that fill the pool.
    pub fn boot_words(self, reclaim: Reclaim) -> String {
        let size = if self.size_kb == 2 << 10 { "2M" } else { "1G" };
        let on = if reclaim == Reclaim::On { "on" } else { "off" };
        format!("hugepagesz={size} hugepages={} hugetlb_free_vmemmap={on}", self.pages)
    }

    /// The rows for filling and emptying.
    pub fn rows(self, reclaim: Reclaim, when: &str, measured: Measured) -> [Row; 2] {
        ["fill", "empty"].map(|what| {
            let row = Row::new(&format!("pool of {}, {what}", self.name()), Unit::Milliseconds)
                .with(|row| {
                    row.when = Some(when.into());
                    row.size_kb = Some(self.size_kb);
                    row.pages = Some(self.pages);
                    row.reclaim = Some(reclaim.name().into());
                });
            if measured == Measured::RunTime && self.size_kb == 2 << 10 {
                row.demanding(Demand::Ratio(DEMANDED[usize::from(reclaim == Reclaim::On)]))
            } else {
                row
            }
        })
    }

    /// Adds resizes of both, alternately fill and empty, to the two rows. A run in which either did
    /// not get all pages, or kept some, counts for neither.
    pub fn add(self, rows: &mut [Row; 2], linux: &[Resize], ours: &[Resize]) {
        for (theirs, our) in linux.chunks(2).zip(ours.chunks(2)) {
            let ([their_fill, their_empty], [our_fill, our_empty]) = (theirs, our) else {
                continue;
            };
            let short = [("Linux", their_fill), ("ours", our_fill)]
                .into_iter()
                .find(|(_, fill)| fill.reached < self.pages);
            let full = [("Linux", their_empty), ("ours", our_empty)]
                .into_iter()
                .find(|(_, empty)| empty.reached != 0);
            if let Some((who, fill)) = short {
                Self::leave_out(
                    rows,
                    &format!("{who} got {} of {} pages", fill.reached, self.pages),
                );
            } else if let Some((who, empty)) = full {
                Self::leave_out(
                    rows,
                    &format!("{who} kept {} of {} pages", empty.reached, self.pages),
                );
            } else {
                rows[0].add([their_fill.ms], [our_fill.ms]);
                rows[1].add([their_empty.ms], [our_empty.ms]);
            }
        }
    }

    /// Notes that a run does not count, and why.
    pub fn leave_out(rows: &mut [Row; 2], why: &str) {
        rows.iter_mut().for_each(|row| row.skipped = Some(why.to_owned()));
    }

    /// The script for Linux's program.
    pub fn linux_script(self, reclaim: Reclaim, cycles: usize) -> String {
        let on = u8::from(reclaim == Reclaim::On);
        let file = self.linux_file();
        let cycle = format!("resize {file} {}\nresize {file} 0\n", self.pages);
        format!("write {OPTIMIZE} {on}\n{}", cycle.repeat(cycles))
    }

    /// The commands for the guest's shell, with a `;` in front. Between two timed fills the pages
    /// get their part of the map back, as they do in Linux.
    pub fn commands(self, reclaim: Reclaim, cycles: usize) -> String {
        let size = if self.size_kb == 2 << 10 { "2M" } else { "1G" };
        let (pages, file) = (self.pages, self.linux_file());
        let cycle = format!("; resize {size} {pages}; resize {size} 0");
        if reclaim == Reclaim::Off {
            return format!("; echo 0 > {OPTIMIZE}{}", cycle.repeat(cycles));
        }
        let whole = format!(
            "; echo lazy > {RESTORE}; echo 1 > {OPTIMIZE}{cycle}; echo 0 > {OPTIMIZE}; echo eager \
             > {RESTORE}; echo {pages} > {file}; echo 0 > {file}"
        );
        whole.repeat(cycles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Compare;

    #[test]
    fn pools_fit_the_memory() {
        let pool = |size_kb, pages| Pool { size_kb, pages };
        assert_eq!(all(8 << 30), [pool(1 << 20, 2), pool(2048, 2048)]);
        assert_eq!(all(64 << 30), [pool(1 << 20, 16), pool(2048, 2048)]);
        assert_eq!(all(2 << 30), [pool(2048, 512)]);
        assert_eq!(all(256 << 20), []);
        assert_eq!(
            (skipped(8 << 30).len(), skipped(2 << 30).len(), skipped(256 << 20).len()),
            (0, 1, 2)
        );
        let row = skipped(2 << 30)[0].value(&Compare::default());
        assert_eq!(row["what"], "pool of 1 GiB, fill");
        assert_eq!(row["skipped"], "2048 MiB of memory are too little: at least 4 GiB are needed");
    }

    #[test]
    fn both_do_the_same() {
        let pool = Pool { size_kb: 2048, pages: 64 };
        let linux = pool.linux_script(Reclaim::On, 2);
        assert_eq!(linux.lines().filter(|line| line.starts_with("resize ")).count(), 4);
        assert!(linux.starts_with("write /proc/sys/vm/hugetlb_optimize_vmemmap 1\n"));
        for reclaim in Reclaim::ALL {
            let ours = pool.commands(reclaim, 2);
            assert_eq!(ours.matches("; resize 2M 64; resize 2M 0").count(), 2, "{ours}");
        }
        assert_eq!(
            pool.boot_words(Reclaim::On),
            "hugepagesz=2M hugepages=64 hugetlb_free_vmemmap=on"
        );
    }

    #[test]
    fn a_pool_that_is_short_of_pages_is_not_compared() {
        let pool = Pool { size_kb: 2048, pages: 64 };
        let resize = |wanted, reached, ms| Resize { wanted, reached, ms };
        let full = [resize(64, 64, 4.0), resize(0, 0, 8.0)];
        let mut rows = pool.rows(Reclaim::On, "run time", Measured::RunTime);
        pool.add(&mut rows, &full, &[resize(64, 64, 1.0), resize(0, 0, 1.0)]);
        let value = rows[1].value(&Compare::default());
        assert_eq!(
            (value["ratio"].as_f64(), value["demanded_ratio"].as_f64()),
            (Some(8.0), Some(10.0))
        );
        assert_eq!(value["met"], false);
        // Earlier measurements still count.
        let short = [resize(64, 63, 4.0), resize(0, 0, 8.0)];
        pool.add(&mut rows, &short, &full);
        let value = rows[0].value(&Compare::default());
        assert_eq!((value["repetitions"].as_u64(), value.get("skipped")), (Some(1), None));
        assert_eq!(value["remark"], "left out where Linux got 63 of 64 pages");
        let mut rows = pool.rows(Reclaim::On, "run time", Measured::RunTime);
        pool.add(&mut rows, &full, &short);
        assert_eq!(rows[1].value(&Compare::default())["skipped"], "ours got 63 of 64 pages");
        let kept = [resize(64, 64, 4.0), resize(0, 1, 8.0)];
        let mut rows = pool.rows(Reclaim::On, "run time", Measured::RunTime);
        pool.add(&mut rows, &kept, &full);
        assert_eq!(rows[0].value(&Compare::default())["skipped"], "Linux kept 1 of 64 pages");
    }
}
