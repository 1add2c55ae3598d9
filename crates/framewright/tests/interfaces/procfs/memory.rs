//! The file that says what every block is used for: it is checked block by block against the block
//! table, against what the test did, and while other threads allocate.

use crate::common::{Fake, blocks, bring_up, bring_up_with, gib, mib, order, parameters};
use framewright::manager::{AreaName, Budget};
use framewright::procfs::FileSystem;
use framewright::units::{Order as PageOrder, PAGES_PER_BLOCK, PfnRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::BlockUse;
use framewright::zone::{BlockState, Grade, MigrateType, State};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};

const PATH: &str = "/sys/kernel/debug/framewright/memory";

fn read(manager: &Fake) -> String {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table]).read(PATH, &mut text).expect("it can be read");
    text
}

/// Returns whether a line is about grades, areas or what was moved.
fn is_of_grades(line: &str) -> bool {
    ["grade ", "area ", "moved "].iter().any(|word| line.starts_with(word))
}

/// Returns those lines, and those where zones begin, and the last one.
fn of_grades(manager: &Fake) -> Vec<String> {
    let text = read(manager);
    let is_shown = |line: &&str| is_of_grades(line) || line.starts_with("zone") || *line == "end";
    let short = |line: &str| line.split(" present").next().unwrap_or("").to_owned();
    text.lines().filter(is_shown).map(short).collect()
}

/// A line of the file: first frame, blocks, and uses with the number of each in a cell.
#[derive(Debug)]
struct Line {
    first: u64,
    blocks: u64,
    uses: Vec<(String, u64)>,
}

/// Returns the number of blocks in a cell, and the lines by zone.
fn parse(text: &str) -> (u64, Vec<(String, Vec<Line>)>) {
    let (mut cell, mut zones) = (0, Vec::new());
    let mut lines = text.lines();
    let head = lines.next().expect("a head");
    let words: Vec<&str> = head.split(' ').collect();
    assert_eq!(words[..4], ["framewright", "memory", "1", "blocks"], "{head}");
    if words[5] == "cell" {
        cell = words[6].parse().expect("a number");
    }
    assert_eq!(lines.next_back(), Some("end"));
    for line in lines.filter(|line| !is_of_grades(line)) {
        if let Some(zone) = line.strip_prefix("zone ") {
            zones.push((zone.split(" present").next().expect("a name").to_owned(), Vec::new()));
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [first, blocks, uses] = words[..] else { panic!("{line:?}") };
        let first = u64::from_str_radix(first.strip_prefix("0x").expect("hexadecimal"), 16)
            .expect("a number");
        let blocks = blocks.parse().expect("a number");
        let uses: Vec<(String, u64)> = match uses.split_once(':') {
            None => vec![(uses.to_owned(), blocks)],
            Some(_) => uses
                .split(',')
                .map(|one| one.split_once(':').expect("a count"))
                .map(|(name, count)| (name.to_owned(), count.parse().expect("a number")))
                .collect(),
        };
        let each: u64 = uses.iter().map(|(_, count)| count).sum();
        assert!(each != 0 && blocks % each == 0, "{line:?}");
        zones.last_mut().expect("a zone comes first").1.push(Line { first, blocks, uses });
    }
    (cell, zones)
}

fn blocks_of(lines: &[Line], letter: char) -> u64 {
    let parts = lines.iter().flat_map(|line| {
        let cells = line.blocks / line.uses.iter().map(|(_, count)| count).sum::<u64>();
        line.uses
            .iter()
            .filter(move |(name, _)| name.starts_with(letter))
            .map(move |(_, count)| count * cells)
    });
    parts.sum()
}

fn machine() -> &'static FakeMachine {
    let builder = FakeMachine::builder().ram(mib(0, 1024)).ram(gib(4, 6)).cpus(4);
    builder.node(mib(0, 1024), 0).node(gib(4, 6), 1).build()
}

/// Returns what the table says about a block, as the file shows it.
fn expected(state: BlockState) -> String {
    let order = state.order().get();
    match state.state() {
        Some(State::Free) => format!("F{order}"),
        Some(State::Whole) => format!("W{order}"),
        Some(State::Isolated) => "I".to_owned(),
        Some(State::Reserved) => "X".to_owned(),
        Some(State::Split) => match (state.managed_pages(), state.free_pages()) {
            (0, _) if state.present_pages() == 0 => "H".to_owned(),
            (0, _) => "X".to_owned(),
            (_, 0) => "S8".to_owned(),
            (managed, free) if managed == free => "S0".to_owned(),
            (managed, free) => format!("S{}", ((managed - free) * 8 / managed).clamp(1, 7)),
        },
        _ => "H".to_owned(),
    }
}

