//! The settings of Linux's administrators: what happens with memory that is added, and how large a
//! *memory block* of the sysfs files is (Linux: `mm/memory_hotplug.c`, `drivers/base/memory.c`,
//! `arch/x86/mm/init_64.c`).
//!
//! Linux puts memory into a kernel zone or into `Movable`; here the memory gets a grade. A policy
//! decides once, and the grade can be changed later
//! ([`Moving::set_grade`](crate::manager::Moving::set_grade)).

use super::{Added, Hotplug, HotplugError, blocks_around};
use crate::manager::state::hotplug::{Group, HotplugSettings, SECTION_BYTES};
use crate::parameters::{OnlinePolicy, OnlineType};
use crate::platform::Platform;
use crate::units::{NodeId, PhysRange};
use crate::zone::{Grade, GradedMemory, ZoneId, ZoneKind};
use core::fmt;

const LARGEST_BLOCK_BYTES: u64 = 2 << 30;

/// Returns how large a memory block is for memory that ends at `end_bytes`. `is_virtual` says
/// whether the machine is known to be virtual, and `most_bytes` is the largest size that was
/// advised, if any.
#[must_use]
pub fn memory_block_bytes(end_bytes: u64, is_virtual: bool, most_bytes: Option<u64>) -> u64 {
    if end_bytes < 64 << 30 {
        return SECTION_BYTES;
    }
    let mut bytes = match most_bytes {
        Some(most) => 1 << most.clamp(SECTION_BYTES, LARGEST_BLOCK_BYTES).ilog2(),
        None if !is_virtual => return LARGEST_BLOCK_BYTES,
        None => LARGEST_BLOCK_BYTES,
    };
    while bytes > SECTION_BYTES && !end_bytes.is_multiple_of(bytes) {
        bytes /= 2;
    }
    bytes
}

/// How much memory is for which use, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// For any request.
    pub kernel_pages: u64,
    /// For movable contents only.
    pub movable_pages: u64,
}

/// How much memory may be for movable contents only, on one node or on all (Linux:
/// `auto_movable_can_online_movable`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovableRatio {
    /// How many movable pages are allowed for each 100 pages for any request; 0 means none.
    pub percent: u64,
    /// Pages of the memory of boot that are for any request.
    pub boot_kernel_pages: u64,
    /// Pages that are for movable contents only.
    pub movable_pages: u64,
}

impl MovableRatio {
    /// Returns whether `wanted_pages` more movable pages leave enough memory for any request. The
    /// pages belong to a device that has `own_kernel_pages` for any request; `others` are the
    /// shares of other devices, each of which first gets the kernel pages that it needs beyond its
    /// own.
    #[must_use]
    pub fn allows(
        self,
        wanted_pages: u64,
        own_kernel_pages: u64,
        others: impl Iterator<Item = Shares>,
    ) -> bool {
        if self.percent == 0 {
            return false;
        }
        let (mut all_needed, mut movable) = (0u64, self.movable_pages);
        for other in others {
            let needed = other.movable_pages.saturating_mul(100) / self.percent;
            all_needed = all_needed.saturating_add(needed.saturating_sub(other.kernel_pages));
            movable = movable.saturating_sub(other.movable_pages);
        }
        // This holds even if no device needs any: a node without boot memory has nothing for a
        // device.
        let Some(kernel) = self.boot_kernel_pages.checked_sub(all_needed).filter(|&left| left != 0)
        else {
            return false;
        };
        let kernel = kernel.saturating_add(own_kernel_pages);
        let movable = u128::from(movable.saturating_add(wanted_pages));
        movable * 100 <= u128::from(self.percent) * u128::from(kernel)
    }
}

/// Why a group was not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// The group shares addresses with another group.
    Overlaps(PhysRange),
    /// There is already the largest possible number of groups.
    Full,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlaps(region) => write!(f, "it overlaps {region}"),
            Self::Full => f.write_str("no more devices are possible"),
        }
    }
}

impl core::error::Error for GroupError {}

