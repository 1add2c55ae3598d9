//! Control files of free page reporting and of the shuffle.

use framewright::procfs::{FileError, FileSystem};
use framewright::reporting::Pace;
use framewright::units::Order;
use framewright::{Manager, Request};
use framewright_testkit::FakeMachine;

type Machine = Manager<FakeMachine>;

const PARAMETERS: &str = "/sys/module/page_reporting/parameters";

fn machine(line: &str) -> Machine {
    let machine = FakeMachine::builder().ram(crate::common::mib(0, 256)).build();
    crate::common::bring_up_with(machine, &[], &crate::common::parameters(line)).expect("bring-up")
}

fn read(manager: &Machine, path: &str) -> String {
    let table = manager.files();
    let mut text = String::new();
    FileSystem::new(&[&table])
        .read(path, &mut text)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    text
}

fn write(manager: &Machine, name: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    FileSystem::new(&[&table]).write(&format!("{PARAMETERS}/{name}"), text)
}

fn parameter(manager: &Machine, name: &str) -> String {
    read(manager, &format!("{PARAMETERS}/{name}"))
}

fn counter(manager: &Machine, name: &str) -> u64 {
    let text = read(manager, "/proc/vmstat");
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn parameters_are_read_and_written_as_in_linux() {
    let manager = machine("");
    assert_eq!(parameter(&manager, "page_reporting_order"), "-1\n");
    assert_eq!(parameter(&manager, "page_reporting_delay_ms"), "2000\n");
    assert_eq!(parameter(&manager, "pace"), "adaptive\n");
    assert_eq!(parameter(&manager, "timeout_ms"), "10000\n");
    for (name, text) in [
        ("page_reporting_order", "0"),
        ("page_reporting_order", "18\n"),
        ("page_reporting_delay_ms", "0"),
        ("pace", "fixed\n"),
        ("timeout_ms", "7"),
        ("pools", "Y"),
    ] {
        assert_eq!(write(&manager, name, text), Ok(()), "{name} {text:?}");
        assert_eq!(parameter(&manager, name).trim(), text.trim());
    }
    let reporting = manager.reporting();
    assert_eq!((reporting.order(), reporting.delay_ms()), (Some(Order::MAX), 0));
    assert_eq!(
        (reporting.pace(), reporting.timeout_ms(), reporting.has_pools()),
        (Pace::Fixed, 7, true)
    );
    for (name, text) in [
        ("page_reporting_order", "19"),
        ("page_reporting_order", "255"),
        ("page_reporting_order", "274"),
        ("page_reporting_order", "-1"),
        ("page_reporting_order", ""),
        ("page_reporting_delay_ms", "4294967296"),
        ("page_reporting_delay_ms", "soon"),
        ("timeout_ms", "-1"),
        ("pace", "quick"),
        ("pools", "perhaps"),
        ("pace", ""),
    ] {
        let before = parameter(&manager, name);
        assert_eq!(write(&manager, name, text), Err(FileError::Invalid), "{name} {text:?}");
        assert_eq!(parameter(&manager, name), before);
    }
}

#[test]
fn the_command_line_shows() {
    let manager = machine(
        "page_reporting.page_reporting_order=5 page_reporting.page_reporting_delay_ms=10 \
         page_reporting.pace=fixed",
    );
    assert_eq!(parameter(&manager, "page_reporting_order"), "5\n");
    assert_eq!(parameter(&manager, "page_reporting_delay_ms"), "10\n");
    assert_eq!(parameter(&manager, "pace"), "fixed\n");
}

#[test]
fn counters_are_those_of_the_reporter() {
    let manager = machine("");
    assert_eq!(counter(&manager, "page_reporting_pages"), 0);
    assert_eq!(counter(&manager, "nr_free_unreported"), 0);
    for (name, count) in manager.reporting_counters().named() {
        assert_eq!(counter(&manager, name), count, "{name}");
    }
    // None of them appears twice.
    let text = read(&manager, "/proc/vmstat");
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_shuffle_shows_and_cannot_be_written() {
    let path = "/sys/module/page_alloc/parameters/shuffle";
    let (off, on) = (machine(""), machine("page_alloc.shuffle=1 page_alloc.shuffle_seed=3"));
    assert_eq!((read(&off, path), read(&on, path)), ("N\n".into(), "Y\n".into()));
    let table = on.files();
    assert_eq!(FileSystem::new(&[&table]).write(path, "N"), Err(FileError::NotPermitted));
    assert!(!read(&off, "/proc/zoneinfo").contains("shuffle"));
    let text = read(&on, "/proc/zoneinfo");
    let of = |name: &str| -> u32 {
        let numbers = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name)?.trim().parse::<u32>().ok());
        numbers.sum()
    };
    let (pairs, neighbours) = on
        .views()
        .map(|zone| zone.shuffled())
        .fold((0, 0), |(pairs, neighbours), of| (pairs + of.pairs, neighbours + of.neighbours));
    assert!(pairs > 30 && neighbours < pairs / 2, "{neighbours} of {pairs}");
    assert_eq!((of("pairs:"), of("neighbours:")), (pairs, neighbours));
    assert!(on.allocate(&Request::new(Order::BLOCK)).is_ok());
}
