//! Tests with known answers: costs that are round numbers, and machines that can be computed by
//! hand.

use super::*;
use crate::model::costs::Line;
use framewright::units::PfnRange;
use std::ops::Range;

const S: u64 = SECTION_PAGES;

/// The rate at which the descriptors of a section take a millisecond.
fn write(limit: Option<f64>) -> Rate {
    Rate { each: S as f64 * 64.0 * 1e3, limit }
}

fn costs() -> Costs {
    Costs {
        bring_up: Line { call_ns: 5000.0, unit_ns: 10.0 },
        zone_ns: 100.0,
        nodes: Line { call_ns: 1000.0, unit_ns: 10.0 },
        cpu_zone_ns: 7.0,
        write: write(None),
        helper_ns: 20_000.0,
        ..Costs::NONE
    }
}

fn node(sections: Range<u32>, threads: u32) -> Node {
    let runs = vec![PfnRange::new(u64::from(sections.start) * S, u64::from(sections.end) * S)];
    Node {
        number: 0,
        threads,
        pages: u64::from(sections.end - sections.start) * S,
        deferred: sections,
        runs,
    }
}

fn shape(nodes: Vec<Node>) -> Shape {
    Shape { name: "x".into(), present_bytes: 16 << 30, cpus: 8, zones: 2, nodes }
}

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected.abs() * 1e-9
}

#[test]
fn bring_up_is_a_sum() {
    let mut shape = shape(vec![node(1..2, 1), node(2..3, 1), node(3..4, 1)]);
    assert!(near(bring_up(&costs(), &shape), 5000.0 + 160.0 + 1020.0 + 98.0));
    shape.zones = 5;
    assert!(near(bring_up(&costs(), &shape), 5000.0 + 160.0 + 300.0 + 1020.0 + 7.0 * 35.0));
    shape.nodes.truncate(1);
    assert!(near(bring_up(&costs(), &shape), 5000.0 + 160.0 + 300.0 + 7.0 * 35.0));
}

#[test]
fn chunks_follow_the_rule() {
    // 511 sections on 16 threads: 511 / 64 = 7 sections a chunk.
    assert_eq!(division(&node(1..512, 16), 16), Division { threads: 16, chunk_sections: 7 });
    assert_eq!(division(&node(1..3, 16), 16), Division { threads: 2, chunk_sections: 1 });
    assert_eq!(division(&node(1..512, 16), 1).threads, 1);
}

#[test]
fn one_thread_takes_the_sum_and_many_end_with_the_last_chunk() {
    let (costs, node) = (costs(), node(8..72, 4));
    assert!(near(node_job(&costs, &node, 1, 0.0), 64e6));
    // 64 sections, 4 threads, chunks of 4: 16 chunks of 4 ms, four for each thread; helpers begin
    // 20 us late.
    assert!(near(node_job(&costs, &node, 4, 0.0), 16e6 + 20e3));
    // 3 threads, chunks of 5 that end on multiples of 5: one of 2, twelve whole ones, one of 2. The
    // first thread begins with the short one.
    let three = node_job(&costs, &node, 3, 0.0);
    assert!(near(three, 22e6 + 20e3), "{three}");
}

#[test]
fn helpers_without_a_cpu_of_their_own_help_less() {
    let (costs, node) = (Costs { helper_ns: 0.0, ..costs() }, node(0..1024, 2));
    let with = |helper_share| node_job(&Costs { helper_share, ..costs }, &node, 2, 0.0);
    assert!(near(with(0.0), 1024e6) && near(with(1.0), 512e6));
    // A chunk is 128 sections: the helper with half a CPU takes twice as long for each, and ends
    // within one of them.
    let half = with(0.5);
    assert!((1024e6 / 1.5 - 1.0..=1024e6 / 1.5 + 256e6).contains(&half), "{half}");
}

#[test]
fn memory_limits_many_threads() {
    let costs = Costs { write: write(Some(write(None).each * 4.0)), helper_ns: 0.0, ..costs() };
    let node = node(0..640, 32);
    let many = node_job(&costs, &node, 32, 0.0);
    // At most four times the rate of one thread, and 32 threads come close.
    assert!(many > 160e6 && many < 170e6, "{many}");
    // Threads that work on the same memory for other nodes take their share of its rate.
    assert!(near(
        node_job(&costs, &node, 32, 32.0) / 2.0,
        640e6 / 64.0 * 64.0 / costs.write.of(64.0) * write(None).each
    ));
}

#[test]
fn nodes_work_at_the_same_time_and_share_memory_only_where_they_do() {
    let costs = Costs { write: write(Some(write(None).each)), helper_ns: 0.0, ..costs() };
    let shape = shape(vec![node(1..65, 1), node(65..97, 1)]);
    let apart = deferred(&costs, &shape, |node| node.threads, false);
    let one = node_job(&costs, &shape.nodes[0], 1, 0.0);
    assert!(near(apart, bring_up(&costs, &shape) + one));
    assert!(deferred(&costs, &shape, |node| node.threads, true) > apart * 1.2);
    assert!(near(eager(&costs, &shape), bring_up(&costs, &shape) + 96e6 * 2f64.sqrt()));
}

#[test]
fn what_is_not_deferred_is_done_by_the_boot_cpu() {
    let mut early = node(1..11, 1);
    early.pages += 3 * S;
    let shape = shape(vec![early]);
    assert!(near(deferred(&costs(), &shape, |_| 1, false), bring_up(&costs(), &shape) + 13e6));
}

#[test]
fn flushes_by_cpus() {
    let costs = Costs { flush: Line { call_ns: 100.0, unit_ns: 500.0 }, ..Costs::NONE };
    assert!(near(flush(&costs, 1), 100.0) && near(flush(&costs, 252), 100.0 + 251.0 * 500.0));
    assert_eq!([0, 1, 4096, 4097].map(flushes), [0, 1, 1, 1]);
}

#[test]
fn pools_with_and_without_maps() {
    let costs = Costs {
        fill_two_mib: Line { call_ns: 300.0, unit_ns: 2.0 },
        empty_two_mib: Line { call_ns: 200.0, unit_ns: 3.0 },
        release: Rate { each: 32768.0 * 1e6, limit: None },
        supply: Rate { each: 32768.0 * 1e5, limit: None },
        withdraw_ns: 100.0,
        leave_two_mib: Line { call_ns: 700.0, unit_ns: 5.0 },
        restore_ns: 50.0,
        flush: Line { call_ns: 1000.0, unit_ns: 0.0 },
        ..Costs::NONE
    };
    let resize =
        |maps, most| Resize { size: PoolSize::TwoMib, pages: 1000, maps, most, cpus: 1, nodes: 1 };
    assert!(
        near(resize(Maps::Kept, 8).fill(&costs), 2300.0)
            && near(resize(Maps::Kept, 8).empty(&costs), 3200.0)
    );
    // A microsecond for the system and a tenth for us, for each block; one flush.
    assert!(near(resize(Maps::Lazy, 1).fill(&costs), 2300.0 + 1.1e6 + 1000.0));
    assert!(near(resize(Maps::Lazy, 1).empty(&costs), 700.0 + 5000.0));
    assert!(near(resize(Maps::Eager, 1).empty(&costs), 3200.0 + 10.05e6));
    assert_eq!(
        [Maps::Kept, Maps::Lazy, Maps::Eager].map(|maps| resize(maps, 8).empty_threads()),
        [1, 1, 8]
    );
    assert_eq!(resize(Maps::Lazy, 8).fill_threads(), 1);
    assert!(near(resize(Maps::Eager, 2).empty(&costs), 3200.0 + 10.05e6 / 2.0));
}
