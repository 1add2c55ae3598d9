//! Skeleton.
use super::{Machine, SourceError};
pub(super) fn read(root: &std::path::Path) -> Result<Machine, SourceError> {
    Err(SourceError::NoSource { root: root.to_owned(), reasons: vec![] })
}
