//! Reference counts of runs of frames, one number each. Like [`BlockModel`](super::BlockModel) it
//! judges what was done.

use framewright::units::{Pfn, PfnRange};

/// A model of reference counts. Every method that is given an outcome panics if it is wrong.
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
    /// Nothing is counted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A count started at 1.
    ///
    /// # Panics
    /// When one of the frames is counted already.
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

    /// A caller tried to get a reference.
    ///
    /// # Panics
    /// When the outcome is wrong.
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

    /// A caller tried to put a reference. Returns whether that freed the run.
    ///
    /// # Panics
    /// When the outcome is wrong.
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

    /// A caller tried to freeze a count.
    ///
    /// # Panics
    /// When the outcome is wrong.
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

    /// A caller tried to unfreeze a count.
    ///
    /// # Panics
    /// When the outcome is wrong.
    pub fn unfroze(&mut self, pfn: Pfn, to: u32, succeeded: bool) {
        let references = self.references(pfn);
        assert_eq!(succeeded, references == 0 && to != 0, "unfreezing {references} to {to}");
        if let Some(count) = self.count(pfn).filter(|_| succeeded) {
            *count = to;
        }
    }

    /// A caller tried to free a frozen run. Returns whether that worked.
    ///
    /// # Panics
    /// When the outcome is wrong.
    pub fn freed_frozen(&mut self, pfn: Pfn, succeeded: bool) -> bool {
        let references = self.references(pfn);
        assert_eq!(succeeded, references == 0, "freeing {pfn:?} with {references} references");
        if succeeded {
            self.end(pfn);
        }
        succeeded
    }

    /// References to a frame.
    #[must_use]
    pub fn references(&self, pfn: Pfn) -> u32 {
        self.runs.iter().find(|(run, _)| run.contains(pfn)).map_or(0, |&(_, count)| count)
    }

    /// All runs that have a count.
    pub fn runs(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.runs.iter().map(|&(run, _)| run)
    }
}
