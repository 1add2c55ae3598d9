//! How many pages each node gets in its turn of a weighted interleave.

use super::PolicyError;
use crate::units::{MAX_NODES, NodeId, NodeMask};

/// The total from which the weights of all nodes are computed (Linux: `mm/mempolicy.c`,
/// `weightiness`).
const WEIGHTINESS: u128 = 32;

/// A weight of 1 to 255 for each node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Weights([u8; MAX_NODES]);

impl Weights {
    /// All nodes have the weight 1.
    pub const EVEN: Self = Self([1; MAX_NODES]);

    /// Sets the weights of the first nodes, ascending; all others get 1.
    ///
    /// # Errors
    /// [`PolicyError::BadWeight`] for 0, [`PolicyError::NoNode`] when there are more weights than
    /// there can be nodes.
    pub fn new(weights: &[u8]) -> Result<Self, PolicyError> {
        let mut all = Self::EVEN;
        for (index, &weight) in weights.iter().enumerate() {
            let last = NodeId::new(MAX_NODES - 1).unwrap_or_default();
            let node = NodeId::new(index).ok_or(PolicyError::NoNode(last))?;
            all.set(node, weight.into())?;
        }
        Ok(all)
    }

    /// Computes weights in proportion to how much data each of `nodes` can move in a second, in any
    /// unit. `bandwidths` is indexed by node number. A weight is `max(1, 32 * bandwidth / sum)`,
    /// divided by the greatest common divisor of all (Linux: `mm/mempolicy.c`,
    /// `reduce_interleave_weights`). A node of unknown bandwidth, which is 0 or missing in
    /// `bandwidths`, gets 1; so do nodes that are not in `nodes`.
    #[must_use]
    pub fn from_bandwidth(nodes: NodeMask, bandwidths: &[u64]) -> Self {
        Self::from_bandwidths(nodes, &|node| bandwidths.get(node.index()).copied().unwrap_or(0))
    }

    pub(super) fn from_bandwidths(nodes: NodeMask, of: &dyn Fn(NodeId) -> u64) -> Self {
        let of = |node: NodeId| u128::from(of(node));
        let sum: u128 = nodes.nodes().map(of).sum();
        let mut all = Self::EVEN;
        let mut divisor = 0;
        for node in nodes.nodes() {
            // At most 32.
            let share = (WEIGHTINESS * of(node)).checked_div(sum).unwrap_or(0);
            let weight = u8::try_from(share).unwrap_or(u8::MAX).max(1);
            all.0[node.index()] = weight;
            divisor = greatest_common_divisor(divisor, weight);
        }
        for node in nodes.nodes() {
            all.0[node.index()] /= divisor.max(1);
        }
        all
    }

    /// Returns a node's weight.
    #[must_use]
    pub const fn of(&self, node: NodeId) -> u8 {
        self.0[node.index()]
    }

    /// Sets a node's weight.
    ///
    /// # Errors
    /// [`PolicyError::BadWeight`] for anything but 1 to 255; nothing was changed.
    pub fn set(&mut self, node: NodeId, weight: u64) -> Result<(), PolicyError> {
        self.0[node.index()] = checked(weight)?;
        Ok(())
    }
}

/// Checks that a number is a valid weight.
pub(super) fn checked(weight: u64) -> Result<u8, PolicyError> {
    let is_weight = |weight: &u8| *weight != 0;
    u8::try_from(weight).ok().filter(is_weight).ok_or(PolicyError::BadWeight { weight })
}

fn greatest_common_divisor(one: u8, other: u8) -> u8 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn first(nodes: usize) -> NodeMask {
        (0..nodes).filter_map(NodeId::new).fold(NodeMask::EMPTY, NodeMask::with)
    }

    fn weights(bandwidths: &[u64]) -> Vec<u8> {
        let nodes = first(bandwidths.len());
        let weights = Weights::from_bandwidth(nodes, bandwidths);
        nodes.nodes().map(|node| weights.of(node)).collect()
    }

    #[test]
    fn bandwidths_become_weights_as_in_linux() {
        assert_eq!(weights(&[300, 100]), [3, 1]);
        assert_eq!(weights(&[256, 64, 64]), [21, 5, 5]);
        assert_eq!(weights(&[400, 10]), [31, 1]);
        assert_eq!(weights(&[7]), [1]);
        assert_eq!(weights(&[0, 0]), [1, 1]);
        assert_eq!(weights(&[u64::MAX, u64::MAX]), [1, 1]);
        // An unknown bandwidth gets the least weight, whatever the others have.
        assert_eq!(weights(&[300, 100, 0]), [24, 8, 1]);
        let two = Weights::from_bandwidth(first(2), &[300, 100, 900]);
        assert_eq!(two, Weights::new(&[3, 1]).expect("weights"), "node 2 is not among them");
    }

    #[test]
    fn what_is_no_weight_is_refused_and_changes_nothing() {
        let node = NodeId::new(1).expect("a node");
        let mut weights = Weights::new(&[5, 2]).expect("weights");
        let before = weights;
        for weight in [0, 256, 257, u64::MAX] {
            assert_eq!(weights.set(node, weight), Err(PolicyError::BadWeight { weight }));
            assert_eq!(weights, before);
        }
        assert_eq!(Weights::new(&[5, 0]), Err(PolicyError::BadWeight { weight: 0 }));
        assert!(Weights::new(&[255; MAX_NODES]).is_ok());
        let last = NodeId::new(MAX_NODES - 1).expect("a node");
        assert_eq!(Weights::new(&[1; MAX_NODES + 1]), Err(PolicyError::NoNode(last)));
        assert_eq!((weights.set(node, 255), weights.of(node)), (Ok(()), 255));
    }

    proptest! {
        #[test]
        fn weights_are_weights_and_have_no_common_divisor(
            bandwidths in proptest::collection::vec(0_u64..1000, 1..MAX_NODES),
        ) {
            let weights = weights(&bandwidths);
            prop_assert!(weights.iter().all(|&weight| (1..=32).contains(&weight)));
            for divisor in 2..=32 {
                prop_assert!(weights.iter().any(|&weight| weight % divisor != 0));
            }
            // A faster node gets no less.
            for (one, &weight) in bandwidths.iter().zip(&weights) {
                for (other, &other_weight) in bandwidths.iter().zip(&weights) {
                    prop_assert!(one < other || weight >= other_weight);
                }
            }
        }
    }
}