impl<P: Platform> Hotplug<'_, P> {
    /// Returns the settings.
    #[must_use]
    #[inline(never)]
    pub fn settings(self) -> HotplugSettings {
        *self.manager.hotplug.settings.lock(self.manager.platform)
    }

    /// Changes the settings for memory that is added from now on. `block_bytes` is used only if it
    /// is a power of two of at least 2 MiB; otherwise it keeps its old value.
    pub fn set_settings(self, settings: HotplugSettings) {
        self.change_settings(|own| *own = settings);
    }

    /// Does [`set_settings`](Self::set_settings) with what `change` makes of the current settings,
    /// so that no concurrent change is lost. `change` is called once, with a lock held.
    pub fn change_settings<R>(self, change: impl FnOnce(&mut HotplugSettings) -> R) -> R {
        let mut own = self.manager.hotplug.settings.lock(self.manager.platform);
        // Change a copy, as `change` may panic half way.
        let mut changed = *own;
        let answer = change(&mut changed);
        if !changed.block_bytes.is_power_of_two() || changed.block_bytes < crate::units::BLOCK_SIZE
        {
            changed.block_bytes = own.block_bytes;
        }
        *own = changed;
        answer
    }

    /// Registers the addresses of a device or module, for the policy *auto-movable*.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn register_group(self, group: Group) -> Result<(), GroupError> {
        let mut groups = self.manager.hotplug.groups.lock(self.manager.platform);
        if let Some(other) = groups
            .iter()
            .flatten()
            .find(|other| !other.region.intersection(group.region).is_empty())
        {
            return Err(GroupError::Overlaps(other.region));
        }
        let place = groups.iter_mut().find(|place| place.is_none()).ok_or(GroupError::Full)?;
        *place = Some(group);
        Ok(())
    }

    /// Removes the group of a device or module that is gone, so that there is room for another.
    /// Returns whether there was such a group. Its memory and its windows stay as they are.
    pub fn unregister_group(self, region: PhysRange) -> bool {
        let mut groups = self.manager.hotplug.groups.lock(self.manager.platform);
        let is_it = |place: &&mut Option<Group>| place.is_some_and(|group| group.region == region);
        groups.iter_mut().find(is_it).and_then(Option::take).is_some()
    }

    /// Returns the group that was registered for a part of a range.
    #[must_use]
    pub fn group_at(self, range: PhysRange) -> Option<Group> {
        let groups = self.manager.hotplug.groups.lock(self.manager.platform);
        let mut all = groups.iter().flatten();
        all.find(|group| !group.region.intersection(range).is_empty()).copied()
    }

    /// Does [`add`](Self::add) as `auto_online_blocks` and the policy say.
    ///
    /// # Errors
    /// [`HotplugError`]; nothing has changed.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    pub unsafe fn add_by_policy(
        self,
        range: PhysRange,
        node: NodeId,
    ) -> Result<Added, HotplugError> {
        match self.grade_for(range, node, self.settings().auto_online) {
            // SAFETY: passed on to the caller.
            Some(grade) => unsafe { self.add(range, node, grade) },
            // SAFETY: passed on to the caller.
            None => unsafe { self.add_offline(range, node) },
        }
    }

    /// Returns the grade that memory gets; `None` if it stays offline.
    #[must_use]
    pub fn grade_for(self, range: PhysRange, node: NodeId, kind: OnlineType) -> Option<Grade> {
        Some(match kind {
            OnlineType::Offline => return None,
            OnlineType::Kernel => Grade::Any,
            OnlineType::Movable => Grade::MovableOnly,
            OnlineType::Online => match self.settings().policy {
                OnlinePolicy::ContigZones => self.contiguous_grade(range, node),
                OnlinePolicy::AutoMovable => self.auto_grade(range, node),
            },
        })
    }

    fn contiguous_grade(self, range: PhysRange, node: NodeId) -> Grade {
        let frames = range.touched_frames();
        let (mut kernel, mut movable) = (GradedMemory::default(), GradedMemory::default());
        for (number, zone) in self.manager.zones().iter().enumerate() {
            let ZoneId { node: on, kind } = zone.id();
            if on != node {
                continue;
            }
            let is_kind = kind == ZoneKind::of(frames.start);
            for grade in [Grade::Any, Grade::MovableOnly, Grade::Removable] {
                // Like Linux's `Movable`, which is one zone for all kinds of a node. Removable
                // memory of boot is that of areas, which are part of a kernel zone.
                let is_window = number >= self.manager.hotplug.first_window;
                let sum = if grade == Grade::MovableOnly || grade == Grade::Removable && is_window {
                    &mut movable
                } else if is_kind {
                    &mut kernel
                } else {
                    continue;
                };
                *sum += zone.graded_memory(self.manager.platform, grade);
            }
        }
        let touches = |memory: GradedMemory| !memory.span.intersection(frames).is_empty();
        match (touches(kernel), touches(movable)) {
            (true, false) => Grade::Any,
            (false, true) => Grade::MovableOnly,
            _ if self.manager.hotplug.movable_node => Grade::MovableOnly,
            _ => Grade::Any,
        }
    }

    fn auto_grade(self, range: PhysRange, node: NodeId) -> Grade {
        let settings = self.settings();
        let groups = *self.manager.hotplug.groups.lock(self.manager.platform);
        let own = self.group_at(range);
        let (wanted_pages, own_kernel_pages) = match own {
            Some(group) => {
                let unit = group.unit_bytes.map_or(group.region, |bytes| {
                    let start = range.start - range.start.checked_rem(bytes).unwrap_or(0);
                    PhysRange::new(start, range.end.max(start.saturating_add(bytes)))
                });
                // Once a part of a module or of a device's unit is for any request, all of it is.
                let shares = self.shares_of(unit);
                if shares.kernel_pages != 0 {
                    return Grade::Any;
                }
                let rest = unit.whole_frames().pages().saturating_sub(shares.movable_pages);
                (rest, self.shares_of(group.region).kernel_pages)
            }
            None => (range.whole_frames().pages(), 0),
        };
        let allows = |on: Option<NodeId>| {
            let ratio = self.ratio(on, settings.auto_movable_ratio);
            let others = groups
                .iter()
                .flatten()
                .filter(|group| {
                    group.unit_bytes.is_some() && own.is_none_or(|own| own.region != group.region)
                })
                .filter(|group| on.is_none_or(|on| group.node == on))
                .map(|group| self.shares_of(group.region));
            ratio.allows(wanted_pages, own_kernel_pages, others)
        };
        if allows(None) && (!settings.auto_movable_numa_aware || allows(Some(node))) {
            Grade::MovableOnly
        } else {
            Grade::Any
        }
    }

    /// Returns the present ratio of a node's memory, or of all memory.
    fn ratio(self, on: Option<NodeId>, percent: u64) -> MovableRatio {
        let mut ratio = MovableRatio { percent, boot_kernel_pages: 0, movable_pages: 0 };
        for (number, zone) in self.manager.zones().iter().enumerate() {
            if on.is_none_or(|on| zone.id().node == on) {
                let graded = zone.most_graded_pages(self.manager.platform);
                ratio.movable_pages += graded;
                if number < self.manager.hotplug.first_window {
                    ratio.boot_kernel_pages += zone.present_pages().saturating_sub(graded);
                }
            }
        }
        ratio
    }

    /// Returns the shares of a region's memory. What the manager keeps there, such as tables, is in
    /// neither.
    #[must_use]
    pub fn shares_of(self, region: PhysRange) -> Shares {
        let mut shares = Shares::default();
        let Some(blocks) = blocks_around(region) else { return shares };
        for piece in self.known(blocks) {
            let [kernel, movable] = piece.zone.shares_in(self.manager.platform, piece.indices());
            shares.kernel_pages += kernel;
            shares.movable_pages += movable;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const PAGES: u64 = GIB / 4096;
    /// 4 GiB less 98 frames for any request, and nothing allowed.
    const BOOT: MovableRatio =
        MovableRatio { percent: 0, boot_kernel_pages: 4 * PAGES - 98, movable_pages: 0 };

    #[test]
    fn memory_blocks_are_as_large_as_linux_makes_them() {
        let mib = |bytes: u64| bytes >> 20;
        assert_eq!(mib(memory_block_bytes(8 * GIB, true, None)), 128);
        assert_eq!(mib(memory_block_bytes(64 * GIB, true, None)), 2048);
        assert_eq!(mib(memory_block_bytes(65 * GIB, true, None)), 1024);
        assert_eq!(mib(memory_block_bytes(100 * GIB, true, Some(300 << 20))), 256);
        assert_eq!(mib(memory_block_bytes(100 * GIB, true, Some(1))), 128);
        assert_eq!(mib(memory_block_bytes(100 * GIB + GIB / 4, true, None)), 256);
        assert_eq!(mib(memory_block_bytes(100 * GIB + GIB / 4, false, None)), 2048);
        assert_eq!(mib(memory_block_bytes(128 * GIB, false, Some(256 << 20))), 256);
    }

    /// With 4 GiB less 98 frames at boot, a module of 12 GiB is movable, one of 16 GiB is not.
    #[test]
    fn a_module_is_for_one_sort_as_a_whole() {
        let none = || core::iter::empty();
        let ratio = MovableRatio { percent: 301, ..BOOT };
        assert!(ratio.allows(12 * PAGES, 0, none()));
        assert!(!ratio.allows(16 * PAGES, 0, none()));
        assert!(!BOOT.allows(1, 0, none()));
    }

    /// In steps of 128 MiB: 96 are movable, then one for any request and three movable in turn.
    #[test]
    fn a_device_keeps_the_ratio_as_it_grows() {
        let unit = (128 << 20) / 4096;
        let mut own = Shares::default();
        let mut sorts = std::string::String::new();
        for _ in 0..108 {
            let movable_pages = own.movable_pages;
            let ratio = MovableRatio { percent: 301, movable_pages, ..BOOT };
            if ratio.allows(unit, own.kernel_pages, core::iter::empty()) {
                own.movable_pages += unit;
                sorts.push('m');
            } else {
                own.kernel_pages += unit;
                sorts.push('k');
            }
        }
        let expected = "m".repeat(96) + "kmmmkmmmkmmm";
        assert_eq!(sorts, expected);
    }

    /// A has 9 GiB movable and needs 3 of the 4 GiB; B gets 3 GiB.
    #[test]
    fn another_device_takes_its_part_of_the_kernel_memory() {
        let a = Shares { kernel_pages: 0, movable_pages: 9 * PAGES };
        let movable_pages = a.movable_pages;
        let ratio = MovableRatio { percent: 300, boot_kernel_pages: 4 * PAGES, movable_pages };
        let b = |wanted: u64| ratio.allows(wanted, 0, core::iter::once(a));
        assert!(b(3 * PAGES));
        assert!(!b(3 * PAGES + 1));
    }
}
