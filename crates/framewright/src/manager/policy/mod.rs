//! NUMA policies: from which nodes a request may get its memory, and which nodes it prefers.
//!
//! A [`NumaPolicy`] is a mode and a set of nodes, as in Linux (`mm/mempolicy.c`). The manager knows
//! no tasks: what has to be remembered between requests, an [`InterleaveCursor`] of four bytes, is
//! kept by the caller. [`Weights`], the manager's or the caller's own, say how much each node gets
//! in a weighted interleave. `allocate` serves one request under a policy, `bulk` many pages at
//! once, and `settings` keeps the manager's weights.
//!
//! | mode | asks |
//! |---|---|
//! | default, local | the nearest node, then the others by distance |
//! | preferred | that node, then the others by their distance from it |
//! | bind | the nodes of the set by distance, and no others |
//! | preferred-many | those, without waiting for memory; then all by distance |
//! | interleave, weighted | the node whose turn it is, then the others by distance from it |

mod allocate;
mod bulk;
mod cursor;
mod settings;
mod weights;

pub use allocate::Placed;
pub use bulk::PlacedBulk;
pub use cursor::InterleaveCursor;
pub use weights::Weights;

use crate::manager::request::AllocateError;
use crate::units::{NodeId, NodeMask, Order};
use core::fmt;

/// How a policy chooses nodes. The numbers are Linux's (`include/uapi/linux/mempolicy.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyMode {
    /// The nearest node first.
    Default = 0,
    /// One node first.
    Preferred = 1,
    /// Nodes of a set and no others.
    Bind = 2,
    /// The nodes of a set in turn.
    Interleave = 3,
    /// The nearest node first, whatever the default is.
    Local = 4,
    /// Nodes of a set first.
    PreferredMany = 5,
    /// The nodes of a set in turn, each as often as its weight says.
    WeightedInterleave = 6,
}

impl PolicyMode {
    /// All modes, by number.
    pub const ALL: [Self; 7] = [
        Self::Default,
        Self::Preferred,
        Self::Bind,
        Self::Interleave,
        Self::Local,
        Self::PreferredMany,
        Self::WeightedInterleave,
    ];

    /// Returns the mode with Linux's number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns Linux's number of the mode.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns Linux's name of the mode (`mm/mempolicy.c`, `policy_modes`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Preferred => "prefer",
            Self::Bind => "bind",
            Self::Interleave => "interleave",
            Self::Local => "local",
            Self::PreferredMany => "prefer (many)",
            Self::WeightedInterleave => "weighted interleave",
        }
    }

    /// Whether the nodes of the policy's set take turns.
    #[must_use]
    pub const fn is_interleaved(self) -> bool {
        matches!(self, Self::Interleave | Self::WeightedInterleave)
    }
}

/// Where requests may get memory. Copied freely; it borrows its own weights, if it has any.
///
/// Nodes of the set that do not exist or have no memory are ignored, so [`NodeMask::ALL`] means
/// every node that there is. A set without any memory is refused when it is used, except that a
/// node that exists may always be preferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumaPolicy<'w> {
    mode: PolicyMode,
    nodes: NodeMask,
    weights: Option<&'w Weights>,
}

impl<'w> NumaPolicy<'w> {
    /// The policy of requests that have none: it also serves requests that name exactly one node.
    pub const DEFAULT: Self = Self::of(PolicyMode::Default, NodeMask::EMPTY);
    /// The nearest node first.
    pub const LOCAL: Self = Self::of(PolicyMode::Local, NodeMask::EMPTY);

    const fn of(mode: PolicyMode, nodes: NodeMask) -> Self {
        Self { mode, nodes, weights: None }
    }

    /// Takes a mode and its nodes as Linux's `set_mempolicy` does: of several nodes *preferred*
    /// prefers the first that has memory, and without a node it is *local*.
    ///
    /// # Errors
    /// [`PolicyError::NoNodes`] where the mode needs nodes, [`PolicyError::NodesGiven`] where it
    /// takes none.
    pub fn new(mode: PolicyMode, nodes: NodeMask) -> Result<Self, PolicyError> {
        match (mode, nodes.first()) {
            (PolicyMode::Default | PolicyMode::Local, Some(_)) => {
                Err(PolicyError::NodesGiven(mode))
            }
            (PolicyMode::Default | PolicyMode::Local, None) => Ok(Self::of(mode, nodes)),
            (PolicyMode::Preferred, None) => Ok(Self::LOCAL),
            (_, None) => Err(PolicyError::NoNodes(mode)),
            (_, Some(_)) => Ok(Self::of(mode, nodes)),
        }
    }

