//! `hotplug_windows=`, `memhp_default_state=` and `memory_hotplug.*`: memory that is added while
//! the machine runs.

use super::parse::parse_bool;
use crate::units::parse_decimal;
use core::fmt;

/// How memory that is added goes online.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnlineType {
    /// It stays offline.
    Offline,
    /// The [`OnlinePolicy`] decides between [`Kernel`](Self::Kernel) and
    /// [`Movable`](Self::Movable).
    #[default]
    Online,
    /// For all requests.
    Kernel,
    /// For movable requests only.
    Movable,
}

impl OnlineType {
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Offline, "offline"),
        (Self::Online, "online"),
        (Self::Kernel, "online_kernel"),
        (Self::Movable, "online_movable"),
    ];

    /// Parses Linux's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, own)| *own == name).map(|(kind, _)| kind)
    }
}

impl fmt::Display for OnlineType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = Self::NAMES.into_iter().find(|(kind, _)| kind == self);
        f.write_str(own.map_or("", |(_, name)| name))
    }
}

/// Which requests get memory that is onlined as plain *online*.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnlinePolicy {
    /// The requests that the memory around it serves.
    #[default]
    ContigZones,
    /// Movable requests only, as long as there is enough memory for all requests besides it.
    AutoMovable,
}

impl OnlinePolicy {
    /// Linux's name of the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContigZones => "contig-zones",
            Self::AutoMovable => "auto-movable",
        }
    }

    /// Parses Linux's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::ContigZones, Self::AutoMovable].into_iter().find(|policy| policy.name() == name)
    }
}

/// All parameters of memory hotplug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotplugParameters {
    /// `hotplug_windows=N`: how many ranges of memory unknown at bring-up can be added later, each
    /// together with the memory next to it.
    pub windows: u32,
    /// `memhp_default_state=`.
    pub auto_online: OnlineType,
    /// `memory_hotplug.online_policy=`.
    pub policy: OnlinePolicy,
    /// `memory_hotplug.auto_movable_ratio=`.
    pub auto_movable_ratio: u64,
    /// `memory_hotplug.auto_movable_numa_aware=`.
    pub auto_movable_numa_aware: bool,
    /// `memory_hotplug.memmap_on_memory=`: added memory may hold its own tables, and does so if
    /// much memory is added. Without it all tables lie in existing memory.
    pub memmap_on_memory: bool,
}

/// The default of `hotplug_windows=`.
const DEFAULT_WINDOWS: u32 = 8;
/// The largest value of `hotplug_windows=`.
const MOST_WINDOWS: u32 = 1024;
/// Linux's default of `auto_movable_ratio`, in percent.
const DEFAULT_RATIO: u64 = 301;

impl HotplugParameters {
    /// What it is where nothing is said.
    pub(crate) const fn usual() -> Self {
        Self {
            windows: DEFAULT_WINDOWS,
            auto_online: OnlineType::Online,
            policy: OnlinePolicy::ContigZones,
            auto_movable_ratio: DEFAULT_RATIO,
            auto_movable_numa_aware: true,
            memmap_on_memory: true,
        }
    }
}

impl Default for HotplugParameters {
    fn default() -> Self {
        Self::usual()
    }
}

impl HotplugParameters {
    /// Sets the parameter `name`; `None` when it is not one of these.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), &'static str>> {
        Some(match name {
            "hotplug_windows" => match parse_decimal(value) {
                Some(windows @ 0..=MOST_WINDOWS) => {
                    self.windows = windows;
                    Ok(())
                }
                _ => Err("hotplug_windows= takes a number from 0 to 1024"),
            },
            "memhp_default_state" => OnlineType::parse(value)
                .map(|kind| self.auto_online = kind)
                .ok_or("memhp_default_state= is offline, online, online_kernel or online_movable"),
            "memory_hotplug.online_policy" => OnlinePolicy::parse(value)
                .map(|policy| self.policy = policy)
                .ok_or("memory_hotplug.online_policy= is contig-zones or auto-movable"),
            "memory_hotplug.auto_movable_ratio" => parse_decimal(value)
                .filter(|&ratio| u32::try_from(ratio).is_ok())
                .map(|ratio| self.auto_movable_ratio = ratio)
                .ok_or("memory_hotplug.auto_movable_ratio= takes a number"),
            "memory_hotplug.auto_movable_numa_aware" => parse_bool(value)
                .map(|aware| self.auto_movable_numa_aware = aware)
                .ok_or("memory_hotplug.auto_movable_numa_aware= is Y or N"),
            "memory_hotplug.memmap_on_memory" => {
                let on = if value == "force" { Some(true) } else { parse_bool(value) };
                on.map(|on| self.memmap_on_memory = on)
                    .ok_or("memory_hotplug.memmap_on_memory= is Y, N or force")
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_linuxs() {
        for name in ["offline", "online", "online_kernel", "online_movable"] {
            let kind = OnlineType::parse(name).expect("known");
            assert_eq!(std::format!("{kind}"), name);
        }
        assert_eq!(OnlineType::parse("on"), None);
        for name in ["contig-zones", "auto-movable"] {
            assert_eq!(OnlinePolicy::parse(name).map(OnlinePolicy::name), Some(name));
        }
    }

    #[test]
    fn what_is_set_and_what_is_wrong() {
        let mut own = HotplugParameters::default();
        for (name, value, good) in [
            ("hotplug_windows", "32", true),
            ("hotplug_windows", "1025", false),
            ("memhp_default_state", "online_movable", true),
            ("memhp_default_state", "on", false),
            ("memory_hotplug.online_policy", "auto-movable", true),
            ("memory_hotplug.online_policy", "auto", false),
            ("memory_hotplug.auto_movable_ratio", "4294967295", true),
            ("memory_hotplug.auto_movable_ratio", "400", true),
            ("memory_hotplug.auto_movable_ratio", "-1", false),
            ("memory_hotplug.auto_movable_ratio", "4294967296", false),
            ("memory_hotplug.auto_movable_numa_aware", "N", true),
            ("memory_hotplug.auto_movable_numa_aware", "maybe", false),
            ("memory_hotplug.memmap_on_memory", "force", true),
            ("memory_hotplug.memmap_on_memory", "much", false),
            ("memory_hotplug.memmap_on_memory", "0", true),
        ] {
            let set = own.set(name, value).expect("known");
            assert_eq!(set.is_ok(), good, "{name}={value}");
        }
        assert_eq!(own.set("memory_hotplug.memmap", "1"), None);
        let expected = HotplugParameters {
            windows: 32,
            auto_online: OnlineType::Movable,
            policy: OnlinePolicy::AutoMovable,
            auto_movable_ratio: 400,
            auto_movable_numa_aware: false,
            memmap_on_memory: false,
        };
        assert_eq!(own, expected);
    }
}
