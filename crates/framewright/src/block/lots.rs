//! Where frames go that are freed into a CPU's cache, as far as their block decides it.

use super::migrate_type::MigrateType;
use super::state::BlockState;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};

/// The number of orders of which a CPU's cache keeps many runs in one word: 0..=3.
pub(crate) const WORD_ORDERS: u8 = 4;

/// A block is crowded while at most this many of its frames are free. The CPU that frees frames of
/// a crowded block may use them again.
const CROWDED_PAGES: u64 = PAGES_PER_BLOCK / 4;

/// The number of migrate types that are cached: the mergeable ones, which come first.
const TYPES: u8 = 3;
/// Stacks per order: one for each type, and one for what goes back.
pub(crate) const LOTS: usize = TYPES as usize + 1;

/// Which of a cache's stacks of an order a run is in: the one for requests of a migrate type, or
/// the one for frames that are to go back to the zone. It is a number because every free computes
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lot(u8);

impl Lot {
    /// For runs that are to go back to the zone.
    pub(crate) const BACK: Self = Self(TYPES);
    /// For runs to be handed out to movable requests.
    pub(crate) const MOVABLE: Self = Self(MigrateType::Movable as u8);

    /// Returns the lot for requests of this type, if the type is cached at all.
    #[inline]
    pub(crate) const fn of_type(migrate_type: MigrateType) -> Option<Self> {
        let number = migrate_type as u8;
        if number < TYPES { Some(Self(number)) } else { None }
    }

    /// Returns the migrate type of the runs in it.
    pub(crate) const fn migrate_type(self) -> MigrateType {
        const UNMOVABLE: u8 = MigrateType::Unmovable as u8;
        const RECLAIMABLE: u8 = MigrateType::Reclaimable as u8;
        match self.0 {
            UNMOVABLE => MigrateType::Unmovable,
            RECLAIMABLE => MigrateType::Reclaimable,
            // Runs that go back are movable, too.
            _ => MigrateType::Movable,
        }
    }

    /// Returns all lots.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=TYPES).map(Self)
    }

    /// Its place among the lots of an order.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the lot for a run of `order` (at most 9) from a block with this state. None if the
    /// run cannot be allocated, or if only its zone can take it back.
    #[inline(always)]
    pub(crate) const fn of(state: BlockState, order: Order) -> Option<Self> {
        let may_be = if order.get() < BLOCK_ORDER {
            state.is_available_split()
        } else {
            state.is_somebodys_block()
        };
        if !may_be {
            return None;
        }
        if order.get() < WORD_ORDERS
            && state.is_of(MigrateType::Movable)
            && state.free_pages() > CROWDED_PAGES
        {
            return Some(Self::BACK);
        }
        let number = state.type_number();
        // Blocks that only movable requests may use count as movable.
        Some(if number < TYPES { Self(number) } else { Self::MOVABLE })
    }
}
