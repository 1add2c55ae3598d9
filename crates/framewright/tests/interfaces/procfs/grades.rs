//! Memory with a grade as Linux's files show it: as zone `Movable`, and as CMA with its areas.

use super::formats::{
    pages, parse_buddyinfo, parse_meminfo, parse_pagetypeinfo, parse_vmstat, parse_zoneinfo, read,
};
use crate::common::{Fake, bring_up, bring_up_with, gib, mib, parameters};
use framewright::Request;
use framewright::firmware::MemoryKind;
use framewright::manager::{AreaName, Budget};
use framewright::procfs::{FileError, FileSystem, Kind};
use framewright::units::{Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, ZoneId, ZoneKind};
use framewright_testkit::{FakeMachine, Owner};

/// Two nodes of 3 and 2 GiB.
fn machine() -> Fake {
    let builder = FakeMachine::builder().ram(mib(0, 3072)).ram(gib(4, 6)).cpus(2);
    bring_up(builder.node(mib(0, 3072), 0).node(gib(4, 6), 1).build())
}

fn blocks(start: u32, count: u32) -> BlockRange {
    BlockRange { start: BlockNumber(start), end: BlockNumber(start + count) }
}

fn key(node: u64, zone: &str) -> (u64, String) {
    (node, zone.to_owned())
}

#[test]
fn what_only_movable_requests_may_have_is_a_zone_of_its_own() {
    let manager = machine();
    let moving = manager.moving();
    let total: u64 = manager.views().map(|zone| zone.managed_pages()).sum();
    // In both zones of the first node that have blocks, so that zone `Movable` is built from two.
    moving.set_grade(blocks(4, 2), Grade::MovableOnly).expect("free");
    moving.set_grade(blocks(512, 64), Grade::MovableOnly).expect("free");
    let page = manager.allocate_at(
        BlockNumber(520).start(),
        Order::PAGE,
        framewright::MigrateType::Movable,
    );
    let page = page.expect("free");
    let zoneinfo = parse_zoneinfo(&read(&manager, "/proc/zoneinfo"));
    let movable = &zoneinfo[&key(0, "Movable")];
    for (name, value) in [
        ("pages free", 66 * 512 - 1),
        ("nr_free_pages", 66 * 512 - 1),
        ("nr_free_pages_blocks", 65 * 512),
        ("spanned", (576 - 4) * 512),
        ("present", 66 * 512),
        ("managed", 66 * 512),
        ("start_pfn:", 4 * 512),
        ("cma", 0),
        // The least of each of the two zones.
        ("min", 2 * 32),
    ] {
        assert_eq!(movable[name], value, "{name}");
    }
    let marks = ["min", "low", "high", "promo"].map(|name| movable[name]);
    assert!(marks.is_sorted() && marks[1] > marks[0], "{marks:?}");
    assert_eq!(zoneinfo[&key(1, "Movable")]["present"], 0);
    // No page is shown twice or left out.
    let sum = |name| zoneinfo.values().map(|zone| zone.get(name).unwrap_or(&0)).sum::<u64>();
    assert_eq!(sum("managed"), total);
    assert_eq!(sum("pages free"), manager.totals().free_pages);
    let dma32 = ZoneId { node: manager.nodes()[0].id, kind: ZoneKind::Dma32 };
    let dma32 = manager.view(dma32).expect("a zone");
    let shown = &zoneinfo[&key(0, "DMA32")];
    assert_eq!(shown["managed"], dma32.managed_pages() - 64 * 512);
    assert_eq!(shown["nr_free_pages_blocks"], dma32.free_block_pages() - 63 * 512);

    let runs = parse_buddyinfo(&read(&manager, "/proc/buddyinfo"));
    assert_eq!(pages(&runs[&key(0, "Movable")]), 66 * 512 - 1);
    assert_eq!(runs.values().map(|runs| pages(runs)).sum::<u64>(), manager.totals().free_pages);
    assert!(!runs.contains_key(&key(1, "Movable")));
    let types = parse_pagetypeinfo(&read(&manager, "/proc/pagetypeinfo"));
    let of_type = |kind: &str| &types.runs[&(0, "Movable".to_owned(), kind.to_owned())];
    assert_eq!(pages(of_type("Movable")), 66 * 512 - 1);
    assert_eq!(pages(of_type("Unmovable")), 0);
    assert_eq!(types.blocks[&key(0, "Movable")], [0, 66, 0, 0, 0]);
    assert!(types.runs.keys().all(|(_, _, kind)| kind != "MovableOnly"));

    manager.give_back(page).expect("held");
    manager.drain().expect("in order");
    for range in [blocks(4, 2), blocks(512, 64)] {
        moving.set_grade(range, Grade::Any).expect("free");
    }
    assert!(!parse_buddyinfo(&read(&manager, "/proc/buddyinfo")).contains_key(&key(0, "Movable")));
    assert_eq!(parse_zoneinfo(&read(&manager, "/proc/zoneinfo"))[&key(0, "Movable")]["managed"], 0);
}

