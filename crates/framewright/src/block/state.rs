//! The state word of a block: everything about 2 MiB of memory in 64 bits.
//!
//! ```text
//!  0.. 3  state          (zero: inner)          19..28  free frames of a split block, 0..=512
//!  4.. 8  order          (of a head)            29..38  managed frames of a split block
//!  9..11  migrate type   (of a head)            39..48  present frames of a split block
//! 12..13  map form       (none, array, inside)  49..52  free order of a split block, see below
//! 14      isolated       15  reporting, going   53..61  first map frame (split, inside form)
//! 16      poisoned                              62      scattered   63  undescribed (split blocks)
//! 18      swept          (split blocks)         53      counted (blocks that are allocated whole)
//!                                                       again (unaccepted)
//!                                               54      reported (free heads), ahead (unaccepted),
//!                                                       accepted (offline heads, lost ones)
//!                                               55      kept (allocated whole, unaccepted),
//!                                                       there (offline heads)
//! ```
//!
//! In an offline head whose memory is absent, bits 19..21 say what its blocks were before they
//! went.
//!
//! The *free order* says which set of the free index a split block is in: zero for none, else one
//! more than an order that no free run of the block exceeds. It follows from the number of free
//! frames or, until the next free, from a search that found only smaller runs. A block that is
//! *isolated* or *undescribed* is in no set, whatever is free in it. The *first map frame* locates
//! page descriptors that lie inside the block: it is the first of eight adjacent frames or, if they
//! are *scattered*, the frame that records where the others are.
//!
//! *Reporting*: blocks that the hypervisor holds have a state of their own, so that the path that
//! frees blocks need not test a bit for it; the bit says that the hypervisor holds runs of a split
//! block. A split block is *swept* once all that is free in it was reported; any free ends that. A
//! free head is *reported* when each of its blocks is. Memory that could not be accepted is
//! *reserved* and *poisoned*, or *offline* and *poisoned* if it was only tried for the sake of the
//! block before it.

use super::migrate_type::MigrateType;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use core::fmt;

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Not the head of anything: the block is inside a larger one, or is a hole. All bits of the
    /// word are zero.
    Inner = 0,
    /// Head of a free block, linked in its zone's lists.
    Free = 1,
    /// Head of an allocated block. If it is counted, its links hold its reference count and its
    /// owner word.
    Whole = 2,
    /// Divided into pages by its free map. Blocks with holes or reserved frames are split, too.
    Split = 3,
    /// Head of memory that was reserved before bring-up.
    Reserved = 4,
    /// Head of blocks that are not usable memory at the moment but may become so.
    Offline = 5,
    /// Head of memory that the guest has not accepted yet. It is in the zone's list of unaccepted
    /// memory unless it is *kept*, because nothing can accept it.
    Unaccepted = 6,
    /// Head of a block that a huge-page pool holds.
    Pool = 7,
    /// Head of an isolated free block: it is in no list and merges with nothing.
    Isolated = 8,
    /// Head of memory that is withheld until its part of the vmemmap is initialised.
    Deferred = 9,
    /// Head of a free block that the hypervisor holds ([`reporting`](crate::reporting)): it is in
    /// no list and merges with nothing.
    Reporting = 10,
    /// Head of memory that a CPU is accepting at the moment.
    Accepting = 11,
}

impl State {
    /// Returns whether blocks of this state can exist in a library built with these features; the
    /// code does not look for the others.
    #[cfg_attr(
        not(feature = "files"),
        allow(clippy::match_like_matches_macro, reason = "parts that are off")
    )]
    const fn exists(self) -> bool {
        match self {
            Self::Offline => cfg!(feature = "hotplug"),
            Self::Pool => cfg!(feature = "pools"),
            Self::Isolated => cfg!(feature = "moving"),
            Self::Deferred => cfg!(feature = "vmemmap"),
            Self::Reporting => cfg!(feature = "reporting"),
            Self::Accepting => ACCEPTS,
            _ => true,
        }
    }

    const fn from_bits(bits: u64) -> Option<Self> {
        let state = match bits {
            0 => Self::Inner,
            1 => Self::Free,
            2 => Self::Whole,
            3 => Self::Split,
            4 => Self::Reserved,
            5 => Self::Offline,
            6 => Self::Unaccepted,
            7 => Self::Pool,
            8 => Self::Isolated,
            9 => Self::Deferred,
            10 => Self::Reporting,
            11 => Self::Accepting,
            _ => return None,
        };
        if state.exists() { Some(state) } else { None }
    }
}

