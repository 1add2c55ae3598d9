//! Makes room for more regions: the sets' arrays move to larger ones in the memory that the sets
//! describe.
//!
//! Growing changes the very set that grows: the new array becomes a reservation, and the old one
//! ceases to be one. So all places are found first, with room for the reservations that growing the
//! other set adds; after that nothing can fail.

use super::Memblock;
use super::error::{MemblockError, SetName};
use super::region::{Region, RegionFlags};
use super::search::{Place, Query};
use super::storage::GrownArray;
use crate::platform::Platform;
use crate::units::{PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};

/// The regions that the reserved set can gain when the memory set grows: the new array, and a cut
/// where the old one was.
const REGIONS_FOR_AN_ARRAY: usize = 2;

impl<P: Platform> Memblock<'_, P> {
    /// Ensures that the memory set can take `memory_extra` more regions and the reserved set
    /// `reserved_extra`. New arrays are placed outside every range of `avoid`. On an error nothing
    /// has changed.
    pub(super) fn make_room(
        &mut self,
        memory_extra: usize,
        reserved_extra: usize,
        avoid: &[PhysRange],
    ) -> Result<(), MemblockError> {
        let memory_capacity = self.memory.capacity_to_grow_to(memory_extra);
        let for_array = if memory_capacity.is_some() { REGIONS_FOR_AN_ARRAY } else { 0 };
        let reserved_capacity =
            self.reserved.capacity_to_grow_to(reserved_extra.saturating_add(for_array));

        let memory_array = match memory_capacity {
            Some(capacity) => Some(self.find_array(SetName::Memory, capacity, &[avoid])?),
            None => None,
        };
        let reserved_array = match reserved_capacity {
            Some(capacity) => {
                let memory_range =
                    memory_array.as_ref().map_or(PhysRange::default(), |array| array.range);
                Some(self.find_array(SetName::Reserved, capacity, &[avoid, &[memory_range]])?)
            }
            None => None,
        };

        // The reserved set grows first, so that it has room for what the memory set's array adds to
        // it.
        if let Some(array) = reserved_array {
            self.adopt(SetName::Reserved, array);
        }
        if let Some(array) = memory_array {
            self.adopt(SetName::Memory, array);
        }
        Ok(())
    }

    /// Returns the searches for a place for an array of `capacity` regions, the best kind of place
    /// first.
    pub(super) fn array_queries(&self, capacity: usize) -> impl Iterator<Item = Query> + use<P> {
        let query = Query {
            size: GrownArray::bytes(capacity),
            align: PAGE_SIZE,
            window: PhysRange::new(0, self.platform.direct_limit().min(PHYSICAL_ADDRESS_END)),
            node: None,
            hot_pluggable: true,
            unaccepted: false,
            mirrored: false,
            bottom_up: self.bottom_up,
            edges: false,
        };
        let (kinds, mirrored) = (self.hot_pluggable(false), self.mirrored());
        kinds.iter().flat_map(move |&hot_pluggable| {
            mirrored.iter().map(move |&mirrored| Query { hot_pluggable, mirrored, ..query })
        })
    }

    /// Makes an array for `set` in `place`, or says why there is none.
    pub(super) fn array_in(
        &self,
        set: SetName,
        place: Option<Place>,
        capacity: usize,
    ) -> Result<GrownArray, MemblockError> {
        let regions = match set {
            SetName::Memory => self.memory.regions().len(),
            SetName::Reserved => self.reserved.regions().len(),
        };
        let needed_bytes = GrownArray::bytes(capacity);
        let place = place.filter(|_| cfg!(feature = "large-maps"));
        let place = place.ok_or(MemblockError::NoRoomToGrow { set, regions, needed_bytes })?;
        GrownArray::new(self.platform, place)
    }

    /// Makes `array`, whose bytes are free, the array of `set`. The reserved set must have room for
    /// it.
    pub(super) fn adopt(&mut self, set: SetName, array: GrownArray) {
        let own = Region { range: array.range, node: array.node, flags: RegionFlags::KERNEL };
        let old = match set {
            SetName::Memory => self.memory.move_to(array),
            SetName::Reserved => self.reserved.move_to(array),
        };
        self.reserved.cover(&own);
        if let Some(old) = old {
            self.reserved.uncover(old);
        }
    }

    fn find_array(
        &self,
        set: SetName,
        capacity: usize,
        avoid: &[&[PhysRange]],
    ) -> Result<GrownArray, MemblockError> {
        if !cfg!(feature = "large-maps") {
            return self.array_in(set, None, capacity);
        }
        let (memory, reserved) = (self.memory.regions(), self.reserved.regions());
        let place =
            self.array_queries(capacity).find_map(|query| query.find(memory, reserved, avoid));
        self.array_in(set, place, capacity)
    }
}
