//! A model of the reference counts of runs of frames, with one number each. Like
//! [`BlockModel`](super::BlockModel), it judges outcomes.

use framewright::units::{Pfn, PfnRange};

/// A model of reference counts. Every method that takes an outcome panics if the outcome is wrong.
///
/// ```
/// use framewright::units::{Pfn, PfnRange};
/// use framewright_testkit::model::ReferenceModel;
///
/// let mut model = ReferenceModel::new();
/// model.started(PfnRange::new(8, 12));
/// model.got(Pfn(11), true);
/// assert!(!model.put(Pfn(8), true));
/// assert!(model.put(Pfn(9), true), "that was the last one");
/// model.got(Pfn(8), false);
/// ```
#[derive(Clone, Default, Debug)]
pub struct ReferenceModel {
    runs: Vec<(PfnRange, u32)>,
}

impl ReferenceModel {
    /// Makes a model without counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a count at 1.
    ///
    /// # Panics
    /// If one of the frames has a count already.
    pub fn started(&mut self, run: PfnRange) {
        let other = self.runs.iter().find(|(other, _)| !other.intersection(run).is_empty());
        assert!(other.is_none(), "{run:?} has a count already: {other:?}");
        self.runs.push((run, 1));
    }

    fn count(&mut self, pfn: Pfn) -> Option<&mut u32> {
        self.runs.iter_mut().find(|(run, _)| run.contains(pfn)).map(|(_, count)| count)
    }

    fn end(&mut self, pfn: Pfn) {
        self.runs.retain(|(run, _)| !run.contains(pfn));
    }

    /// Judges an attempt to get a reference.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn got(&mut self, pfn: Pfn, succeeded: bool) {
        let references = self.references(pfn);
        assert_eq!(
            succeeded,
            references != 0,
            "getting one more of {references} references to {pfn:?}"
        );
        if let Some(count) = self.count(pfn).filter(|_| succeeded) {
            *count += 1;
        }
    }

    /// Judges an attempt to put a reference. Returns whether that freed the run.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn put(&mut self, pfn: Pfn, succeeded: bool) -> bool {
        let references = self.references(pfn);
        assert_eq!(succeeded, references != 0, "putting one of {references} references to {pfn:?}");
        match references {
            0 => return false,
            1 => self.end(pfn),
            _ => self.count(pfn).into_iter().for_each(|count| *count -= 1),
        }
        references == 1
    }

    /// Judges an attempt to freeze a count.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn froze(&mut self, pfn: Pfn, expected: u32, succeeded: bool) {
        let references = self.references(pfn);
        assert_eq!(
            succeeded,
            references == expected && expected != 0,
            "freezing {references} at {expected}"
        );
        if let Some(count) = self.count(pfn).filter(|_| succeeded) {
            *count = 0;
        }
    }

    /// Judges an attempt to unfreeze a count.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn unfroze(&mut self, pfn: Pfn, to: u32, succeeded: bool) {
        let references = self.references(pfn);
        assert_eq!(succeeded, references == 0 && to != 0, "unfreezing {references} to {to}");
        if let Some(count) = self.count(pfn).filter(|_| succeeded) {
            *count = to;
        }
    }

    /// Judges an attempt to free a frozen run. Returns whether it succeeded.
    ///
    /// # Panics
    /// If the outcome is wrong.
    pub fn freed_frozen(&mut self, pfn: Pfn, succeeded: bool) -> bool {
        let references = self.references(pfn);
        assert_eq!(succeeded, references == 0, "freeing {pfn:?} with {references} references");
        if succeeded {
            self.end(pfn);
        }
        succeeded
    }

    /// The number of references to a frame.
    #[must_use]
    pub fn references(&self, pfn: Pfn) -> u32 {
        self.runs.iter().find(|(run, _)| run.contains(pfn)).map_or(0, |&(_, count)| count)
    }

    /// All runs that have a count.
    pub fn runs(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.runs.iter().map(|&(run, _)| run)
    }
}
