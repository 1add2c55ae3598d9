//! When page descriptors are initialised, and whether pages have any.

/// When page descriptors are initialised (`memmap_init=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// All of them at bring-up, by the boot CPU.
    Eager,
    /// A first part at bring-up, the rest by parallel jobs or when memory is needed (Linux:
    /// `mm/mm_init.c`).
    #[default]
    Deferred,
    /// When a block is split, in frames of the block itself.
    OnDemand,
}

impl Policy {
    /// All policies, in the order in which tables list them by [`name`](Self::name).
    pub const ALL: [Self; 3] = [Self::Eager, Self::Deferred, Self::OnDemand];

    /// The name on the command line.
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
    /// [`Inside`](Self::Inside) where the platform has address space for the array,
    /// [`None`](Self::None) elsewhere.
    #[default]
    Auto,
    /// No page has one: the adopter keeps its own books.
    None,
    /// Each page of a split block has one: in the array where the policy asks for it and the
    /// platform has an array, otherwise in eight of the block's own frames.
    Inside,
}

impl Pages {
    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Inside => "inside",
        }
    }

    /// Whether pages have descriptors on a platform with (`array`) or without an array.
    #[must_use]
    pub const fn are_wanted(self, array: bool) -> bool {
        match self {
            Self::Auto => array,
            Self::None => false,
            Self::Inside => true,
        }
    }
}
