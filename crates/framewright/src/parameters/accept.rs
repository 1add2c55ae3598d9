//! When memory is accepted that firmware left unaccepted.

/// When memory is accepted that firmware left unaccepted (`accept_memory=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AcceptPolicy {
    /// When it is wanted.
    #[default]
    Lazy,
    /// At bring-up by a single CPU, else by
    /// [`Vmemmap::initialise_deferred`](crate::manager::Vmemmap::initialise_deferred) and its
    /// helpers.
    Eager,
    /// When it is wanted, and meanwhile by whoever polls an
    /// [`Acceptor`](crate::manager::Acceptor).
    Background,
}

impl AcceptPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lazy, Self::Eager, Self::Background];

    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lazy => "lazy",
            Self::Eager => "eager",
            Self::Background => "background",
        }
    }
}
