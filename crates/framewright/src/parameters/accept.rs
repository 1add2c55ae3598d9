//! When memory that firmware left unaccepted is accepted.

/// When memory that firmware left unaccepted is accepted (`accept_memory=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AcceptPolicy {
    /// When it is needed.
    #[default]
    Lazy,
    /// At bring-up if there is a single CPU, otherwise by
    /// [`Vmemmap::initialise_deferred`](crate::manager::Vmemmap::initialise_deferred) and its
    /// helpers.
    Eager,
    /// When it is needed, and in the background by a task that polls an
    /// [`Acceptor`](crate::manager::Acceptor).
    Background,
}

impl AcceptPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Lazy, Self::Eager, Self::Background];

    /// The name of the policy on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lazy => "lazy",
            Self::Eager => "eager",
            Self::Background => "background",
        }
    }
}
