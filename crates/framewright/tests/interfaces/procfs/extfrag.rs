//! Fragmentation indices and compaction settings as files.

use crate::common::{Fake, bring_up, check, mib};
use framewright::manager::SettingsError;
use framewright::procfs::{FileError, FileSystem};
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{FreeAreas, Grade, MigrateType, ORDERS};
use framewright_testkit::{FakeMachine, Owner};

const FOLDER: &str = "/sys/kernel/debug/extfrag";

fn read(manager: &Fake, path: &str) -> String {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table]).read(path, &mut text).expect("it can be read");
    text
}

fn write(manager: &Fake, path: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    FileSystem::new(&[&table]).write(path, text)
}

/// Zones by name, with the index of each order in thousandths.
fn indices(manager: &Fake, file: &str) -> Vec<(String, Vec<i64>)> {
    let text = read(manager, &format!("{FOLDER}/{file}"));
    text.lines()
        .map(|line| {
            // "Node 0, zone    DMA32 " as in buddyinfo.
            let (zone, columns) = line.split_at_checked(22).expect("a zone");
            assert!(zone.starts_with("Node 0, zone ") && zone.ends_with(' '), "{line:?}");
            assert!(columns.ends_with(' '), "{line:?}");
            let columns: Vec<_> = columns
                .split_ascii_whitespace()
                .map(|column| {
                    let (whole, part) = column.split_once('.').expect("a point");
                    assert_eq!(part.len(), 3, "{line:?}");
                    format!("{whole}{part}").parse().expect("a number")
                })
                .collect();
            assert_eq!(columns.len(), ORDERS);
            (zone[13..21].trim().to_owned(), columns)
        })
        .collect()
}

/// Computes both indices from counts by their definitions.
fn expected(areas: &FreeAreas, order: usize) -> (i64, i64) {
    let runs = areas.by_order();
    let pages = |orders: std::ops::Range<usize>| -> i64 {
        orders.map(|order| i64::try_from(runs[order] << order).expect("few pages")).sum()
    };
    let (free, fitting) = (pages(0..ORDERS), pages(order..ORDERS));
    let pieces = i64::try_from(runs.iter().sum::<u64>()).expect("few runs");
    let fragmentation = match (pieces, fitting) {
        (0, _) => 0,
        (_, 0) => 1000 - (1000 + free * 1000 / (1 << order)) / pieces,
        _ => -1000,
    };
    (fragmentation, if free == 0 { 1000 } else { (free - fitting) * 1000 / free })
}

/// Compares both files with the counts of the zones.
fn compare(manager: &Fake) {
    let fragmentation = indices(manager, "extfrag_index");
    let unusable = indices(manager, "unusable_index");
    assert_eq!((fragmentation.len(), unusable.len()), (2, 2));
    for (zone, (fragmentation, unusable)) in
        manager.views().zip(fragmentation.into_iter().zip(unusable))
    {
        assert_eq!([&fragmentation.0, &unusable.0], [zone.id().kind.name(); 2]);
        let areas = zone.free_areas();
        for order in 0..ORDERS {
            let found = (fragmentation.1[order], unusable.1[order]);
            assert_eq!(found, expected(&areas, order), "{} of order {order}", zone.id());
        }
    }
}

#[test]
fn indices_say_why_a_request_fails() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).cpus(1).build());
    compare(&manager);
    let of_dma32 = |file| indices(&manager, file).remove(1).1;
    // All except what lies beside the tables.
    let before = of_dma32("unusable_index")[9];
    assert!(of_dma32("extfrag_index")[9] == -1000 && before < 100, "{before}");
    // All of it is in use, page by page.
    let mut pages = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
        pages.push(page);
    }
    manager.drain().expect("nothing is wrong");
    // Every second page is freed: much memory is free, but none of it is contiguous.
    let (back, held): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| page.0 % 2 == 0);
    let give_back = |pages: Vec<Pfn>| {
        for page in pages {
            manager.give_back_order(page, Order::PAGE).expect("held");
        }
        manager.drain().expect("nothing is wrong");
    };
    give_back(back);
    compare(&manager);
    let (fragmentation, unusable) = (of_dma32("extfrag_index"), of_dma32("unusable_index"));
    assert_eq!((fragmentation[0], unusable[0]), (-1000, 0));
    assert!(fragmentation[9] > 990 && unusable[9] > 990, "{fragmentation:?} {unusable:?}");
    give_back(held);
    compare(&manager);
    assert_eq!((of_dma32("extfrag_index")[9], of_dma32("unusable_index")[9]), (-1000, before));
    check(&manager);
}

