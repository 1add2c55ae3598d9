//! What the numbers in a path name, and lines that several files share.

use super::super::FileError;
use crate::manager::{Manager, Node, ZoneView};
use crate::platform::Platform;
use crate::units::NodeId;
use core::fmt::Write;

/// The node that a file's number names.
#[inline(never)]
pub(super) fn node<'a, P: Platform>(manager: &'a Manager<P>, numbers: &[u64]) -> Option<&'a Node> {
    numbers.first().and_then(|&node| manager.nodes().get(usize::try_from(node).ok()?))
}

/// The zones of a node that have memory.
pub(super) fn zones_of<P: Platform>(
    manager: &Manager<P>,
    node: NodeId,
) -> impl Iterator<Item = ZoneView<'static, P>> + Clone + use<P> {
    manager.views().filter(move |zone| zone.id().node == node)
}

/// The sum of `of` over all zones with memory, of one node or of all. Not inlined, so that all
/// lines that are sums share one copy.
#[inline(never)]
pub(super) fn sum_of<P: Platform>(
    manager: &Manager<P>,
    node: Option<NodeId>,
    of: &dyn Fn(&ZoneView<'static, P>) -> u64,
) -> u64 {
    let mut sum = 0;
    for zone in manager.views() {
        if node.is_none_or(|node| zone.id().node == node) {
            sum += of(&zone);
        }
    }
    sum
}

/// Writes a line for each of the words of `names`: the word and its number. All lines share this
/// code, so that each adds only its name and value.
#[inline(never)]
pub(super) fn lines(out: &mut dyn Write, names: &str, values: &[u64]) -> Result<(), FileError> {
    let mut names = names.split_ascii_whitespace();
    for value in values {
        writeln!(out, "{} {value}", names.next().unwrap_or_default())?;
    }
    debug_assert_eq!(names.next(), None, "a name has no number");
    Ok(())
}