/// As Linux shows a zone of which `movable_node` left nothing.
#[test]
fn a_zone_without_other_memory_is_not_populated() {
    let builder = FakeMachine::builder().ram(mib(0, 3072)).ram(gib(4, 6)).cpus(2);
    // The node has no CPU and its tables are elsewhere.
    let builder = builder.node(mib(0, 3072), 0).hot_pluggable_node(gib(4, 6), 1);
    let manager = bring_up_with(builder.build(), &[], &parameters("movable_node")).expect("memory");
    let normal = ZoneId { node: manager.nodes()[1].id, kind: ZoneKind::Normal };
    let normal = manager.view(normal).expect("a zone");
    assert_eq!(normal.graded_memory(Grade::MovableOnly).present_pages, normal.present_pages());
    let text = read(&manager, "/proc/zoneinfo");
    let zoneinfo = parse_zoneinfo(&text);
    let shown = &zoneinfo[&key(1, "Normal")];
    assert!(["pages free", "min", "spanned", "present"].iter().all(|name| shown[*name] == 0));
    assert!(!shown.contains_key("nr_free_pages") && !shown.contains_key("start_pfn:"));
    // Statistics of the node are with its first zone that has memory.
    let of_movable = text.rfind("zone  Movable").expect("a zone");
    assert_eq!(text.matches("per-node stats").count(), 2);
    assert!(text.rfind("per-node stats") > Some(of_movable), "{text}");
    let buddyinfo = parse_buddyinfo(&read(&manager, "/proc/buddyinfo"));
    assert!(!buddyinfo.contains_key(&key(1, "Normal")));
    assert_eq!(pages(&buddyinfo[&key(1, "Movable")]), normal.free_pages());
}

/// Unaccepted memory counts in the zone in which it will be free.
#[test]
fn unaccepted_memory_with_a_grade_is_of_the_zone_movable() {
    for line in ["kernelcore=48M", "kernelcore=48M cma=16M", "kernelcore=480M"] {
        let machine = FakeMachine::builder()
            .ram(mib(0, 32))
            .memory(mib(32, 512), MemoryKind::Unaccepted)
            .accepts()
            .build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let is_right = || {
            let zoneinfo = parse_zoneinfo(&read(&manager, "/proc/zoneinfo"));
            for (name, zone) in &zoneinfo {
                let of = |name: &str| zone.get(name).copied().unwrap_or(0);
                assert!(of("pages free") <= of("managed"), "{line}: {name:?} {zone:?}");
                assert!(of("nr_unaccepted") <= of("managed"), "{line}: {name:?} {zone:?}");
                assert!(of("managed") <= of("present"), "{line}: {name:?} {zone:?}");
            }
            let sum =
                |name| zoneinfo.values().map(|zone| zone.get(name).unwrap_or(&0)).sum::<u64>();
            let totals = manager.totals();
            let unaccepted = totals.unaccepted_pages;
            assert_eq!(sum("nr_unaccepted"), unaccepted, "{line}");
            assert_eq!(sum("pages free"), totals.free_pages + unaccepted, "{line}");
            assert_eq!(sum("managed"), totals.managed_pages + unaccepted, "{line}");
            zoneinfo
        };
        let zoneinfo = is_right();
        if line != "kernelcore=480M" {
            assert!(zoneinfo[&key(0, "Movable")]["nr_unaccepted"] > 100_000, "{line}");
        }
        let movable = Request::pages(4096);
        let taken = manager.allocate(&movable).expect("there is memory");
        is_right();
        manager.give_back(taken).expect("held");
    }
}

