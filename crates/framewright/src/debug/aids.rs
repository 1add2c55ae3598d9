//! The debug aids that the command line asks for.

use crate::parameters::Parameters;

/// The debug aids that are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aids {
    /// Each page records which code allocated it and which freed it last.
    pub page_owner: bool,
    /// Free memory is filled with [`POISON`](super::POISON), which is checked when the memory is
    /// handed out.
    pub page_poison: bool,
    /// Memory is cleared when it is handed out.
    pub init_on_alloc: bool,
    /// Memory is cleared when it is freed.
    pub init_on_free: bool,
    /// In large runs, only the first page of each block is poisoned.
    pub poison_sparsely: bool,
    /// Memory is taken from random places, with this seed.
    pub placement_seed: Option<u64>,
}

impl Aids {
    const NONE: Self = Self {
        page_owner: false,
        page_poison: false,
        init_on_alloc: false,
        init_on_free: false,
        poison_sparsely: false,
        placement_seed: None,
    };

    /// The aids that a command line asks for. `careful` turns on page owners and poison. Poison
    /// takes precedence over clearing, as in Linux.
    #[must_use]
    pub const fn of(parameters: &Parameters) -> Self {
        if !cfg!(feature = "debug") {
            return Self::NONE;
        }
        let careful = parameters.careful.is_some();
        let page_poison = parameters.page_poison || careful;
        Self {
            page_owner: parameters.page_owner || careful,
            page_poison,
            init_on_alloc: parameters.init_on_alloc && !page_poison,
            init_on_free: parameters.init_on_free && !page_poison,
            poison_sparsely: careful && !parameters.page_poison,
            placement_seed: parameters.careful,
        }
    }

    /// Whether an aid watches allocations and frees.
    #[must_use]
    pub const fn watch(&self) -> bool {
        cfg!(feature = "debug")
            && (self.page_owner || self.page_poison || self.init_on_alloc || self.init_on_free)
    }
}
