//! The constants of the model: costs on one CPU, rates of one and of all threads, and the costs of
//! reaching other CPUs. docs/log/model.md says where each comes from.

use serde_json::{Map, Value, json};

/// A rate by number of threads: `each` for a thread that has memory and system to itself, and a
/// `limit` that many threads approach together and never exceed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// The rate of a thread that nothing limits.
    pub each: f64,
    /// What memory or system allow for any number of threads; `None` if no limit was seen.
    pub limit: Option<f64>,
}

/// A rate this many times above its limit is taken to be at the limit.
const FAR: f64 = 1e3;

impl Rate {
    /// The rate that exactly meets two measurements, with few and with many threads: [`Rate::of`]
    /// solved for its two unknowns.
    pub fn through((few, few_rate): (u32, f64), (many, many_rate): (u32, f64)) -> Self {
        let (few, many) = (f64::from(few), f64::from(many));
        let unlimited = Self { each: few_rate / few, limit: None };
        // If each of many threads does as much as each of few, there is no limit; 2 % is noise.
        if many <= few || many_rate >= unlimited.of(many) * 0.98 {
            return unlimited;
        }
        // More threads do not do more: the few alone are at the limit.
        if many_rate <= few_rate {
            return Self { each: few_rate * FAR, limit: Some(few_rate) };
        }
        let each =
            ((few.powi(-2) - many.powi(-2)) / (few_rate.powi(-2) - many_rate.powi(-2))).sqrt();
        let rest = many_rate.powi(-2) - (each * many).powi(-2);
        Self { each, limit: (rest > 0.0).then(|| rest.sqrt().recip()) }
    }

    /// The rate of this many threads together; a thread that has its CPU for half of the time
    /// counts as half a thread. Their own rate and the limit combine like the sides of a right
    /// angle, as threads wait for memory more often the more there are, long before its rate is
    /// used up.
    pub fn of(self, threads: f64) -> f64 {
        let free = self.each * threads;
        self.limit.map_or(free, |limit| (free.powi(-2) + limit.powi(-2)).sqrt().recip())
    }
}

/// A cost for each call plus a cost for each unit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Line {
    /// Nanoseconds for a call.
    pub call_ns: f64,
    /// Nanoseconds for a unit.
    pub unit_ns: f64,
}

impl Line {
    /// The line through two measurements of units and nanoseconds. No cost is below zero.
    pub fn through((few, few_ns): (f64, f64), (many, many_ns): (f64, f64)) -> Self {
        let unit_ns = ((many_ns - few_ns) / (many - few)).max(0.0);
        Self { call_ns: (few_ns - few * unit_ns).max(0.0), unit_ns }
    }

    /// Nanoseconds for a call with this many units.
    pub fn of(self, units: f64) -> f64 {
        self.call_ns + self.unit_ns * units
    }
}

/// All constants. Times are in nanoseconds, rates in bytes a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Bring-up of a machine, by GiB; the cost of a call is that of two zones and one CPU.
    pub bring_up: Line,
    /// The additional cost of each zone beyond two.
    pub zone_ns: f64,
    /// The additional cost of several nodes, besides their zones: a call once, a unit for each node
    /// beyond one.
    pub nodes: Line,
    /// The additional cost of each further CPU in each zone.
    pub cpu_zone_ns: f64,
    /// Writing descriptors with plain fills.
    pub write: Rate,
    /// Handing out a section's memory, beyond writing its descriptors.
    pub section_ns: f64,
    /// The time from asking for a helper until it works.
    pub helper_ns: f64,
    /// The share of a CPU that a helper gets, which has the lowest priority: 1 if nobody else is at
    /// work.
    pub helper_share: f64,
    /// Filling a pool of 2 MiB pages without HVO, by pages.
    pub fill_two_mib: Line,
    /// Emptying such a pool.
    pub empty_two_mib: Line,
    /// Filling a pool of 1 GiB pages.
    pub fill_one_gib: Line,
    /// Emptying such a pool.
    pub empty_one_gib: Line,
    /// The rate at which the system takes back bytes of the map.
    pub release: Rate,
    /// The rate at which the system supplies bytes of the map that are written for the first time.
    pub supply: Rate,
    /// Taking 2 MiB out of the map, beyond the system's part.
    pub withdraw_ns: f64,
    /// Emptying a pool of 2 MiB pages without a map if nothing is restored: the whole cost, by
    /// pages.
    pub leave_two_mib: Line,
    /// Emptying a pool of 1 GiB pages without a map if nothing is restored: the whole cost, by
    /// pages.
    pub leave_one_gib: Line,
    /// Putting 2 MiB back into the map, beyond the system's part.
    pub restore_ns: f64,
    /// A flush of translations: a call is the calling CPU's own part, a unit another CPU.
    pub flush: Line,
}

