//! The command line.

use crate::firmware::{MapBuilder, MapError};

/// Parameters that the manager knows, with their defaults where the command line is silent.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// `numa=off` puts everything into one node.
    pub numa: bool,
    /// `mem=SIZE`: memory at and above this address is not used.
    pub memory_limit: Option<u64>,
    /// `min_free_kbytes=N` (SPEC 3.5).
    pub min_free_kbytes: Option<u64>,
    /// `watermark_scale_factor=N`, in 1/10000 of a zone (SPEC 3.5).
    pub watermark_scale_factor: u64,
}

/// A parameter that was ignored, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Problem<'a> {
    /// The word on the command line.
    pub word: &'a str,
    /// `None`: the manager does not know the parameter. Otherwise what is wrong with its value.
    pub reason: Option<&'static str>,
}

impl Parameters {
    /// Reads a command line. Each word that is unknown or wrong is reported once and ignored.
    pub fn parse<'a>(_command_line: &'a str, _problem: &mut dyn FnMut(Problem<'a>)) -> Self {
        unimplemented!()
    }

    /// Applies `mem=` and `memmap=` to the firmware map.
    ///
    /// # Errors
    /// See [`MapBuilder::add`].
    pub fn apply(&self, _map: &mut MapBuilder<'_>) -> Result<(), MapError> {
        unimplemented!()
    }
}