#[test]
fn areas_have_a_folder_each_and_are_cma() {
    let manager = machine();
    let moving = manager.moving();
    let folder = "/sys/kernel/mm/cma";
    let table = manager.files();
    let files = [&table as &dyn framewright::procfs::Source];
    let files = FileSystem::new(&files);
    assert_eq!(files.kind(folder), Err(FileError::NotFound));
    let name = |name| AreaName::new(name).expect("a name");
    let camera = moving.create_area(name("camera"), blocks(2048, 16)).expect("free");
    moving.create_area(name("exactly-16-bytes"), blocks(2064, 1)).expect("free");
    assert_eq!(files.kind(folder), Ok(Kind::Folder));
    let number = |area: &str, file: &str| {
        let text = read(&manager, &format!("{folder}/{area}/{file}"));
        text.strip_suffix('\n').expect("a line").parse::<u64>().expect("a number")
    };
    assert_eq!(number("exactly-16-bytes", "total_pages"), 512);
    let run = moving.allocate_in_area(camera, 700, Order::PAGE, Budget::UNLIMITED).expect("free");
    moving
        .allocate_in_area(camera, 16 * 512, Order::PAGE, Budget::UNLIMITED)
        .expect_err("a part is out");
    let part = PfnRange { start: run.start, end: run.start.add(100) };
    // SAFETY: it was just allocated, and nobody uses it.
    unsafe { moving.release_to_area(camera, part) }.expect("out");
    for (file, value) in [
        ("alloc_pages_success", 700),
        ("alloc_pages_fail", 16 * 512),
        ("release_pages_success", 100),
        ("total_pages", 16 * 512),
        ("available_pages", 16 * 512 - 600),
    ] {
        assert_eq!(number("camera", file), value, "{file}");
    }
    let free = 17 * 512 - 600;
    let vmstat = parse_vmstat(&read(&manager, "/proc/vmstat"));
    let cma = ["cma_alloc_success", "cma_alloc_fail", "nr_free_cma"].map(|name| vmstat[name]);
    assert_eq!(cma, [700, 16 * 512, free]);
    let meminfo = parse_meminfo(&read(&manager, "/proc/meminfo"), "");
    assert_eq!([meminfo["CmaTotal"], meminfo["CmaFree"]], [4 * 17 * 512, 4 * free]);
    let zoneinfo = parse_zoneinfo(&read(&manager, "/proc/zoneinfo"));
    let zone = &zoneinfo[&key(1, "Normal")];
    assert_eq!([zone["cma"], zone["nr_free_cma"]], [17 * 512, free]);
    let types = parse_pagetypeinfo(&read(&manager, "/proc/pagetypeinfo"));
    assert_eq!(types.blocks[&key(1, "Normal")][3], 17);
    for wrong in ["other/total_pages", "camer/total_pages", "camera/none", "camera/total_pages/x"] {
        assert!(files.read(&format!("{folder}/{wrong}"), &mut String::new()).is_err(), "{wrong}");
    }
    assert_eq!(
        files.write(&format!("{folder}/camera/total_pages"), "1"),
        Err(FileError::NotPermitted)
    );
    let rest = PfnRange { start: part.end, end: run.end };
    // SAFETY: as above.
    unsafe { moving.release_to_area(camera, rest) }.expect("out");
    assert_eq!(number("camera", "available_pages"), 16 * 512);
}