#[test]
fn indices_below_zero_have_their_sign_in_front() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).cpus(1).build());
    manager.sysctl().set_min_free_kbytes(0).expect("allowed");
    manager.sysctl().set_lowmem_reserve_ratio([0; 4]);
    let mut pages = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Movable) {
        pages.push(page);
    }
    // Only half a block is free, in one piece.
    let half = 0x2000..0x2100;
    let (back, held): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| half.contains(&page.0));
    assert_eq!(back.len(), 256);
    for page in back {
        manager.give_back_order(page, Order::PAGE).expect("held");
    }
    manager.drain().expect("nothing is wrong");
    compare(&manager);
    assert_eq!(indices(&manager, "extfrag_index")[1].1[8..10], [-1000, -500]);
    let text = read(&manager, &format!("{FOLDER}/extfrag_index"));
    assert!(text.contains(" -1.000 -0.500 ") && !text.contains(".-"), "{text}");
    for page in held {
        manager.give_back_order(page, Order::PAGE).expect("held");
    }
}

/// Memory that only movable requests may have does not hide that the rest is in pieces.
#[test]
fn memory_for_movable_requests_alone_has_indices_of_its_own() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).cpus(1).build());
    let range = BlockRange { start: BlockNumber(16), end: BlockNumber(24) };
    manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
    let mut pages = Vec::new();
    while let Ok(page) = manager.allocate_order(Order::PAGE, MigrateType::Unmovable) {
        pages.push(page);
    }
    manager.drain().expect("nothing is wrong");
    let of = |file| {
        let zones = indices(&manager, file).into_iter();
        zones.map(|(zone, columns)| (zone, columns[9])).collect::<Vec<_>>()
    };
    let [unusable, why] = ["unusable_index", "extfrag_index"].map(of);
    assert_eq!(unusable[1..], [("DMA32".to_owned(), 1000), ("Movable".to_owned(), 0)]);
    assert!(why[1].1 >= 0 && why[2] == ("Movable".to_owned(), -1000), "{why:?}");
    for page in pages {
        manager.give_back_order(page, Order::PAGE).expect("held");
    }
    check(&manager);
}

#[test]
fn settings_of_compaction_have_limits() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).cpus(1).build());
    for (name, default, most) in
        [("extfrag_threshold", 500, 1000_u64), ("compaction_proactiveness", 20, 100)]
    {
        let path = format!("/proc/sys/vm/{name}");
        assert_eq!(read(&manager, &path), format!("{default}\n"));
        for value in [0, most, 7] {
            assert_eq!(write(&manager, &path, &format!("{value}\n")), Ok(()));
            assert_eq!(read(&manager, &path), format!("{value}\n"));
        }
        for text in [&*format!("{}", most + 1), "-1", "", "many", "1 2", "18446744073709551616"] {
            assert_eq!(write(&manager, &path, text), Err(FileError::Invalid), "{name} {text:?}");
            assert_eq!(read(&manager, &path), "7\n");
        }
    }
    let sysctl = manager.sysctl();
    assert_eq!((sysctl.extfrag_threshold(), sysctl.compaction_proactiveness()), (7, 7));
    let threshold = sysctl.set_extfrag_threshold(1001);
    assert_eq!(threshold, Err(SettingsError::BadExtfragThreshold { threshold: 1001 }));
    let proactiveness = sysctl.set_compaction_proactiveness(101);
    assert_eq!(proactiveness, Err(SettingsError::BadProactiveness { proactiveness: 101 }));
    let said = [threshold, proactiveness].map(|error| error.expect_err("refused").to_string());
    assert_eq!(said[0], "extfrag_threshold cannot be 1001: 0 to 1000");
    assert_eq!(said[1], "compaction_proactiveness cannot be 101: 0 to 100");
}