/// Where the page descriptors of a block are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum DescriptorForm {
    /// Nowhere: the block is not split, or the adopter wants no descriptors.
    #[default]
    None = 0,
    /// In the vmemmap.
    Array = 1,
    /// In eight of the block's own frames.
    Inside = 2,
}

/// Whether there may be memory that has to be accepted. Memory that is added later may need it if
/// the platform says so, however the memory that firmware left was handled.
pub(crate) const ACCEPTS: bool = cfg!(any(feature = "accept", feature = "hotplug"));

const STATE_BITS: u64 = 0xf;
const ORDER_SHIFT: u32 = 4;
const TYPE_SHIFT: u32 = 9;
/// The bit of the migrate type that is set for grades and clear for all other types.
const GRADE_BIT: u64 = MigrateType::FIRST_GRADE << TYPE_SHIFT;
const FORM_SHIFT: u32 = 12;
const FREE_SHIFT: u32 = 19;
const MANAGED_SHIFT: u32 = 29;
const PRESENT_SHIFT: u32 = 39;
const FREE_ORDER_SHIFT: u32 = 49;
const FREE_ORDER_BITS: u64 = 0xf;
const COUNT_BITS: u64 = 0x3ff;
const MAP_SHIFT: u32 = 53;
const MAP_BITS: u64 = 0x1ff;

/// One state word. See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockState(u64);

impl BlockState {
    /// The word of a block that is not a head.
    pub const INNER: Self = Self(0);
    /// Bit: the block is being taken out of use, and its frames are not handed out.
    pub const ISOLATED: u64 = 1 << 14;
    /// Bit, of a split block: the hypervisor holds runs of it at the moment.
    pub const REPORTING: u64 = 1 << 15;
    /// Bit: the block holds a frame with a memory error.
    pub const POISONED: u64 = 1 << 16;
    /// Bit, of a split block: all that is free in it was reported, and nothing was freed since.
    pub const SWEPT: u64 = 1 << 18;
    /// Bit, of a block that is allocated whole: its links hold its reference count and its owner
    /// word.
    pub const COUNTED: u64 = 1 << 53;
    /// Bit, of a free head: all of its blocks were reported to the hypervisor.
    pub const REPORTED: u64 = 1 << 54;
    /// Bit, of an unaccepted block of 2 MiB: it was accepted ahead of its use because the block
    /// before it is in use.
    pub const AHEAD: u64 = 1 << 54;
    /// Bit, of an offline head, or of one that is out of use because memory could not be accepted:
    /// its memory is accepted.
    pub const ACCEPTED: u64 = Self::AHEAD;
    /// Bit, of an unaccepted head: it was added or came back after bring-up, so its descriptors are
    /// not those of bring-up.
    pub const AGAIN: u64 = 1 << 53;
    /// Bit, of an unaccepted head: it is being taken out of use and is in no list.
    pub const GOING: u64 = 1 << 15;
    /// Bit, of a block that is allocated whole: the manager has it, for the vmemmap or for a pool,
    /// and nobody else may free it.
    pub const KEPT: u64 = 1 << 55;
    /// Bit, of an offline head: the memory is there but is not handed out.
    pub const THERE: u64 = 1 << 55;
    /// Bit, of a split block: the eight frames that hold its descriptors are not adjacent.
    pub const SCATTERED: u64 = 1 << 62;
    /// Bit, of a split block: its pages need descriptors, but there are not yet eight free frames
    /// to hold them. Until then its free frames are not handed out.
    pub const UNDESCRIBED: u64 = 1 << 63;
    /// Bits that keep the free frames of a split block from being handed out.
    const UNAVAILABLE: u64 = (Self::ISOLATED | Self::UNDESCRIBED) & Self::EXISTING;
    /// Bits that a library built with these features may set.
    const EXISTING: u64 = !(if cfg!(feature = "moving") { 0 } else { Self::ISOLATED }
        | if cfg!(feature = "vmemmap") { 0 } else { Self::SCATTERED | Self::UNDESCRIBED }
        | if cfg!(feature = "vmemmap") || ACCEPTS { 0 } else { Self::COUNTED }
        | if cfg!(feature = "reporting") || ACCEPTS { 0 } else { Self::GOING }
        | if cfg!(feature = "reporting") { 0 } else { Self::SWEPT }
        | if cfg!(feature = "reporting") || ACCEPTS { 0 } else { Self::REPORTED }
        | if cfg!(feature = "pools") || ACCEPTS { 0 } else { Self::POISONED });

