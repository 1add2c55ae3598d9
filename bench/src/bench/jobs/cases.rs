//! What jobs consist of: [`Case`] and [`Load`].

use std::hint::black_box;
use std::time::Duration;

/// How much work cases have.
#[derive(Clone, Copy)]
pub struct Scale {
    /// The most work of a case, as the time of one thread.
    pub longest: Duration,
    /// The bytes to read if memory is what counts.
    pub memory_bytes: usize,
}

impl Scale {
    /// As much work as is needed to tell the cases apart.
    pub const FULL: Self = Self { longest: Duration::from_millis(1100), memory_bytes: 256 << 20 };
    /// Little work, for a first look.
    pub const QUICK: Self = Self { longest: Duration::from_millis(11), memory_bytes: 16 << 20 };
}

/// The words of a unit that reads memory.
const UNIT_WORDS: usize = 512;
/// The approximate cost of a unit besides its steps.
const CALL_NS: u64 = 1;
/// How many times more the one heavy unit costs.
const HEAVY: u64 = 1000;

/// What a unit does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing.
    Empty,
    /// Arithmetic, equal for all units.
    Uniform,
    /// Arithmetic in which no unit waits for the one before it.
    Apart,
    /// Arithmetic in which the middle unit takes a thousand times as long as the others.
    OneHeavy,
    /// Arithmetic that grows from nothing to twice the mean.
    Ramp,
    /// Reads a page of memory.
    Memory,
}

/// A job that all engines do.
#[derive(Clone, Debug)]
pub struct Case {
    /// The case's name in rows.
    pub name: String,
    /// What a unit does.
    pub kind: Kind,
    /// The number of units.
    pub units: u64,
    /// The approximate mean cost of a unit, without the heavy one.
    pub unit_ns: u64,
    /// Whether another process occupies one of the CPUs.
    pub busy: bool,
}

impl Case {
    fn new(name: &str, kind: Kind, units: u64, unit_ns: u64) -> Self {
        Self { name: name.to_owned(), kind, units, unit_ns, busy: false }
    }

    fn beside_a_busy_process(mut self) -> Self {
        self.name.insert_str(0, "busy-");
        self.busy = true;
        self
    }

    /// The approximate time that one thread needs.
    pub fn nanoseconds(&self) -> u64 {
        let heavy = if self.kind == Kind::OneHeavy { HEAVY * self.unit_ns } else { 0 };
        self.units * self.unit_ns + heavy
    }
}

/// All cases, and what is left out and why.
pub fn all(scale: Scale) -> (Vec<Case>, Vec<String>) {
    let mut cases = vec![Case::new("two-empty", Kind::Empty, 2, 0)];
    let longest = u64::try_from(scale.longest.as_nanos()).unwrap_or(u64::MAX);
    let mut left_out = Vec::new();
    for unit_ns in [1, 10, 100] {
        for exponent in 2..=9 {
            let case = Case::new("uniform", Kind::Uniform, 10_u64.pow(exponent), unit_ns);
            if case.nanoseconds() <= longest {
                cases.push(case);
            } else {
                left_out.push(format!("1e{exponent} units of {unit_ns} ns"));
            }
        }
    }
    for (units, unit_ns) in [(100, 1), (1000, 1), (100, 10), (1000, 10)] {
        cases.push(Case::new("apart", Kind::Apart, units, unit_ns));
    }
    for (name, kind) in [("one-heavy", Kind::OneHeavy), ("ramp", Kind::Ramp)] {
        for units in [1_000, 10_000, 100_000, 1_000_000] {
            let case = Case::new(name, kind, units, 100);
            if case.nanoseconds() <= longest {
                cases.push(case);
            } else {
                left_out.push(format!("{name} with {units} units"));
            }
        }
    }
    let pages = (scale.memory_bytes / (UNIT_WORDS * 8)) as u64;
    cases.push(Case::new("memory", Kind::Memory, pages, 400));
    // 1 us and 1 ms; then 5 to 100 ms, during which a helper shares its CPU with the busy process.
    let milliseconds = [5, 10, 12, 20, 30, 60, 100].map(|length| (length * 10_000, 100));
    for (units, unit_ns) in [(100, 10), (100_000, 10)].into_iter().chain(milliseconds) {
        let case = Case::new("uniform", Kind::Uniform, units, unit_ns).beside_a_busy_process();
        if case.nanoseconds() <= longest {
            cases.push(case);
        }
    }
    let left_out = match left_out.as_slice() {
        [] => Vec::new(),
        some => vec![format!(
            "what takes one thread longer than {:?}: {}",
            scale.longest,
            some.join(", ")
        )],
    };
    (cases, left_out)
}

