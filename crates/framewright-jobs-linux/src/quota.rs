//! How much CPU time the control groups of this process allow it: `cpu.max` of cgroup version 2,
//! `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1.
//!
//! Parsers are pure functions of text. [`CpuQuota::read`] takes the root of the file tree as an
//! argument, so that trees of other machines can be read too.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// CPU time per period, in microseconds. Neither value is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuQuota {
    quota_us: u64,
    period_us: u64,
}

impl CpuQuota {
    /// `None` if either value is 0.
    #[must_use]
    pub fn new(quota_us: u64, period_us: u64) -> Option<Self> {
        (quota_us != 0 && period_us != 0).then_some(Self { quota_us, period_us })
    }

    /// The quota in CPUs, rounded to the nearest whole number (halves are rounded up), as proposed
    /// for Linux's padata. It is at least one, because the caller of a job runs anyway. At most
    /// half a CPU is therefore left unused, or missing at the end of a period.
    #[must_use]
    pub fn cpus(self) -> usize {
        let (whole, rest) = (self.quota_us / self.period_us, self.quota_us % self.period_us);
        let rounded = whole.saturating_add(u64::from(rest >= self.period_us - rest));
        usize::try_from(rounded).unwrap_or(usize::MAX).max(1)
    }

    /// The smallest quota of the groups that this process is in, or `None` if none of them has one.
    /// `root` is `/`, or a folder with the `proc` and `sys` of a machine. A file that cannot be
    /// read sets no limit.
    #[must_use]
    pub fn read(root: &Path) -> Option<Self> {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let mounts = parse_mounts(&text("proc/self/mountinfo")?);
        let groups = parse_groups(&text("proc/self/cgroup")?);
        let folders = mounts.iter().flat_map(|mount| {
            let group = groups.iter().find(|group| group.is_of(mount));
            group.map_or(Vec::new(), |group| folders(mount, &group.path))
        });
        folders
            .filter_map(|folder| Self::of_folder(root, &folder))
            .min_by(|one, other| one.share_cmp(*other))
    }

    fn of_folder(root: &Path, folder: &str) -> Option<Self> {
        let folder = root.join(folder.trim_start_matches('/'));
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        match text("cpu.max") {
            Some(text) => parse_cpu_max(&text),
            None => parse_cfs(&text("cpu.cfs_quota_us")?, &text("cpu.cfs_period_us")?),
        }
    }

    fn share_cmp(self, other: Self) -> std::cmp::Ordering {
        let product = |quota: u64, period: u64| u128::from(quota) * u128::from(period);
        product(self.quota_us, other.period_us).cmp(&product(other.quota_us, self.period_us))
    }
}

/// Prints hundredths of a CPU: `1.50 CPUs`.
impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = u128::from(self.quota_us) * 100 / u128::from(self.period_us);
        write!(f, "{}.{:02} CPUs", hundredths / 100, hundredths % 100)
    }
}

/// Parses the content of `cpu.max`: `max 100000`, or quota and period in microseconds. `None` if
/// there is no limit, or the text is not understood.
#[must_use]
pub fn parse_cpu_max(text: &str) -> Option<CpuQuota> {
    let mut words = text.split_ascii_whitespace();
    let quota = words.next()?.parse().ok()?;
    let period = words.next().map_or(Some(100_000), |period| period.parse().ok())?;
    CpuQuota::new(quota, period).filter(|_| words.next().is_none())
}

/// Parses the contents of `cpu.cfs_quota_us` (-1 for no limit) and `cpu.cfs_period_us`.
#[must_use]
pub fn parse_cfs(quota: &str, period: &str) -> Option<CpuQuota> {
    CpuQuota::new(quota.trim().parse().ok()?, period.trim().parse().ok()?)
}

/// A mounted hierarchy of groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// True for the single hierarchy of version 2, false for the hierarchy of the CPU controller in
    /// version 1. Other hierarchies are left out.
    pub unified: bool,
    /// The group at the mount point.
    pub group: String,
    /// The mount point.
    pub point: String,
}

/// Parses those lines of `/proc/self/mountinfo` that can have CPU quotas.
#[must_use]
pub fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (group, point) = (unescape(left.next()?), unescape(left.next()?));
    let mut right = right.split(' ');
    let unified = match right.next()? {
        "cgroup2" => true,
        "cgroup" if right.nth(1)?.split(',').any(|option| option == "cpu") => false,
        _ => return None,
    };
    Some(Mount { unified, group, point })
}

/// Decodes names. The kernel writes spaces, line ends and backslashes as a backslash and three
/// octal digits (`mangle_path` in Linux's `fs/seq_file.c`).
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            digits
                .iter()
                .try_fold(0_u32, |value, digit| Some(value * 8 + char::from(*digit).to_digit(8)?))
        });
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A group that the process is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Whether the group is of version 2.
    pub unified: bool,
    /// The group's path in its hierarchy.
    pub path: String,
}

impl Group {
    fn is_of(&self, mount: &Mount) -> bool {
        self.unified == mount.unified
    }
}

/// Parses those lines of `/proc/self/cgroup` that can have CPU quotas.
#[must_use]
pub fn parse_groups(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let unified = controllers.is_empty();
        let wanted = unified || controllers.split(',').any(|name| name == "cpu");
        wanted.then(|| Group { unified, path: path.to_owned() })
    };
    text.lines().filter_map(group).collect()
}

/// The folders of a group and of its ancestors, as far as they are visible at the mount.
fn folders(mount: &Mount, group: &str) -> Vec<String> {
    let around = mount.group.trim_end_matches('/');
    // For a group outside the mounted one, only the mount point is visible.
    let inside = group
        .strip_prefix(around)
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        .unwrap_or("");
    let mut path = PathBuf::from(&mount.point);
    let mut folders = vec![mount.point.clone()];
    for name in inside.split('/').filter(|name| !name.is_empty() && *name != ".") {
        if name == ".." {
            break;
        }
        path.push(name);
        folders.push(path.to_string_lossy().into_owned());
    }
    folders
}
