//! Where the shuffle gets its seed, and what the log says about it.

use crate::common::{bring_up_with, gib, parameters};
use framewright::bootlog::{self, BootLog};
use framewright::manager::ShuffleSeed;
use framewright_testkit::{Builder, FakeMachine};
use std::fmt;

struct Lines(Vec<String>);

impl BootLog for Lines {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.push(line.to_string());
    }
}

/// Returns the source of the seed, how often the machine was asked for entropy, and what the log
/// says.
fn boot(machine: Builder, line: &str) -> (Option<ShuffleSeed>, u64, Vec<String>) {
    let machine = machine.ram(gib(4, 5)).build();
    let parameters = parameters(line);
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    let mut lines = Lines(Vec::new());
    let intake = bootlog::Intake {
        map: machine.map(),
        topology: machine.topology(),
        parameters: &parameters,
    };
    bootlog::bring_up(&mut lines, &intake, &manager);
    lines.0.retain(|line| line.contains("shuffle"));
    (manager.shuffle_seed(), machine.calls().entropy, lines.0)
}

#[test]
fn the_shuffle_begins_with_entropy_where_there_is_some() {
    let on = "page_alloc.shuffle=1";
    let machine = FakeMachine::builder;
    let (seed, calls, log) = boot(machine().entropy(7).no_clock(), on);
    assert_eq!((seed, calls, log.len()), (Some(ShuffleSeed::Entropy), 1, 0));
    let (seed, calls, log) = boot(machine(), on);
    assert_eq!((seed, calls, log.len()), (Some(ShuffleSeed::Clock), 1, 1));
    assert!(log[0].contains("no entropy") && log[0].contains("guessed"), "{log:?}");
    let (seed, calls, log) = boot(machine().no_clock(), on);
    assert_eq!((seed, calls, log.len()), (Some(ShuffleSeed::Address), 1, 1));
    assert!(
        log[0].contains("neither entropy nor a clock") && log[0].contains("same at every boot"),
        "{log:?}"
    );
}

#[test]
fn nobody_is_asked_where_nothing_is_left_to_chance() {
    let machine = || FakeMachine::builder().entropy(7);
    assert_eq!(boot(machine(), ""), (None, 0, vec![]));
    let given = "page_alloc.shuffle=1 page_alloc.shuffle_seed=5";
    assert_eq!(boot(machine(), given), (Some(ShuffleSeed::Given), 0, vec![]));
}