/// A case ready to be done, unit by unit.
///
/// A unit begins when the one before it in its chunk has ended, as in work on memory that depends
/// on itself. Units that the processor overlaps are limited by its instruction fetch, and so depend
/// on how a loop is aligned in memory: rayon has its own loop over units, all other engines one
/// over ranges, and between two builds of one program they then differed by 5 % in either
/// direction. [`Kind::Apart`] does not make units wait, for small jobs: there the wait would hide a
/// part of an engine's cost.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    kind: Kind,
    units: u64,
    steps: u64,
    memory: &'a [u64],
    /// 0, which the compiler does not know.
    nothing: u64,
}

impl<'a> Load<'a> {
    /// Prepares a case; `steps_per_us` thousandths of a step take a nanosecond.
    pub fn new(case: &Case, memory: &'a [u64], steps_per_us: u64) -> Self {
        // The call, and waiting for the sum, take the rest of the unit's time.
        let steps = (case.unit_ns.saturating_sub(CALL_NS) * steps_per_us).div_ceil(1000).max(1);
        Self { kind: case.kind, units: case.units, steps, memory, nothing: black_box(0) }
    }

    /// Does one unit and adds its result, which depends on all of the unit's work. It is never
    /// inlined, so that no engine gets better code than another.
    #[inline(never)]
    pub fn step(&self, sum: u64, unit: u64) -> u64 {
        let seed = unit.wrapping_add(1);
        let after = seed ^ sum & self.nothing;
        let value = match self.kind {
            Kind::Empty => unit,
            Kind::Uniform => chain(after, self.steps),
            Kind::Apart => chain(black_box(seed), self.steps),
            Kind::OneHeavy => {
                chain(after, if unit == self.units / 2 { self.steps * HEAVY } else { self.steps })
            }
            Kind::Ramp => chain(after, 2 * self.steps * unit / self.units),
            Kind::Memory => {
                let begin = usize::try_from(unit).unwrap_or(usize::MAX).saturating_mul(UNIT_WORDS);
                let page = self.memory.get(begin..).unwrap_or_default();
                page.iter().take(UNIT_WORDS).fold(0, |sum, word| sum ^ word)
            }
        };
        sum.wrapping_add(value)
    }

    /// Does several units one after the other. It is never inlined either, and all engines that are
    /// given ranges run it.
    #[inline(never)]
    pub fn range(&self, range: std::ops::Range<u64>) -> u64 {
        range.fold(0, |sum, unit| self.step(sum, unit))
    }
}

/// Multiplications that depend on one another and that the compiler cannot merge. With additions in
/// between it could merge eight steps or 64.
#[inline]
pub fn chain(seed: u64, steps: u64) -> u64 {
    (0..steps).fold(seed, |value, _| value.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_takes_too_long_and_what_is_left_out_is_said() {
        for scale in [Scale::FULL, Scale::QUICK] {
            let (cases, left_out) = all(scale);
            let longest = u64::try_from(scale.longest.as_nanos()).expect("short");
            let bounded = |case: &&Case| case.kind != Kind::Memory;
            assert!(cases.iter().filter(bounded).all(|case| case.nanoseconds() <= longest));
            assert!(left_out.concat().contains("1e9 units of 100 ns"));
        }
        let (full, _) = all(Scale::FULL);
        assert!(full.iter().any(|case| case.units == 1_000_000_000));
        let busy: Vec<u64> = full
            .iter()
            .filter(|case| case.busy)
            .map(|case| case.nanoseconds() / 1_000_000)
            .collect();
        assert_eq!(busy, [0, 1, 5, 10, 12, 20, 30, 60, 100]);
    }

    #[test]
    fn every_unit_counts_once_however_a_load_is_cut() {
        let memory: Vec<u64> = (0..10 * UNIT_WORDS as u64).map(|word| word * word).collect();
        for kind in
            [Kind::Empty, Kind::Uniform, Kind::Apart, Kind::OneHeavy, Kind::Ramp, Kind::Memory]
        {
            let load = Load::new(&Case::new("any", kind, 10, 7), &memory, 1000);
            let cut = load.range(0..3).wrapping_add(load.range(3..10));
            assert_eq!(cut, load.range(0..10), "{kind:?}");
        }
    }
}
