//! Targets of traffic of all sizes.

use super::Sample;
use super::alloc::{OURS, PEERS};
use super::sample::{over, over_where, threads, words};
use crate::rows::{Rows, Tail, Traffic};

const COMMAND: &str = "traffic";
const AGAINST: &str = "buddy_system_allocator, frame-alloc";

targets! { TARGETS:
    Allocation, COMMAND, "traffic-half",
        "Mixed traffic, 50 % full, 1 and 2 threads: time over that of the faster peer",
        <= 0.8 "x", AGAINST, |rows| operations(rows, "50 %");
    Allocation, COMMAND, "traffic-full",
        "Mixed traffic, 97 % full, 1 and 2 threads: time over that of the faster peer",
        <= 0.8 "x", AGAINST, |rows| operations(rows, "97 %");
    Allocation, COMMAND, "traffic-tail",
        "Mixed traffic, 97 % full, 2 threads: p99.99 of get and put over the lower of both peers'",
        <= 1.0 "x", AGAINST, tails;
}

/// How much more of its requests, in percentage points, our allocator may refuse than the peer that
/// its time is compared with. Pages in one CPU's cache are not available to another CPU, so at 97 %
/// full ours refuses 0.005 % (one thread) or 0.011 % (two threads), and more where threads are
/// interrupted; the peers, which cache little or nothing, refuse none. A fifth of a point covers
/// this, and saves next to nothing of the 20 % by which ours must be faster.
const MORE_REFUSED: f64 = 0.2;

/// Whether ours served as much as the peer. A refused request is cheap and has no free, but counts
/// as an operation, so an allocator that refuses requests would have the best time.
fn served_as_much(ours: &Traffic, peer: &Traffic) -> bool {
    let both = ours.refused_percent.get().zip(peer.refused_percent.get());
    both.is_some_and(|(ours, peer)| ours <= peer + MORE_REFUSED)
}

/// Our time over each peer's.
fn operations(rows: &Rows, full: &str) -> Vec<Sample> {
    let of = |name: &'static str| {
        rows.traffic.iter().filter(move |row| {
            row.allocator == name
                && row.pattern == "mixed"
                && row.full == full
                && matches!(row.threads, 1 | 2)
        })
    };
    let each = PEERS.into_iter().flat_map(|peer| {
        let place = |row: &Traffic| words(&[&threads(row.threads), peer]);
        let ns = |row: &Traffic| row.operation_ns.middle;
        over_where(of(OURS), of(peer), |row| row.threads, ns, served_as_much, place)
    });
    each.collect()
}

/// Our time over each peer's, for calls of all orders.
fn tails(rows: &Rows) -> Vec<Sample> {
    let of = |name: &'static str| {
        rows.tail.iter().filter(move |row| {
            (row.allocator.as_str(), row.pattern.as_str()) == (name, "mixed")
                && (row.full.as_str(), row.orders.as_str(), row.threads) == ("97 %", "all", 2)
        })
    };
    let p99_99 = |row: &Tail| row.p99_99_ns.get().map(|ns| ns as f64);
    let each = PEERS.into_iter().flat_map(|peer| {
        let place = |row: &Tail| words(&[&row.operation, peer]);
        over(of(OURS), of(peer), |row| &row.operation, p99_99, place)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use crate::registry::evaluate;
    use crate::rows::Rows;
    use crate::targets::Verdict;
    use serde_json::{Value, json};

    fn outcome(rows: &[Value], id: &str) -> (Verdict, Option<f64>, usize) {
        let outcome = evaluate(&Rows::of(rows)).into_iter().find(|one| one.target.id == id);
        let outcome = outcome.expect("a target");
        (outcome.verdict, outcome.worst.map(|worst| worst.value), outcome.samples)
    }

    #[test]
    fn the_faster_peer_is_the_one_that_counts() {
        let row = |allocator: &str, threads: u64, ns: f64| {
            json!({ "bench": "traffic", "allocator": allocator, "pattern": "mixed",
                "full": "97 %", "threads": threads, "operation_ns": ns,
                "refused_percent": 0.2 })
        };
        let [buddy, depot] = super::PEERS;
        let mut rows = vec![
            row("framewright", 1, 6.0),
            row(buddy, 1, 60.0),
            row(depot, 1, 10.0),
            row(buddy, 2, 1.0),
        ];
        assert_eq!(outcome(&rows, "traffic-full"), (Verdict::Met, Some(0.6), 2));
        rows.extend([row("framewright", 2, 9.0), row(depot, 2, 10.0)]);
        assert_eq!(outcome(&rows, "traffic-full"), (Verdict::Short, Some(9.0), 4));
        assert_eq!(outcome(&rows, "traffic-half").0, Verdict::NotMeasured);
        let lost = [row("framewright", 1, 6.0), row(buddy, 1, 60.0), row(depot, 1, 0.0)];
        let found = outcome(&lost, "traffic-full");
        assert_eq!((found.0, found.2), (Verdict::NotMeasured, 1), "the faster one is lost");
    }

    #[test]
    fn whoever_refuses_more_is_not_sooner() {
        let [buddy, depot] = super::PEERS;
        let verdict = |refused: Value| {
            let row = |allocator: &str, ns: f64, refused: Value| {
                json!({ "bench": "traffic", "allocator": allocator, "pattern": "mixed",
                    "full": "50 %", "threads": 1, "operation_ns": ns,
                    "refused_percent": refused })
            };
            let peers = [buddy, depot].map(|peer| row(peer, 10.0, json!(0.2)));
            let rows = [&[row("framewright", 1.0, refused)][..], &peers].concat();
            outcome(&rows, "traffic-half").0
        };
        assert_eq!(verdict(json!(0.3)), Verdict::Met);
        for refused in [json!(0.5), json!(100.0), json!(null)] {
            assert_eq!(verdict(refused), Verdict::NotMeasured);
        }
    }

    #[test]
    fn tails_are_of_calls_of_all_orders() {
        let row = |allocator: &str, operation: &str, orders: &str, ns: u64| {
            json!({ "bench": "tail", "allocator": allocator, "pattern": "mixed", "full": "97 %",
                "threads": 2, "operation": operation, "orders": orders, "p99_99_ns": ns })
        };
        let [buddy, depot] = super::PEERS;
        let mut rows = Vec::new();
        for (allocator, ns) in [("framewright", 500), (buddy, 2000), (depot, 1000)] {
            let all = ["get", "put"].map(|operation| row(allocator, operation, "all", ns));
            rows.extend(all);
        }
        rows.push(row("framewright", "get", "9", 9000));
        assert_eq!(outcome(&rows, "traffic-tail"), (Verdict::Met, Some(0.5), 4));
        rows[0]["p99_99_ns"] = json!(1500);
        assert_eq!(outcome(&rows, "traffic-tail"), (Verdict::Short, Some(1.5), 4));
    }
}
