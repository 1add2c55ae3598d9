//! What blocks are used for: three types that follow the use, and two that are grades and stay.

/// Whether the owner of a block's pages can move them, which decides with whom it shares
/// neighbourhoods. Linux's names and order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum MigrateType {
    /// Cannot be moved.
    Unmovable = 0,
    /// Can be moved. All memory is of this type at first.
    #[default]
    Movable = 1,
    /// Can be dropped.
    Reclaimable = 2,
    /// Being taken out; not allocated from. Free memory is counted so; no block is of this type.
    Isolate = 3,
    /// For what can be moved and nothing else: [`Grade::MovableOnly`](crate::zone::Grade).
    MovableOnly = 4,
    /// Lent out as movable memory, to come back as one piece:
    /// [`Grade::Removable`](crate::zone::Grade).
    Cma = 5,
}

impl MigrateType {
    /// The first type that is a grade: its blocks keep it, whatever takes of them.
    pub(super) const FIRST_GRADE: u64 = Self::MovableOnly as u64;
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All, in order.
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

    /// Whether a free block may take its neighbour's type when they merge.
    #[must_use]
    pub const fn is_mergeable(self) -> bool {
        matches!(self, Self::Unmovable | Self::Movable | Self::Reclaimable)
    }

    /// Whether blocks of this type keep it, whatever takes of them: for contents that move alone.
    #[must_use]
    pub const fn is_grade(self) -> bool {
        cfg!(feature = "moving") && self as u64 >= Self::FIRST_GRADE
    }

    /// Which of the grades it is.
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

    /// The type of a block of this type once a request of `wanted` has taken all of it.
    pub(crate) const fn taken_for(self, wanted: Self) -> Self {
        if !cfg!(feature = "moving") {
            return wanted;
        }
        if self.is_grade() { self } else { wanted }
    }

    /// Whose blocks to take, in this order, when there is none of the own type.
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