    /// Wraps a raw word of the table.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the raw word, as the table stores it.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns the word of a head of `order` (9..=18).
    #[must_use]
    pub const fn head(state: State, order: Order, migrate_type: MigrateType) -> Self {
        Self(
            state as u64
                | (order.get() as u64) << ORDER_SHIFT
                | (migrate_type as u64) << TYPE_SHIFT,
        )
    }

    /// Returns the word of a split block with no frame free, managed or known to be present yet.
    #[must_use]
    pub const fn split(migrate_type: MigrateType) -> Self {
        Self::head(State::Split, Order::BLOCK, migrate_type)
    }

    /// Returns the block's state; `None` when the state bits have no meaning.
    #[must_use]
    pub const fn state(self) -> Option<State> {
        State::from_bits(self.0 & STATE_BITS)
    }

    /// Returns whether the block is in `state`.
    #[must_use]
    pub const fn is(self, state: State) -> bool {
        state.exists() && self.0 & STATE_BITS == state as u64
    }

    /// Returns the order of a head.
    #[must_use]
    pub const fn order(self) -> Order {
        let order = (self.0 >> ORDER_SHIFT & 0x1f) as u8;
        // A word with unknown bits must not make its reader fail.
        match Order::new(if order > MAX_ORDER { MAX_ORDER } else { order }) {
            Some(order) => order,
            None => Order::MAX,
        }
    }

    /// Returns the migrate type of a head.
    #[must_use]
    pub const fn migrate_type(self) -> MigrateType {
        MigrateType::from_bits(self.0 >> TYPE_SHIFT & 7)
    }

    /// Returns where the block's page descriptors are.
    #[must_use]
    pub const fn descriptor_form(self) -> DescriptorForm {
        match self.0 >> FORM_SHIFT & 3 {
            _ if !cfg!(feature = "vmemmap") => DescriptorForm::None,
            1 => DescriptorForm::Array,
            2 => DescriptorForm::Inside,
            _ => DescriptorForm::None,
        }
    }

    /// Returns whether `bit`, one of this type's constants, is set.
    #[must_use]
    pub const fn has(self, bit: u64) -> bool {
        self.0 & bit & Self::EXISTING != 0
    }

    /// Returns this word with a bit set.
    #[must_use]
    pub const fn with(self, bit: u64) -> Self {
        Self(self.0 | bit)
    }

    /// Returns this word with a bit cleared.
    #[must_use]
    pub const fn without(self, bit: u64) -> Self {
        Self(self.0 & !bit)
    }

    /// Returns whether the block's free frames are withheld until an isolation ends.
    #[must_use]
    pub const fn is_isolated(self) -> bool {
        if !cfg!(feature = "moving") {
            return false;
        }
        self.is(State::Isolated) || self.has(Self::ISOLATED)
    }