#[test]
fn every_block_is_what_the_table_says() {
    let manager = bring_up(machine());
    // Some blocks of every use, with holes between them.
    let mut held = Vec::new();
    for (index, order_of) in
        [9_u8, 0, 10, 3, 12, 0, 9, 9, 13, 8].into_iter().cycle().take(200).enumerate()
    {
        let kind = [MigrateType::Movable, MigrateType::Unmovable][index % 2];
        let start = manager.allocate_order(order(order_of), kind).expect("there is memory");
        held.push((start, order(order_of)));
    }
    for (start, order) in held.iter().step_by(3) {
        manager.give_back_order(*start, *order).expect("it was allocated");
    }
    let (cell, zones) = parse(&read(&manager));
    assert_eq!(cell, 1);
    assert_eq!(zones.len(), manager.views().count());
    for ((name, lines), zone) in zones.iter().zip(manager.views()) {
        assert_eq!(*name, format!("{} {}", zone.id().node, zone.id().kind));
        let mut seen = Vec::new();
        for line in lines {
            assert_eq!((line.uses.len(), line.uses[0].1), (1, line.blocks), "{line:?}");
            for block in 0..line.blocks {
                seen.push((line.first + block * PAGES_PER_BLOCK, line.uses[0].0.as_str()));
            }
        }
        let blocks =
            zone.segments().flat_map(|segment| segment.start.0..segment.end().0).map(BlockNumber);
        let all: Vec<_> = blocks.map(|block| (block, manager.block_state(block))).collect();
        assert_eq!(seen.len(), all.len());
        for ((first, name), (block, state)) in seen.into_iter().zip(all) {
            assert_eq!(first, block.start().0);
            assert_eq!(name, state.map_or("H".to_owned(), expected), "block {block:?}");
        }
    }
}

#[test]
fn large_machines_have_large_cells_and_short_text() {
    // 24 TiB and sixteen nodes; the test touches only tables.
    let tib = 1024;
    let mut builder = FakeMachine::builder().ram(gib(0, 2)).ram(gib(4, 24 * tib));
    for node in 0..16 {
        let start = if node == 0 { 0 } else { 1536 * node };
        builder =
            builder.node(gib(start, 1536 * (node + 1)), usize::try_from(node).expect("16 nodes"));
    }
    let manager = bring_up(builder.build());
    let fresh = read(&manager);
    assert!(fresh.len() < 8192, "{} bytes:\n{fresh}", fresh.len());
    // Every 61st GiB in pieces.
    for index in 0..3000_u64 {
        let order_of = [9, 13, 0, 17][usize::try_from(index % 4).expect("below 4")];
        let at = PfnRange::new((index * 8 + 4) << 18, 0).start;
        manager.allocate_at(at, order(order_of), MigrateType::Movable).expect("it is free");
    }
    let text = read(&manager);
    assert!(text.len() < 200_000, "{} bytes", text.len());
    let (cell, zones) = parse(&text);
    let blocks: u64 = zones.iter().flat_map(|(_, lines)| lines).map(|line| line.blocks).sum();
    assert!(cell.is_power_of_two() && blocks / cell <= 4096 && blocks / cell > 1024, "{cell}");
    let in_segments = manager
        .zones()
        .iter()
        .flat_map(|zone| zone.segments())
        .map(|segment| u64::from(segment.blocks));
    assert_eq!(blocks, in_segments.sum::<u64>());
    let used: u64 = zones.iter().map(|(_, lines)| blocks_of(lines, 'W')).sum();
    assert_eq!(used, 750 * (1 + 16 + 256));
}

#[test]
fn what_is_reserved_and_in_pools_is_shown() {
    let manager = bring_up_with(machine(), &[gib(5, 6)], &parameters("")).expect("bring-up");
    let pools = manager.hugetlb().files(&framewright_jobs::NoHelpers);
    let pools = pools.table();
    FileSystem::new(&[&pools]).write("/proc/sys/vm/nr_hugepages", "64").expect("there is memory");
    let (_, zones) = parse(&read(&manager));
    let sum = |letter| zones.iter().map(|(_, lines)| blocks_of(lines, letter)).sum::<u64>();
    assert_eq!((sum('P'), sum('X')), (64, 512));
    assert!(sum('F') > 800);
}

