//! Axes: where a value is drawn, and which values get a label.

/// The unit of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds, shown from ns to s.
    Time,
    /// Hundredths.
    Percent,
    /// A factor.
    Ratio,
    /// MiB, shown as MiB or GiB.
    Mib,
    /// GiB.
    Gib,
    /// Anything else.
    Number,
}

impl Unit {
    /// The label of a value on an axis, without needless digits.
    pub fn tick(self, value: f64) -> String {
        match self {
            Self::Time => time(value, plain),
            Self::Percent => format!("{} %", plain(value)),
            Self::Ratio => format!("{}\u{d7}", plain(value)),
            Self::Gib => format!("{} GiB", plain(value)),
            Self::Mib if value >= 1024.0 => format!("{} GiB", plain(value / 1024.0)),
            Self::Mib => format!("{} MiB", plain(value)),
            Self::Number => plain(value),
        }
    }

    /// A measured value, with three significant digits.
    pub fn value(self, value: f64) -> String {
        match self {
            Self::Time => time(value, three),
            Self::Percent => format!("{} %", three(value)),
            Self::Ratio => format!("{}\u{d7}", three(value)),
            Self::Gib => format!("{} GiB", three(value)),
            Self::Mib if value.abs() >= 1024.0 => format!("{} GiB", three(value / 1024.0)),
            Self::Mib => format!("{} MiB", three(value)),
            Self::Number => three(value),
        }
    }
}

fn time(seconds: f64, digits: impl Fn(f64) -> String) -> String {
    match seconds.abs() {
        0.0 => "0".into(),
        small if small < 0.999_5e-6 => format!("{} ns", digits(seconds * 1e9)),
        small if small < 0.999_5e-3 => format!("{} \u{b5}s", digits(seconds * 1e6)),
        small if small < 0.999_5 => format!("{} ms", digits(seconds * 1e3)),
        _ => format!("{} s", digits(seconds)),
    }
}

/// A number with three significant digits.
pub fn three(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        small if small >= 1e7 => format!("{value:.2e}"),
        small if small >= 99.95 => format!("{value:.0}"),
        small if small >= 9.995 => format!("{value:.1}"),
        small if small >= 0.01 => format!("{value:.2}"),
        small if small >= 0.0001 => {
            // Two significant digits.
            let decimals = usize::from(small < 0.001) + 4;
            format!("{value:.decimals$}")
        }
        _ => format!("{value:.1e}"),
    }
}

/// A round number, unchanged.
fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        magnitude if !(1e-3..1e6).contains(&magnitude) => {
            let text = format!("{value:.0e}");
            text.replace("e", "\u{b7}10^")
        }
        _ => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// An axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Scale {
    /// A linear axis, from a round number below all values, or from zero if none is negative, to a
    /// round number above.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = ends(values, f64::is_finite).unwrap_or((0.0, 1.0));
        let (least, most) = (least.min(0.0), most.max(0.0));
        let most = if most > least { most } else { least + 1.0 };
        let step = step(most - least, 5.0);
        Self {
            least: (least / step).floor() * step,
            most: (most / step).ceil() * step,
            is_log: false,
        }
    }

    /// A logarithmic axis whose ends are 1, 2 or 5 times powers of ten. Values that are not
    /// positive, or so small or large that a power of ten beside them is no number, are ignored.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) =
            ends(values, |value| (1e-300..1e300).contains(&value)).unwrap_or((1.0, 10.0));
        let (least, most) = (round_down(least), round_up(most));
        Self { least, most: if most > least { most } else { least * 10.0 }, is_log: true }
    }

    /// Where a value lies: 0 at the beginning and 1 at the end. Values beyond an end are put on it.
    pub fn place(&self, value: f64) -> f64 {
        let part = if self.is_log {
            if value <= 0.0 {
                return 0.0;
            }
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The values to label: about `wanted` of them.
    pub fn ticks(&self, wanted: f64) -> Vec<f64> {
        if !self.is_log {
            let step = step(self.most - self.least, wanted);
            let first = (self.least / step).ceil();
            return (0..=20)
                .map(|number| (first + f64::from(number)) * step)
                .take_while(|tick| *tick <= self.most + step * 1e-6)
                .collect();
        }
        // The densest of these choices that is not too dense.
        let most = wanted.round().max(2.0);
        let choices: [(&[f64], f64); 6] = [
            (&[1.0, 2.0, 5.0], 1.0),
            (&[1.0, 3.0], 1.0),
            (&[1.0], 1.0),
            (&[1.0], 2.0),
            (&[1.0], 3.0),
            (&[1.0], 6.0),
        ];
        let mut ticks = Vec::new();
        for (steps, each) in choices {
            ticks = self.powers(steps, each);
            if ticks.len() as f64 <= most {
                break;
            }
        }
        ticks
    }

    /// `steps` times the powers of ten whose exponent is a multiple of `each`.
    fn powers(&self, steps: &[f64], each: f64) -> Vec<f64> {
        let mut power = (self.least.log10() / each).floor() * each;
        let mut ticks = Vec::new();
        while power <= self.most.log10() + 1e-9 {
            let all = steps.iter().map(|step| step * 10_f64.powf(power));
            ticks.extend(
                all.filter(|tick| {
                    *tick >= self.least * 0.999_999 && *tick <= self.most * 1.000_001
                }),
            );
            power += each;
        }
        ticks
    }
}

fn ends(values: impl IntoIterator<Item = f64>, is_fit: impl Fn(f64) -> bool) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| is_fit(*value)).fold(None, |ends, value| {
        let (least, most) = ends.unwrap_or((value, value));
        Some((f64::min(least, value), f64::max(most, value)))
    })
}

