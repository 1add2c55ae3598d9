//! Skeleton.
use super::{Machine, SourceError};
pub(super) fn recognise(_text: &str) -> bool {
    false
}
pub(super) fn parse(name: &str, _text: &str) -> Result<Machine, SourceError> {
    Err(SourceError::NoMemory { name: name.to_owned() })
}
