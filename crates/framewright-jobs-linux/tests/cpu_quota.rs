//! Quotas of control groups: known files, synthetic trees and random text.

use framewright_jobs_linux::CpuQuota;
use framewright_jobs_linux::quota::{
    Group, Mount, parse_cfs, parse_cpu_max, parse_groups, parse_mounts,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that looks like `/`, removed when dropped.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "framewright-quota-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folder");
        fs::write(path, text).expect("file");
        self
    }

    fn quota(&self) -> Option<CpuQuota> {
        CpuQuota::read(&self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup \
                  rw,cpu,cpuacct\n\
                  33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

#[test]
fn the_forms_of_a_quota() {
    let cpus = |text| parse_cpu_max(text).map(CpuQuota::cpus);
    assert_eq!(cpus("max 100000\n"), None);
    assert_eq!(cpus("200000 100000\n"), Some(2));
    assert_eq!(cpus("250000"), Some(3));
    assert_eq!(cpus("1000 100000"), Some(1));
    for odd in ["", "0 100000", "100000 0", "-1 100000", "1 2 3", "x 1", "100000 max"] {
        assert_eq!(cpus(odd), None, "{odd:?}");
    }
    assert_eq!(parse_cfs("-1\n", "100000\n"), None);
    assert_eq!(parse_cfs("150000\n", "50000\n").map(CpuQuota::cpus), Some(3));
    assert_eq!(
        parse_cpu_max("150500 100000").map(|quota| quota.to_string()).as_deref(),
        Some("1.50 CPUs")
    );
}

#[test]
fn the_smallest_quota_on_the_way_up_counts() {
    let tree = || {
        Tree::new().with("proc/self/mountinfo", V2).with("proc/self/cgroup", "0::/a.slice/b c/d\n")
    };
    assert_eq!(tree().quota(), None);
    let both = tree()
        .with("sys/fs/cgroup/a.slice/cpu.max", "300000 100000\n")
        .with("sys/fs/cgroup/a.slice/b c/cpu.max", "400000 100000\n")
        .with("sys/fs/cgroup/a.slice/b c/d/cpu.max", "max 100000\n")
        .with("sys/fs/cgroup/other/cpu.max", "100000 100000\n");
    assert_eq!(both.quota(), CpuQuota::new(300_000, 100_000));
    let leaf = both.with("sys/fs/cgroup/a.slice/b c/d/cpu.max", "20000 10000\n");
    assert_eq!(leaf.quota(), CpuQuota::new(20_000, 10_000));
}

#[test]
fn the_first_version_and_both_at_once() {
    let cpu = "sys/fs/cgroup/cpu,cpuacct";
    let tree = Tree::new()
        .with("proc/self/mountinfo", &format!("{V1}{V2}"))
        .with("proc/self/cgroup", "9:memory:/m\n4:cpuacct,cpu:/docker/1:2\n0::/v2\n")
        .with(&format!("{cpu}/docker/1:2/cpu.cfs_quota_us"), "250000\n")
        .with(&format!("{cpu}/docker/1:2/cpu.cfs_period_us"), "100000\n")
        .with(&format!("{cpu}/docker/cpu.cfs_quota_us"), "-1\n")
        .with(&format!("{cpu}/docker/cpu.cfs_period_us"), "100000\n");
    assert_eq!(tree.quota(), CpuQuota::new(250_000, 100_000));
    let tree = tree.with("sys/fs/cgroup/v2/cpu.max", "100000 100000");
    assert_eq!(tree.quota(), CpuQuota::new(100_000, 100_000));
}

/// A container without a cgroup namespace sees its own group at the mount point.
#[test]
fn a_mount_that_begins_at_a_group() {
    let mounts = "5 4 0:9 /docker/abc /sys/fs/cgroup/c\\040pu rw - cgroup cgroup rw,cpu\n";
    let tree = |group: &str| {
        Tree::new()
            .with("proc/self/mountinfo", mounts)
            .with("proc/self/cgroup", &format!("1:cpu:{group}\n"))
            .with("sys/fs/cgroup/c pu/cpu.cfs_quota_us", "200000")
            .with("sys/fs/cgroup/c pu/cpu.cfs_period_us", "100000")
            .with("sys/fs/cgroup/c pu/in/cpu.cfs_quota_us", "100000")
            .with("sys/fs/cgroup/c pu/in/cpu.cfs_period_us", "100000")
    };
    assert_eq!(tree("/docker/abc").quota().map(CpuQuota::cpus), Some(2));
    assert_eq!(tree("/docker/abc/in").quota().map(CpuQuota::cpus), Some(1));
    // A group beside the mounted one, and one outside it.
    for group in ["/docker/abcd/in", "/elsewhere", "/", "/docker/abc/../x"] {
        assert_eq!(tree(group).quota().map(CpuQuota::cpus), Some(2), "{group}");
    }
}

#[test]
fn nothing_to_read_limits_nothing() {
    assert_eq!(CpuQuota::read(Path::new("/nowhere/at/all")), None);
    assert_eq!(Tree::new().with("proc/self/mountinfo", V2).quota(), None);
}

#[test]
fn lines_of_the_kernel() {
    let mounts = parse_mounts(&format!("{V1}{V2}nonsense\n1 2 3 - \n"));
    let point = |unified, point: &str| Mount { unified, group: "/".into(), point: point.into() };
    assert_eq!(mounts, [point(false, "/sys/fs/cgroup/cpu,cpuacct"), point(true, "/sys/fs/cgroup")]);
    let group = |unified, path: &str| Group { unified, path: path.into() };
    let groups = parse_groups("3:cpuset:/x\n2:cpu:/y:z\n1:name=systemd:/s\n0::/\n\nodd\n");
    assert_eq!(groups, [group(false, "/y:z"), group(true, "/")]);
}

/// Quotas are rounded to the nearest whole number, halves up, and are at least 1.
#[test]
fn a_fraction_of_a_cpu_is_rounded() {
    let (v1, v2) = ("1:cpu:/g\n", "0::/g\n");
    for (quota, expected) in [
        (1_000, 1),
        (50_000, 1),
        (149_999, 1),
        (150_000, 2),
        (199_000, 2),
        (240_000, 2),
        (250_000, 3),
        (300_000, 3),
        (1_549_999, 15),
        (1_550_000, 16),
    ] {
        let tree = Tree::new()
            .with("proc/self/mountinfo", V2)
            .with("proc/self/cgroup", v2)
            .with("sys/fs/cgroup/g/cpu.max", &format!("{quota} 100000\n"));
        assert_eq!(tree.quota().map(CpuQuota::cpus), Some(expected), "{quota}");
        let tree = Tree::new()
            .with("proc/self/mountinfo", V1)
            .with("proc/self/cgroup", v1)
            .with("sys/fs/cgroup/cpu,cpuacct/g/cpu.cfs_quota_us", &format!("{quota}\n"))
            .with("sys/fs/cgroup/cpu,cpuacct/g/cpu.cfs_period_us", "100000\n");
        assert_eq!(tree.quota().map(CpuQuota::cpus), Some(expected), "{quota}");
    }
    assert_eq!(CpuQuota::new(u64::MAX, 1).map(CpuQuota::cpus), usize::try_from(u64::MAX).ok());
    assert_eq!(CpuQuota::new(u64::MAX, u64::MAX).map(CpuQuota::cpus), Some(1));
    // The smallest quota counts, even if both allow the same whole number of CPUs.
    let tree = Tree::new()
        .with("proc/self/mountinfo", V2)
        .with("proc/self/cgroup", "0::/a/b\n")
        .with("sys/fs/cgroup/a/cpu.max", "149000 100000\n")
        .with("sys/fs/cgroup/a/b/cpu.max", "151000 100000\n");
    assert_eq!(tree.quota().map(CpuQuota::cpus), Some(1));
}

proptest! {
    #[test]
    fn random_text_is_no_trouble(text in "(?s).{0,200}", piece in "[0-9a-z:,/\\\\ \n-]{0,80}") {
        for text in [&text, &piece] {
            let _ = (parse_cpu_max(text), parse_cfs(text, text));
            let _ = (parse_groups(text), parse_mounts(text));
            let _ = parse_mounts(&format!("{V1}5 4 0:9 /{text} - cgroup2 x rw\n"));
        }
    }

    #[test]
    fn a_quota_is_read_as_it_was_written(quota in any::<u64>(), period in any::<u64>()) {
        let expected = CpuQuota::new(quota, period);
        prop_assert_eq!(parse_cpu_max(&format!("{quota} {period}\n")), expected);
        prop_assert_eq!(parse_cfs(&quota.to_string(), &period.to_string()), expected);
        if let Some(read) = expected {
            let rounded = (2 * u128::from(quota) + u128::from(period)) / (2 * u128::from(period));
            prop_assert_eq!(read.cpus() as u128, rounded.max(1));
        }
    }

    #[test]
    fn of_a_branch_of_groups_the_smallest_counts(
        quotas in vec(proptest::option::of((1..1000_u64, 1..10_u64)), 1..6)
    ) {
        let mut tree = Tree::new().with("proc/self/mountinfo", V2);
        let mut path = String::new();
        for quota in &quotas {
            path.push_str("/g");
            let pair = |(quota, period)| format!("{quota} {period}");
            let text = quota.map_or("max 100000".to_owned(), pair);
            tree = tree.with(&format!("sys/fs/cgroup{path}/cpu.max"), &text);
        }
        tree = tree.with("proc/self/cgroup", &format!("0::{path}\n"));
        let rounded = |&(quota, period): &(u64, u64)| {
            usize::try_from((2 * quota + period) / (2 * period)).expect("small")
        };
        let least = quotas.iter().flatten().map(rounded).min();
        let read = tree.quota();
        prop_assert_eq!(read.is_some(), least.is_some());
        let new = |&(quota, period): &(u64, u64)| CpuQuota::new(quota, period);
        let one = quotas.iter().flatten().filter_map(new);
        let equal = one.into_iter().filter(|one| Some(*one) == read).count();
        prop_assert!(read.is_none() || equal != 0);
        if let (Some(read), Some(least)) = (read, least) {
            prop_assert_eq!(read.cpus(), 1.max(least));
        }
    }
}
