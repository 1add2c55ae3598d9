//! What the boot log says about huge-page pools and reserve areas.

use crate::common::{bring_up_with, gib, parameters};
use framewright::bootlog::{self, BootLog};
use framewright_testkit::{FakeMachine, HelperPool};
use std::fmt;

/// A log that keeps all lines.
#[derive(Default)]
struct Lines(Vec<String>);

impl BootLog for Lines {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.push(line.to_string());
    }
}

fn log_of(line: &str) -> Vec<String> {
    let builder = FakeMachine::builder()
        .ram(gib(4, 12))
        .node(gib(4, 12), 0)
        .ram(gib(12, 20))
        .node(gib(12, 20), 1);
    let machine = builder.cpus_on(0, 4).cpus_on(1, 4).build();
    let mut log = Lines::default();
    let parameters = framewright::Parameters::parse(line, &mut |problem| {
        bootlog::parameter_problem(&mut log, problem)
    });
    let manager = bring_up_with(machine, &[], &parameters).expect("comes up");
    let input = bootlog::Intake {
        map: machine.map(),
        topology: machine.topology(),
        parameters: &parameters,
    };
    bootlog::bring_up(&mut log, &input, &manager);
    let fill = manager.hugetlb().fill(&parameters, &HelperPool::on_nodes(&[0, 0, 1, 1]));
    bootlog::huge_pages(&mut log, &fill);
    log.0
}

#[test]
fn threads_that_cannot_take_part_are_said() {
    assert_eq!(parameters("hugepage_alloc_threads=8").huge_pages.alloc_threads, Some(8));
    let log = log_of("hugepages=300 hugepage_alloc_threads=8");
    let wanted =
        "HugeTLB: 1 of 8 threads took part: no more than 1 help with so few pages and nodes";
    assert!(log.iter().any(|line| line == wanted), "{log:#?}");
    let log = log_of("hugepages=300 hugepage_alloc_threads=1");
    assert!(!log.iter().any(|line| line.contains("took part")), "{log:#?}");
    let log = log_of("hugepage_alloc_threads=8");
    assert!(!log.iter().any(|line| line.contains("took part")), "{log:#?}");
}

#[test]
fn more_pages_than_there_can_be_are_said() {
    let log = log_of("hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=99999999999999999999");
    let line = "HugeTLB: allocating 18446744073709551615 of page size 2.00 MiB failed.";
    assert!(log.iter().any(|said| said.starts_with(line)), "{log:#?}");
    assert!(log.iter().any(|said| said.starts_with("HugeTLB: allocation took")), "{log:#?}");
}

#[test]
fn areas_of_1_gib_pages_are_logged_and_the_pages_are_given() {
    let log = log_of("hugetlb_cma=1G hugepagesz=1G hugepages=2");
    let area = log.iter().find(|line| line.starts_with("cma: ")).expect("made");
    assert!(area.starts_with("cma: Reserved 1024 MiB at 0x"), "{area}");
    assert!(area.ends_with("area hugetlb0"), "{area}");
    assert!(
        log.iter()
            .any(|line| line.ends_with("registered 1.00 GiB page size, pre-allocated 2 pages")),
        "{log:#?}"
    );
}

#[test]
fn what_is_set_aside_and_what_is_not_is_logged() {
    let log = log_of("cma=64M kernelcore=50%");
    let area = log.iter().filter(|line| line.starts_with("cma: "));
    let area: Vec<_> = area.collect();
    assert!(area.len() == 1 && area[0].starts_with("cma: Reserved 64 MiB at 0x"), "{area:?}");
    assert!(area[0].ends_with("area reserved"), "{area:?}");
    assert!(log.iter().any(|line| line.starts_with("  Node 0: 0x")), "{log:#?}");
    let log = log_of("cma=1T");
    assert!(log.iter().any(|line| line == "cma: Failed to reserve 1048576 MiB"), "{log:#?}");
    let log = log_of("");
    assert!(!log.iter().any(|line| line.starts_with("cma: ")), "{log:#?}");
}
