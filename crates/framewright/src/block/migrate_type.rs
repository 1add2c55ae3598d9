//! What blocks are used for: three types that follow the use of a block, two grades that stay, and
//! a type under which isolated blocks are counted.

/// Whether the owner of a block's pages can move them, which decides what pages they share blocks
/// with. The names and the order are Linux's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum MigrateType {
    /// Contents cannot be moved.
    Unmovable = 0,
    /// Contents can be moved. All memory is of this type at first.
    #[default]
    Movable = 1,
    /// Contents can be dropped.
    Reclaimable = 2,
    /// Blocks that are being taken out and are not allocated from. It only counts their free
    /// memory; no block has this type.
    Isolate = 3,
    /// Only for contents that can be moved: [`Grade::MovableOnly`](crate::zone::Grade).
    MovableOnly = 4,
    /// Lent out as movable memory, but must be returnable in one piece:
    /// [`Grade::Removable`](crate::zone::Grade).
    Cma = 5,
}

impl MigrateType {
    /// The first type that is a grade: its blocks keep their type, whoever takes memory from them.
    pub(super) const FIRST_GRADE: u64 = Self::MovableOnly as u64;
    /// The number of types.
    pub const COUNT: usize = 6;
    /// All types, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::Isolate,
        Self::MovableOnly,
        Self::Cma,
    ];

    /// Linux's name, as `/proc/pagetypeinfo` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::Isolate => "Isolate",
            Self::MovableOnly => "MovableOnly",
            Self::Cma => "CMA",
        }
    }

    /// Returns whether a free block may take its neighbour's type when the two merge.
    #[must_use]
    pub const fn is_mergeable(self) -> bool {
        matches!(self, Self::Unmovable | Self::Movable | Self::Reclaimable)
    }

    /// Returns whether blocks of this type keep it, whoever takes memory from them: they are for
    /// movable contents only.
    #[must_use]
    pub const fn is_grade(self) -> bool {
        cfg!(feature = "moving") && self as u64 >= Self::FIRST_GRADE
    }

    /// Returns the number of this grade; `None` for other types.
    pub(crate) const fn grade_index(self) -> Option<usize> {
        if !cfg!(feature = "moving") {
            return None;
        }
        match self {
            Self::MovableOnly => Some(0),
            Self::Cma => Some(1),
            _ => None,
        }
    }

    /// Returns the type that a block of this type has once a request of type `wanted` has taken all
    /// of it.
    pub(crate) const fn taken_for(self, wanted: Self) -> Self {
        if !cfg!(feature = "moving") {
            return wanted;
        }
        if self.is_grade() { self } else { wanted }
    }

    /// Returns the types whose blocks to take, in this order, when a request finds none of its own
    /// type.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Unmovable => &[Self::Reclaimable, Self::Movable],
            Self::Movable if !cfg!(feature = "moving") => &[Self::Reclaimable, Self::Unmovable],
            Self::Movable => &[Self::MovableOnly, Self::Cma, Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => &[Self::Unmovable, Self::Movable],
            Self::Isolate | Self::MovableOnly | Self::Cma => &[],
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Self::Unmovable,
            2 => Self::Reclaimable,
            _ if !cfg!(feature = "moving") => Self::Movable,
            3 => Self::Isolate,
            4 => Self::MovableOnly,
            5 => Self::Cma,
            _ => Self::Movable,
        }
    }
}