    /// One node first.
    #[must_use]
    pub const fn preferred(node: NodeId) -> Self {
        Self::of(PolicyMode::Preferred, NodeMask::only(node))
    }

    /// These nodes and no others.
    #[must_use]
    pub const fn bind(nodes: NodeMask) -> Self {
        Self::of(PolicyMode::Bind, nodes)
    }

    /// These nodes first.
    #[must_use]
    pub const fn preferred_many(nodes: NodeMask) -> Self {
        Self::of(PolicyMode::PreferredMany, nodes)
    }

    /// These nodes in turn.
    #[must_use]
    pub const fn interleave(nodes: NodeMask) -> Self {
        Self::of(PolicyMode::Interleave, nodes)
    }

    /// These nodes in turn, each as often as the manager's weights say
    /// ([`Numa::weights`](super::Numa::weights)).
    #[must_use]
    pub const fn weighted_interleave(nodes: NodeMask) -> Self {
        Self::of(PolicyMode::WeightedInterleave, nodes)
    }

    /// The policy with its own weights instead of the manager's. Modes other than *weighted
    /// interleave* ignore weights.
    #[must_use]
    pub const fn with_weights(self, weights: &'w Weights) -> Self {
        Self { weights: Some(weights), ..self }
    }

    /// The mode of the policy.
    #[must_use]
    pub const fn mode(&self) -> PolicyMode {
        self.mode
    }

    /// The nodes of the policy.
    #[must_use]
    pub const fn nodes(&self) -> NodeMask {
        self.nodes
    }

    /// The policy's own weights, if it has any.
    #[must_use]
    pub const fn own_weights(&self) -> Option<&'w Weights> {
        self.weights
    }
}

/// Why a request under a policy was not served, or a setting was not changed. An error changes
/// nothing, cursors included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// The mode needs nodes, and the set is empty.
    NoNodes(PolicyMode),
    /// The mode takes no nodes.
    NodesGiven(PolicyMode),
    /// No node of the set has memory, or none that the request may have, below its highest address
    /// and in its zones.
    NoMemory(NodeMask),
    /// The nodes of the set have too little memory; memory of other nodes does not count.
    OutOfMemory {
        /// The order that was wanted.
        order: Order,
        /// The nodes that may serve.
        nodes: NodeMask,
    },
    /// The request itself names exactly one node, which leaves the policy nothing to choose.
    NodeNamed(NodeId),
    /// There is no such node.
    NoNode(NodeId),
    /// The weight is not 1 to 255.
    BadWeight {
        /// The weight as given.
        weight: u64,
    },
    /// The request itself is wrong, or there is no memory for it on any node.
    Request(AllocateError),
}

impl From<AllocateError> for PolicyError {
    fn from(error: AllocateError) -> Self {
        Self::Request(error)
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes(mode) => write!(f, "the policy {} needs nodes", mode.name()),
            Self::NodesGiven(mode) => write!(f, "the policy {} takes no nodes", mode.name()),
            Self::NoMemory(nodes) => {
                write!(f, "no node of {nodes} has memory that the request may use")
            }
            Self::OutOfMemory { order, nodes } => {
                write!(f, "out of memory: no run of {order:?} on the nodes {nodes}")
            }
            Self::NodeNamed(node) => {
                write!(f, "the request names node {node} alone, so no policy can choose")
            }
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::BadWeight { weight } => write!(f, "a weight is 1 to 255, not {weight}"),
            Self::Request(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PolicyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_linux() {
        for (number, mode) in (0..).zip(PolicyMode::ALL) {
            assert_eq!((mode.number(), PolicyMode::from_number(number)), (number, Some(mode)));
        }
        assert_eq!(PolicyMode::from_number(7), None);
        assert_eq!(PolicyMode::WeightedInterleave.number(), 6);
        assert_eq!(PolicyMode::PreferredMany.name(), "prefer (many)");
    }

    #[test]
    fn a_mode_has_nodes_or_none() {
        let nodes: NodeMask = "1,3".parse().expect("a list");
        for mode in PolicyMode::ALL {
            let takes_none = matches!(mode, PolicyMode::Default | PolicyMode::Local);
            let needs_some = !takes_none && mode != PolicyMode::Preferred;
            let (with, without) =
                (NumaPolicy::new(mode, nodes), NumaPolicy::new(mode, NodeMask::EMPTY));
            assert_eq!(with == Err(PolicyError::NodesGiven(mode)), takes_none);
            assert_eq!(without == Err(PolicyError::NoNodes(mode)), needs_some);
        }
        let none = NumaPolicy::new(PolicyMode::Preferred, NodeMask::EMPTY);
        assert_eq!(none.map(|policy| policy.mode()), Ok(PolicyMode::Local));
    }
}