/// 1, 2 or 5 times a power of ten, so that about `wanted` steps fit into `length`.
fn step(length: f64, wanted: f64) -> f64 {
    let rough = length / wanted.max(1.0);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|step| step * power >= rough * 0.999_999)
        .unwrap_or(10.0);
    step * power
}

fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0]
        .into_iter()
        .map(|step| step * power)
        .find(|round| *round <= value * 1.000_001)
        .unwrap_or(power)
}

fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|round| *round >= value * 0.999_999)
        .unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_have_round_ends_and_ticks() {
        let scale = Scale::linear([3.2, 17.0]);
        assert_eq!(scale.ticks(5.0), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert!((scale.place(10.0) - 0.5).abs() < 1e-9 && scale.place(99.0) >= 1.0);
        let both = Scale::linear([-0.7, 0.4]);
        assert!(both.place(0.0) > 0.0 && both.ticks(5.0).iter().any(|tick| tick.abs() < 1e-12));
        for odd in [vec![], vec![0.0], vec![f64::NAN], vec![-3.0], vec![1e300, -1e300]] {
            let scale = Scale::linear(odd);
            assert!(scale.ticks(5.0).len() < 30 && scale.place(0.0).is_finite());
        }
    }

    #[test]
    fn log_axes_name_powers_and_what_lies_between() {
        let wide = Scale::log([3e-9, 4e-3]);
        assert_eq!((wide.place(2e-9), wide.place(5e-3)), (0.0, 1.0));
        assert!(
            wide.ticks(8.0).iter().all(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9)
        );
        let narrow: Vec<String> = Scale::log([3.0, 40.0])
            .ticks(6.0)
            .into_iter()
            .map(|tick| Unit::Number.tick(tick))
            .collect();
        assert_eq!(narrow, ["2", "5", "10", "20", "50"]);
        let odd = [vec![], vec![0.0], vec![-1.0, f64::INFINITY], vec![5.0]];
        // The smallest number, and the largest.
        for odd in odd.into_iter().chain([vec![5e-324, 1.0], vec![f64::MAX], vec![1.0, f64::MAX]]) {
            let scale = Scale::log(odd);
            assert!(!scale.ticks(5.0).is_empty() && scale.place(-1.0) == 0.0);
        }
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(Unit::Time.tick(1e-7), "100 ns");
        assert_eq!(
            [1.234e-5, 0.0125, 3.0, 4.56e-9].map(|value| Unit::Time.value(value)),
            ["12.3 \u{b5}s", "12.5 ms", "3.00 s", "4.56 ns"]
        );
        assert_eq!(
            (Unit::Percent.tick(50.0), Unit::Ratio.tick(0.5), Unit::Mib.tick(2048.0)),
            ("50 %".into(), "0.5\u{d7}".into(), "2 GiB".into())
        );
        assert_eq!(Unit::Number.tick(2e6), "2\u{b7}10^6");
    }
}