    /// Returns whether nobody may free this block, which is allocated whole: the manager keeps it,
    /// or it has a memory error.
    #[must_use]
    pub const fn is_nobodys(self) -> bool {
        if !cfg!(feature = "vmemmap") {
            return false;
        }
        self.has(Self::KEPT | Self::POISONED)
    }

    /// Returns whether the free frames of a split block are withheld: it is isolated or waits for
    /// descriptors.
    #[must_use]
    #[cfg_attr(not(feature = "files"), allow(clippy::bad_bit_mask, reason = "parts that are off"))]
    pub const fn is_unavailable(self) -> bool {
        if !cfg!(any(feature = "moving", feature = "vmemmap")) {
            return false;
        }
        self.0 & Self::UNAVAILABLE != 0
    }

    /// Returns how many of a split block's frames hold its descriptors.
    #[must_use]
    pub const fn descriptor_pages(self) -> u64 {
        match self.descriptor_form() {
            DescriptorForm::Inside => VMEMMAP_PAGES_PER_BLOCK,
            DescriptorForm::None | DescriptorForm::Array => 0,
        }
    }

    /// Of a split block in the inside form: the frame at which its descriptors begin, as an offset
    /// into the block.
    #[must_use]
    pub const fn descriptors_first(self) -> usize {
        (self.0 >> MAP_SHIFT & MAP_BITS) as usize
    }

    /// Returns this split block with descriptors inside it, from frame `first` on.
    #[must_use]
    pub const fn with_descriptors(self, first: usize, scattered: bool) -> Self {
        let place =
            (first as u64 & MAP_BITS) << MAP_SHIFT | if scattered { Self::SCATTERED } else { 0 };
        Self(
            self.without_descriptors().0 & !Self::UNDESCRIBED
                | (DescriptorForm::Inside as u64) << FORM_SHIFT
                | place,
        )
    }

    /// Returns this split block with descriptors in the array.
    #[must_use]
    pub const fn with_array(self) -> Self {
        Self(self.without_descriptors().0 | (DescriptorForm::Array as u64) << FORM_SHIFT)
    }

    /// Returns this split block without descriptors.
    #[must_use]
    pub const fn without_descriptors(self) -> Self {
        Self(self.0 & !(3 << FORM_SHIFT | MAP_BITS << MAP_SHIFT | Self::SCATTERED))
    }

    /// Returns the number of free frames of a split block.
    #[must_use]
    pub const fn free_pages(self) -> u64 {
        self.0 >> FREE_SHIFT & COUNT_BITS
    }

    /// Returns the number of managed frames of a split block.
    #[must_use]
    pub const fn managed_pages(self) -> u64 {
        self.0 >> MANAGED_SHIFT & COUNT_BITS
    }

    /// Of an offline head whose memory is absent: what its blocks were, as given to
    /// [`with_past`](Self::with_past); zero if that is not known.
    #[must_use]
    pub(crate) const fn past(self) -> u64 {
        self.0 >> FREE_SHIFT & 7
    }

    /// Returns this offline head, whose memory is absent, with a note of what its blocks were: at
    /// most 7.
    #[must_use]
    pub(crate) const fn with_past(self, past: u64) -> Self {
        Self(self.0 | past << FREE_SHIFT)
    }

    /// Returns the number of present frames of a split block that belong to the block's zone.
    #[must_use]
    pub const fn present_pages(self) -> u64 {
        self.0 >> PRESENT_SHIFT & COUNT_BITS
    }

    /// Returns the order that no free run in the split block exceeds; `None` if the block is in no
    /// set of the free index.
    #[must_use]
    pub const fn free_order(self) -> Option<u8> {
        let order = (self.0 >> FREE_ORDER_SHIFT & FREE_ORDER_BITS) as u8;
        order.checked_sub(1)
    }