/// Whatever the blocks are used for: part of a larger free block, allocated as a whole, split.
#[test]
fn blocks_with_a_grade_are_told_at_the_end_of_their_zone() {
    let manager = bring_up(machine());
    let plain = ["zone 0 DMA", "zone 0 DMA32", "zone 1 Normal", "end"];
    assert_eq!(of_grades(&manager), plain);
    let (moving, before) = (manager.moving(), read(&manager));
    moving.set_grade(blocks(2, 3), Grade::MovableOnly).expect("free");
    moving.set_grade(blocks(5, 1), Grade::Removable).expect("free");
    moving.set_grade(blocks(2048, 1024), Grade::MovableOnly).expect("free");
    moving.set_grade(blocks(2050, 1), Grade::Any).expect("free");
    for (block, order_of) in [(2048, 0), (2052, 9), (2056, 11)] {
        let at = BlockNumber(block).start();
        manager.allocate_at(at, order(order_of), MigrateType::Movable).expect("free");
    }
    let name = |name| AreaName::new(name).expect("a name");
    let camera = moving.create_area(name("grade"), blocks(2050, 1)).expect("free");
    moving.allocate_in_area(camera, 12, PageOrder::PAGE, Budget::UNLIMITED).expect("free");
    moving.create_area(name("x"), blocks(256, 2)).expect("free");
    let expected = [
        "zone 0 DMA",
        "grade movable 0x400 3",
        "grade removable 0xa00 1",
        "zone 0 DMA32",
        "grade removable 0x20000 2",
        "zone 1 Normal",
        "grade movable 0x100000 2",
        "grade movable 0x100600 1021",
        "grade removable 0x100400 1",
        "area 0x100400 512 500 grade",
        "area 0x20000 1024 1024 x",
        "end",
    ];
    assert_eq!(of_grades(&manager), expected);
    // As the blocks themselves say, and runs tell them apart.
    let mut seen = 0;
    for zone in manager.views() {
        zone.for_each_block_run(&mut |run| {
            for block in run.start.0..run.start.0 + run.blocks {
                let grade = moving.grade_of(BlockNumber(block).start()).unwrap_or_default();
                assert_eq!(run.grade, grade, "{run:?}");
                seen += u32::from(grade != Grade::Any);
            }
        });
    }
    assert_eq!(seen, 3 + 1 + 2 + 1024);
    // Holes have none, so a reader of the cells alone misses nothing.
    let (cell, zones) = parse(&read(&manager));
    assert_eq!((cell, zones.len()), (1, parse(&before).1.len()));
}

/// Cells of 16 blocks: the text stays short however many blocks have a grade alone.
#[test]
fn grades_of_large_machines_are_told_by_the_cell() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 2)).ram(gib(4, 130)).build());
    let moving = manager.moving();
    for block in (4096..8192).step_by(2) {
        moving.set_grade(blocks(block, 1), Grade::Removable).expect("free");
    }
    moving.set_grade(blocks(4101, 1), Grade::MovableOnly).expect("free");
    // As far away as a cell is large, and by a block less.
    moving.set_grade(blocks(8191 + 16, 4), Grade::Removable).expect("free");
    moving.set_grade(blocks(8211 + 15, 4), Grade::Removable).expect("free");
    let text = read(&manager);
    assert_eq!(parse(&text).0, 16, "{text}");
    let expected = [
        "zone 0 DMA",
        "zone 0 DMA32",
        "zone 0 Normal",
        "grade removable 0x200000 4095 2048",
        "grade movable 0x200a00 1",
        "grade removable 0x401e00 23 8",
        "end",
    ];
    assert_eq!(of_grades(&manager), expected);
}

#[test]
fn while_others_allocate_no_block_is_left_out_or_seen_twice() {
    let manager = bring_up(machine());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for cpu in 1..4_u32 {
            let (manager, stop) = (&manager, &stop);
            let traffic = move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    for order_of in [9_u8, 18, 0, 14, 10] {
                        if let Ok(start) =
                            manager.allocate_order(order(order_of), MigrateType::Movable)
                        {
                            held.push((start, order(order_of)));
                        }
                    }
                    while held.len() > 20 {
                        let (start, order) = held.swap_remove(held.len() / 2);
                        manager.give_back_order(start, order).expect("it was allocated");
                    }
                }
                held.into_iter().for_each(|(start, order)| {
                    manager.give_back_order(start, order).expect("it was allocated")
                });
            };
            scope.spawn(move || manager.platform().run_on(cpu, traffic));
        }
        for _ in 0..50 {
            for zone in manager.views() {
                let mut next = zone.segments().flat_map(|segment| segment.start.0..segment.end().0);
                zone.for_each_block_run(&mut |run| {
                    assert!(run.blocks != 0 && run.what != BlockUse::Unknown);
                    for block in run.start.0..run.start.0 + run.blocks {
                        assert_eq!(next.next(), Some(block));
                    }
                });
                assert_eq!(next.next(), None);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    manager.verify().expect("all is well");
}