/// The name of a plain number and how to access it.
type Field = (&'static str, fn(&mut Costs) -> &mut f64);

const FIELDS: [Field; 27] = [
    ("bring_up_ns", |costs| &mut costs.bring_up.call_ns),
    ("bring_up_gib_ns", |costs| &mut costs.bring_up.unit_ns),
    ("bring_up_zone_ns", |costs| &mut costs.zone_ns),
    ("bring_up_nodes_ns", |costs| &mut costs.nodes.call_ns),
    ("bring_up_node_ns", |costs| &mut costs.nodes.unit_ns),
    ("bring_up_cpu_zone_ns", |costs| &mut costs.cpu_zone_ns),
    ("write_bytes_per_s", |costs| &mut costs.write.each),
    ("section_ns", |costs| &mut costs.section_ns),
    ("helper_ns", |costs| &mut costs.helper_ns),
    ("helper_share", |costs| &mut costs.helper_share),
    ("fill_2m_ns", |costs| &mut costs.fill_two_mib.call_ns),
    ("fill_2m_page_ns", |costs| &mut costs.fill_two_mib.unit_ns),
    ("empty_2m_ns", |costs| &mut costs.empty_two_mib.call_ns),
    ("empty_2m_page_ns", |costs| &mut costs.empty_two_mib.unit_ns),
    ("fill_1g_ns", |costs| &mut costs.fill_one_gib.call_ns),
    ("fill_1g_page_ns", |costs| &mut costs.fill_one_gib.unit_ns),
    ("empty_1g_ns", |costs| &mut costs.empty_one_gib.call_ns),
    ("empty_1g_page_ns", |costs| &mut costs.empty_one_gib.unit_ns),
    ("release_bytes_per_s", |costs| &mut costs.release.each),
    ("supply_bytes_per_s", |costs| &mut costs.supply.each),
    ("withdraw_block_ns", |costs| &mut costs.withdraw_ns),
    ("leave_2m_ns", |costs| &mut costs.leave_two_mib.call_ns),
    ("leave_2m_page_ns", |costs| &mut costs.leave_two_mib.unit_ns),
    ("leave_1g_ns", |costs| &mut costs.leave_one_gib.call_ns),
    ("leave_1g_page_ns", |costs| &mut costs.leave_one_gib.unit_ns),
    ("restore_block_ns", |costs| &mut costs.restore_ns),
    ("flush_ns", |costs| &mut costs.flush.call_ns),
];

/// Numbers that may be missing: a rate without a limit has none.
type Optional = (&'static str, fn(&mut Costs) -> &mut Option<f64>);

const LIMITS: [Optional; 3] = [
    ("write_limit_bytes_per_s", |costs| &mut costs.write.limit),
    ("release_limit_bytes_per_s", |costs| &mut costs.release.limit),
    ("supply_limit_bytes_per_s", |costs| &mut costs.supply.limit),
];

const FLUSH_CPU: &str = "flush_cpu_ns";

impl Costs {
    /// Costs of zero, and rates of one byte a second.
    pub const NONE: Self = Self {
        bring_up: Line { call_ns: 0.0, unit_ns: 0.0 },
        zone_ns: 0.0,
        nodes: Line { call_ns: 0.0, unit_ns: 0.0 },
        cpu_zone_ns: 0.0,
        write: Rate { each: 1.0, limit: None },
        section_ns: 0.0,
        helper_ns: 0.0,
        helper_share: 1.0,
        fill_two_mib: Line { call_ns: 0.0, unit_ns: 0.0 },
        empty_two_mib: Line { call_ns: 0.0, unit_ns: 0.0 },
        fill_one_gib: Line { call_ns: 0.0, unit_ns: 0.0 },
        empty_one_gib: Line { call_ns: 0.0, unit_ns: 0.0 },
        release: Rate { each: 1.0, limit: None },
        supply: Rate { each: 1.0, limit: None },
        withdraw_ns: 0.0,
        leave_two_mib: Line { call_ns: 0.0, unit_ns: 0.0 },
        leave_one_gib: Line { call_ns: 0.0, unit_ns: 0.0 },
        restore_ns: 0.0,
        flush: Line { call_ns: 0.0, unit_ns: 0.0 },
    };

    /// The costs as an object of numbers.
    pub fn to_json(mut self) -> Value {
        let mut object = Map::new();
        for (name, place) in FIELDS {
            object.insert(name.to_owned(), json!(*place(&mut self)));
        }
        for (name, place) in LIMITS {
            object.insert(name.to_owned(), json!(*place(&mut self)));
        }
        object.insert(FLUSH_CPU.to_owned(), json!(self.flush.unit_ns));
        object.into()
    }

    /// Reads such an object.
    ///
    /// # Errors
    /// Says which number is missing, or is no possible cost.
    pub fn from_json(object: &Value) -> Result<Self, String> {
        let mut costs = Self::NONE;
        let number = |name: &str| {
            let value = object[name].as_f64().filter(|value| value.is_finite() && *value >= 0.0);
            value.ok_or_else(|| format!("{name} is {}, which cannot be a cost", object[name]))
        };
        for (name, place) in FIELDS {
            let value = number(name)?;
            if value == 0.0 && name.ends_with("_per_s") {
                return Err(format!("{name} is 0"));
            }
            *place(&mut costs) = value;
        }
        for (name, place) in LIMITS {
            *place(&mut costs) = if object[name].is_null() {
                None
            } else {
                Some(number(name)?).filter(|&limit| limit > 0.0)
            };
        }
        costs.flush.unit_ns = number(FLUSH_CPU)?;
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_grow_towards_their_limit() {
        let rate = Rate { each: 3.0, limit: Some(4.0) };
        // 3, 4 and 5 are the sides of a right-angled triangle.
        assert!((rate.of(1.0) - 12.0 / 5.0).abs() < 1e-12);
        assert!(rate.of(1000.0) < 4.0 && rate.of(1000.0) > 3.99);
        assert_eq!(Rate { each: 3.0, limit: None }.of(7.0), 21.0);
    }

    #[test]
    fn two_rates_are_met_exactly() {
        for (few, many) in [((1, 2.4), (8, 3.9)), ((2, 1.0), (10, 3.0)), ((4, 979.0), (20, 2000.0))]
        {
            let rate = Rate::through(few, many);
            for (threads, expected) in [few, many] {
                assert!((rate.of(f64::from(threads)) / expected - 1.0).abs() < 1e-9, "{rate:?}");
            }
        }
        // Two threads do twice as much as one, or more, so nothing limits them. One measurement
        // alone shows no limit.
        assert_eq!(
            (Rate::through((1, 3.0), (2, 6.1)).limit, Rate::through((1, 3.0), (1, 3.0)).limit),
            (None, None)
        );
        // More threads were slower.
        let slower = Rate::through((1, 3.0), (4, 2.0));
        assert!(
            [1.0, 4.0]
                .map(|threads| slower.of(threads))
                .iter()
                .all(|rate| (rate - 3.0).abs() < 1e-4),
            "{slower:?}"
        );
    }

    #[test]
    fn a_line_goes_through_two_points_and_stays_above_zero() {
        assert_eq!(
            Line::through((1.0, 30.0), (11.0, 130.0)),
            Line { call_ns: 20.0, unit_ns: 10.0 }
        );
        assert_eq!(Line::through((1.0, 30.0), (11.0, 10.0)), Line { call_ns: 30.0, unit_ns: 0.0 });
        assert_eq!(Line { call_ns: 20.0, unit_ns: 10.0 }.of(4.0), 60.0);
    }

    #[test]
    fn costs_survive_being_written_and_read() {
        let mut costs = Costs::NONE;
        for (place, (_, field)) in FIELDS.into_iter().enumerate() {
            *field(&mut costs) = place as f64 + 0.5;
        }
        costs.flush.unit_ns = 99.0;
        costs.supply.limit = Some(7.0);
        assert_eq!(Costs::from_json(&costs.to_json()), Ok(costs));
    }

    #[test]
    fn nonsense_is_no_cost() {
        let good = Costs::NONE.to_json();
        assert!(
            Costs::from_json(&good).is_ok()
                && Costs::from_json(&json!({})).is_err()
                && Costs::from_json(&json!(3)).is_err()
        );
        for name in good.as_object().expect("an object").keys() {
            for bad in [json!(-1.0), json!("1"), json!([])] {
                let mut object = good.clone();
                object[name] = bad;
                assert!(
                    Costs::from_json(&object).is_err_and(|why| why.contains(name.as_str())),
                    "{name}"
                );
            }
        }
        let mut idle = good;
        idle["write_bytes_per_s"] = json!(0);
        assert!(Costs::from_json(&idle).is_err());
    }
}