    /// Returns this word with another free order.
    #[must_use]
    pub const fn with_free_order(self, order: Option<u8>) -> Self {
        let bits = match order {
            Some(order) => order as u64 + 1,
            None => 0,
        };
        Self(self.0 & !(FREE_ORDER_BITS << FREE_ORDER_SHIFT) | bits << FREE_ORDER_SHIFT)
    }

    /// Returns this word with another order.
    #[must_use]
    pub const fn with_order(self, order: Order) -> Self {
        Self(self.0 & !(0x1f << ORDER_SHIFT) | (order.get() as u64) << ORDER_SHIFT)
    }

    /// Returns this word with another migrate type.
    #[must_use]
    pub const fn with_migrate_type(self, migrate_type: MigrateType) -> Self {
        Self(self.0 & !(7 << TYPE_SHIFT) | (migrate_type as u64) << TYPE_SHIFT)
    }

    /// Returns whether pages of this block may be allocated and can be handed out again after a
    /// free: it is a split block that is not isolated and does not wait for descriptors.
    #[inline]
    pub(crate) const fn is_available_split(self) -> bool {
        self.0 & (STATE_BITS | Self::UNAVAILABLE) == State::Split as u64
    }

    /// Returns whether this is a single block of 2 MiB that may be allocated and can be handed out
    /// again after a free.
    #[inline]
    pub(crate) const fn is_somebodys_block(self) -> bool {
        const LOOKED_AT: u64 = STATE_BITS
            | 0x1f << ORDER_SHIFT
            | BlockState::ISOLATED
            | BlockState::KEPT
            | BlockState::POISONED;
        self.0 & LOOKED_AT == State::Whole as u64 | (BLOCK_ORDER as u64) << ORDER_SHIFT
    }

    /// Returns the number of the migrate type of a head.
    #[inline]
    pub(crate) const fn type_number(self) -> u8 {
        (self.0 >> TYPE_SHIFT & 7) as u8
    }

    /// Returns whether the block is of this migrate type.
    #[inline]
    pub(crate) const fn is_of(self, migrate_type: MigrateType) -> bool {
        self.0 >> TYPE_SHIFT & 7 == migrate_type as u64
    }

    /// Returns whether the words differ in anything but the free count, the free order and *swept*.
    #[inline]
    pub(crate) const fn differs_in_kind(self, other: Self) -> bool {
        const COUNTS: u64 =
            COUNT_BITS << FREE_SHIFT | FREE_ORDER_BITS << FREE_ORDER_SHIFT | BlockState::SWEPT;
        (self.0 ^ other.0) & !COUNTS != 0
    }

    /// Returns whether the block's type is a grade.
    #[inline]
    pub(crate) const fn is_graded(self) -> bool {
        cfg!(feature = "moving") && self.0 & GRADE_BIT != 0
    }

    /// Returns whether this is a split block with nothing special: all frames managed, no
    /// descriptors inside, no grade, nothing unavailable and nothing with the hypervisor.
    #[inline]
    #[must_use]
    pub const fn is_plain(self) -> bool {
        const LOOKED_AT: u64 = STATE_BITS
            | 3 << FORM_SHIFT
            | COUNT_BITS << MANAGED_SHIFT
            | GRADE_BIT
            | BlockState::UNAVAILABLE
            | BlockState::REPORTING;
        self.0 & LOOKED_AT == State::Split as u64 | PAGES_PER_BLOCK << MANAGED_SHIFT
    }

    /// Returns this word with another number of free frames.
    #[must_use]
    pub const fn with_free_pages(self, free: u64) -> Self {
        Self(self.0 & !(COUNT_BITS << FREE_SHIFT) | free << FREE_SHIFT)
    }

    /// Returns this word after a free: with another number of free frames, and no longer swept.
    #[inline]
    #[must_use]
    pub const fn freed_to(self, free: u64) -> Self {
        Self(self.0 & !(COUNT_BITS << FREE_SHIFT | Self::SWEPT) | free << FREE_SHIFT)
    }

