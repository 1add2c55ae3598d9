//! When page descriptors come into being, and whether pages have any.

/// When page descriptors come into being (`memmap_init=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// At bring-up, all of them, by the boot CPU.
    Eager,
    /// A first part at bring-up, the rest by parallel jobs or when memory is wanted (Linux:
    /// `mm/mm_init.c`).
    #[default]
    Deferred,
    /// When a block is split, in frames of its own.
    OnDemand,
}

impl Policy {
    /// All, as [`name`](Self::name) orders them in tables.
    pub const ALL: [Self; 3] = [Self::Eager, Self::Deferred, Self::OnDemand];

    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Deferred => "deferred",
            Self::OnDemand => "on-demand",
        }
    }
}

/// Whether pages have descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// As [`Inside`](Self::Inside) where the platform has a place for the array, as
    /// [`None`](Self::None) elsewhere.
    #[default]
    Auto,
    /// None: the adopter keeps its own books.
    None,
    /// Each page of a split block has one: in the array where the policy asks for it and the
    /// platform has one, else in eight of the block's own frames.
    Inside,
}

impl Pages {
    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Inside => "inside",
        }
    }

    /// Whether pages have descriptors, on a platform with or without an array.
    #[must_use]
    pub const fn are_wanted(self, array: bool) -> bool {
        match self {
            Self::Auto => array,
            Self::None => false,
            Self::Inside => true,
        }
    }
}
