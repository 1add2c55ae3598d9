//! Skeleton.
use super::{Machine, SourceError};
pub(super) fn parse(name: &str, _text: &str) -> Result<Machine, SourceError> {
    Err(SourceError::NoMemory { name: name.to_owned() })
}
pub(super) fn write(_machine: &Machine) -> String {
    String::new()
}