    /// Returns this word with the three counts of a split block replaced.
    #[must_use]
    pub const fn with_pages(self, free: u64, managed: u64, present: u64) -> Self {
        let mask =
            COUNT_BITS << FREE_SHIFT | COUNT_BITS << MANAGED_SHIFT | COUNT_BITS << PRESENT_SHIFT;
        Self(
            self.0 & !mask
                | free << FREE_SHIFT
                | managed << MANAGED_SHIFT
                | present << PRESENT_SHIFT,
        )
    }
}

impl fmt::Debug for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state() {
            Some(State::Inner) if self.0 == 0 => f.write_str("inner"),
            Some(State::Split) => write!(
                f,
                "split ({} free of {} managed of {} present)",
                self.free_pages(),
                self.managed_pages(),
                self.present_pages()
            ),
            Some(state) => write!(f, "{state:?} {:?} {:?}", self.order(), self.migrate_type()),
            None => write!(f, "unknown word {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        for order in 9..=18 {
            let order = Order::new(order).unwrap_or(Order::MAX);
            for migrate_type in MigrateType::ALL {
                let word =
                    BlockState::head(State::Split, order, migrate_type).with_pages(512, 511, 510);
                assert_eq!((word.order(), word.migrate_type()), (order, migrate_type));
                assert_eq!(
                    (word.free_pages(), word.managed_pages(), word.present_pages()),
                    (512, 511, 510)
                );
                assert!(word.is(State::Split));
                let flags = BlockState::ISOLATED
                    | BlockState::REPORTING
                    | BlockState::POISONED
                    | BlockState::SWEPT;
                assert_eq!(word.word() & flags, 0);
                let whole = BlockState::head(State::Whole, order, migrate_type);
                let marked = whole
                    .with(BlockState::KEPT)
                    .with(BlockState::COUNTED)
                    .with(BlockState::ISOLATED);
                assert!(marked.is_nobodys() && !marked.without(BlockState::KEPT).is_nobodys());
                assert!(
                    (marked.order(), marked.migrate_type()) == (order, migrate_type)
                        && marked.is(State::Whole)
                );
                assert_eq!(word.with_free_pages(7), word.with_pages(7, 511, 510));
                assert_eq!(word.free_order(), None);
                for order in 0..=9 {
                    assert_eq!(word.with_free_order(Some(order)).free_order(), Some(order));
                    assert_eq!(word.with_free_order(Some(order)).with_free_order(None), word);
                }
                assert_eq!(
                    word.with_migrate_type(MigrateType::Cma).migrate_type(),
                    MigrateType::Cma
                );
                assert_eq!(
                    word.with_pages(0, 0, 0),
                    BlockState::head(State::Split, order, migrate_type)
                );
                assert_eq!(word.with_order(Order::PAGE).with_order(order), word);
                assert!(
                    word.with(BlockState::UNDESCRIBED).is_unavailable() && !word.is_unavailable()
                );
                for (first, scattered) in [(0, false), (504, false), (511, true), (7, true)] {
                    let mapped =
                        word.with(BlockState::UNDESCRIBED).with_descriptors(first, scattered);
                    assert_eq!(
                        (
                            mapped.descriptor_form(),
                            mapped.descriptor_pages(),
                            mapped.descriptors_first()
                        ),
                        (DescriptorForm::Inside, 8, first)
                    );
                    assert_eq!(mapped.has(BlockState::SCATTERED), scattered);
                    assert_eq!(mapped.without_descriptors(), word);
                    assert_eq!(
                        mapped.with_free_order(Some(9)).with_pages(1, 2, 3).descriptors_first(),
                        first
                    );
                }
            }
        }
    }

    #[test]
    fn inner_is_zero_and_any_word_can_be_read() {
        assert_eq!(BlockState::INNER.state(), Some(State::Inner));
        let odd = BlockState::from_word(u64::MAX);
        assert_eq!(odd.state(), None);
        assert_eq!(odd.order(), Order::MAX);
    }
}
