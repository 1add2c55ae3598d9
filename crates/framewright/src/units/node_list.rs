//! Parses and prints sets of nodes as Linux writes them: `0-2,5` (`lib/vsprintf.c`,
//! `bitmap_list_string`, and `lib/bitmap-str.c`, `bitmap_parselist`, without strides and groups).

use super::node::{NodeId, NodeMask};
use super::number::parse_decimal;
use super::sizes::MAX_NODES;
use core::fmt;
use core::str::FromStr;

/// Why a text is not a list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeListError {
    /// A part between commas is neither a number nor two numbers joined by `-`.
    NotNumber,
    /// A range ends before it begins.
    Backwards {
        /// Its first number.
        first: usize,
        /// Its last number.
        last: usize,
    },
    /// A number is not below [`MAX_NODES`].
    BeyondLimit {
        /// The number as given.
        node: usize,
    },
}

impl fmt::Display for NodeListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNumber => f.write_str("a list of nodes is like 0-2,5"),
            Self::Backwards { first, last } => {
                write!(f, "the range {first}-{last} of nodes ends before it begins")
            }
            Self::BeyondLimit { node } => {
                write!(f, "node {node} is beyond the limit of {MAX_NODES} nodes")
            }
        }
    }
}

impl core::error::Error for NodeListError {}

/// Parses one number without a sign.
fn number(text: &str) -> Result<usize, NodeListError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if is_number { parse_decimal(text) } else { None };
    number.ok_or(NodeListError::NotNumber)
}

/// Blanks and line ends around the list are ignored. An empty text is the empty set; parts may
/// overlap and come in any order.
impl FromStr for NodeMask {
    type Err = NodeListError;

    fn from_str(text: &str) -> Result<Self, NodeListError> {
        let mut nodes = Self::EMPTY;
        let text = text.trim_ascii();
        if text.is_empty() {
            return Ok(nodes);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(NodeListError::Backwards { first, last });
            }
            let beyond = NodeListError::BeyondLimit { node: last };
            NodeId::new(last).ok_or(beyond)?;
            nodes = (first..=last).filter_map(NodeId::new).fold(nodes, Self::with);
        }
        Ok(nodes)
    }
}

/// Prints nothing for the empty set.
impl fmt::Display for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nodes = self.nodes().map(NodeId::index).peekable();
        let mut comma = "";
        while let Some(first) = nodes.next() {
            let mut last = first;
            while let Some(next) = nodes.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    fn mask(nodes: &[usize]) -> NodeMask {
        nodes.iter().filter_map(|&node| NodeId::new(node)).fold(NodeMask::EMPTY, NodeMask::with)
    }

    #[cfg(feature = "many-nodes")]
    #[test]
    fn lists_are_those_of_linux() {
        for (text, nodes, written) in [
            ("", &[][..], ""),
            ("\n", &[], ""),
            ("0", &[0], "0"),
            (" 0-2,5\n", &[0, 1, 2, 5], "0-2,5"),
            ("5,0-1,1-2", &[0, 1, 2, 5], "0-2,5"),
            ("0-1,3-3", &[0, 1, 3], "0-1,3"),
            ("63", &[63], "63"),
            ("0-3,1023", &[0, 1, 2, 3, 1023], "0-3,1023"),
            ("62-65,127-128", &[62, 63, 64, 65, 127, 128], "62-65,127-128"),
        ] {
            assert_eq!(text.parse(), Ok(mask(nodes)), "{text:?}");
            assert_eq!(mask(nodes).to_string(), written);
        }
        assert_eq!("0-1023".parse(), Ok(NodeMask::ALL));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let bad = Err::<NodeMask, _>;
        for text in [",", "0,", ",0", "-", "1-", "-1", "a", "0 1", "+1", "0x1", "0-1-2", "1--2"] {
            assert_eq!(text.parse(), bad(NodeListError::NotNumber), "{text:?}");
        }
        assert_eq!("99999999999999999999".parse(), bad(NodeListError::NotNumber));
        assert_eq!("2-1".parse(), bad(NodeListError::Backwards { first: 2, last: 1 }));
        for (text, node) in
            [("1024", 1024), ("0-1024", 1024), ("3,0-18446744073709551615", usize::MAX)]
        {
            assert_eq!(text.parse(), bad(NodeListError::BeyondLimit { node }), "{text:?}");
        }
    }

    #[test]
    fn the_next_of_a_set_goes_round() {
        let nodes = mask(&[2, 5, 63]);
        for (node, next) in [(0, 2), (1, 2), (2, 5), (4, 5), (5, 63), (62, 63), (63, 2)] {
            let node = NodeId::new(node).expect("a node");
            assert_eq!(nodes.next_after(node).map(NodeId::index), Some(next), "after {node}");
            assert_eq!(NodeMask::EMPTY.next_after(node), None);
        }
        assert_eq!((nodes.len(), nodes.first()), (3, NodeId::new(2)));
        assert_eq!((nodes.nth(2), nodes.nth(3)), (NodeId::new(63), None));
        assert_eq!(nodes.and(mask(&[0, 5])), mask(&[5]));
    }

    proptest! {
        #[test]
        fn what_is_written_can_be_read(nodes in proptest::collection::vec(0_usize..64, 0..64)) {
            let nodes = mask(&nodes);
            prop_assert_eq!(nodes.to_string().parse(), Ok(nodes));
        }
    }
}
