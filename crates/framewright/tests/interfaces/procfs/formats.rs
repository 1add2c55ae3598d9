//! Control files against Linux's formats: a parser that reads this machine's own files also reads
//! ours, and the numbers are the manager's.

use crate::common::{Fake, bring_up, bring_up_described, gib, mib, order};
use framewright::procfs::{FileError, FileSystem, Kind};
use framewright::units::PfnRange;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::zone::ZoneKind;
use framewright::{Request, procfs};
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeMap;

pub(super) fn read(manager: &Fake, path: &str) -> String {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table])
        .read(path, &mut text)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    text
}

/// Returns the file of the machine that runs the test, if this user may read it.
fn of_this_machine(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().filter(|text| !text.is_empty())
}

fn two_nodes() -> Fake {
    let builder = FakeMachine::builder().ram(mib(0, 3072)).ram(gib(4, 6)).cpus(4);
    let builder = builder.node(mib(0, 3072), 0).node(gib(4, 6), 1);
    bring_up(builder.build())
}

/// Returns the rest of `text` after `head`.
fn after<'a>(text: &'a str, head: &str) -> &'a str {
    text.strip_prefix(head)
        .unwrap_or_else(|| panic!("{head:?} is not at the beginning of {text:?}"))
}

/// Parses numbers in columns of at least `width`, each followed by a blank, and nothing else.
fn columns(text: &str, width: usize) -> Vec<u64> {
    let mut rest = text;
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(' ');
        let (number, tail) = digits
            .split_once(' ')
            .unwrap_or_else(|| panic!("no blank behind the last column: {text:?}"));
        let (sign, number) = number.strip_prefix('>').map_or((0, number), |number| (1, number));
        let column = rest.len() - tail.len() - 1 - sign;
        assert!(
            column == width || column > width && rest.len() == digits.len(),
            "{width} columns: {text:?}"
        );
        numbers.push(number.parse().unwrap_or_else(|_| panic!("{number:?}: {text:?}")));
        rest = tail;
    }
    numbers
}

/// Parses the zones of `/proc/buddyinfo` with their counts.
pub(super) fn parse_buddyinfo(text: &str) -> BTreeMap<(u64, String), Vec<u64>> {
    text.lines()
        .map(|line| {
            let (node, rest) = after(line, "Node ").split_once(", zone ").expect("a zone");
            let (name, counts) = rest.split_at(9);
            assert_eq!(name.len(), 9);
            (
                (node.parse().expect("a number"), after(name, "").trim().to_owned()),
                columns(counts, 6),
            )
        })
        .collect()
}

/// One file of `/proc/pagetypeinfo`: free runs by node, zone and type, and blocks by node and zone.
#[derive(Default)]
pub(super) struct PageTypes {
    pub(super) runs: BTreeMap<(u64, String, String), Vec<u64>>,
    pub(super) blocks: BTreeMap<(u64, String), Vec<u64>>,
    types: Vec<String>,
}

pub(super) fn parse_pagetypeinfo(text: &str) -> PageTypes {
    let mut found = PageTypes::default();
    let mut lines = text.lines().peekable();
    while lines.peek().is_some() {
        let order = after(lines.next().expect("a line"), "Page block order: ");
        let pages = after(lines.next().expect("a line"), "Pages per block:  ");
        assert_eq!(
            1 << order.parse::<u32>().expect("a number"),
            pages.parse::<u64>().expect("a number")
        );
        assert_eq!(lines.next(), Some(""));
        let heading = lines.next().expect("a heading");
        let (title, orders) = heading.split_at(44);
        assert_eq!(title.trim_end(), "Free pages count per migrate type at order");
        let orders = columns(orders, 6);
        assert!(
            orders.iter().zip(0..).all(|(&order, expected)| order == expected)
                && orders.len() >= 11
        );
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            let rest = after(line, "Node ");
            let (node, rest) = rest.split_at(4);
            let (zone, rest) = after(rest, ", zone ").split_at(8);
            let (kind, counts) = after(rest, ", type ").split_at(12);
            let counts = columns(after(counts, " "), 6);
            assert_eq!(counts.len(), orders.len());
            let [zone, kind] = [zone, kind].map(|name| name.trim_start().to_owned());
            found.runs.insert((node.trim_start().parse().expect("a number"), zone, kind), counts);
        }
        let (title, types) = lines.next().expect("a heading").split_at(23);
        assert_eq!(title.trim_end(), "Number of blocks type");
        found.types = types.split_whitespace().map(str::to_owned).collect();
        assert!(types.len() == 13 * found.types.len());
        while let Some(line) = lines.next_if(|line| line.starts_with("Node ")) {
            let (node, rest) = after(line, "Node ").split_once(", zone ").expect("a zone");
            let (zone, counts) = rest.split_at(9);
            let counts = columns(counts, 12);
            assert_eq!(counts.len(), found.types.len());
            found.blocks.insert((node.parse().expect("a number"), zone.trim().to_owned()), counts);
        }
    }
    found
}

/// The values of one zone in `/proc/zoneinfo`.
pub(super) fn parse_zoneinfo(text: &str) -> BTreeMap<(u64, String), BTreeMap<String, u64>> {
    let mut zones = BTreeMap::new();
    let mut zone: Option<&mut BTreeMap<String, u64>> = None;
    let mut cpu = None;
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("Node ") {
            let (node, name) = head.split_once(", zone ").expect("a zone");
            assert_eq!(name.len(), 8, "{line:?}");
            let key = (node.parse().expect("a number"), name.trim_start().to_owned());
            zone = Some(zones.entry(key).or_default());
            cpu = None;
            continue;
        }
        let zone = zone.as_mut().expect("a zone comes first");
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if matches!((indent, content), (2, "per-node stats" | "pagesets")) {
            continue;
        }
        if let Some(list) = content.strip_prefix("protection: (") {
            assert_eq!(indent, 8);
            let numbers = list
                .strip_suffix(')')
                .expect("closed")
                .split(", ")
                .map(|number| number.parse::<u64>());
            for (kind, number) in numbers.enumerate() {
                zone.insert(format!("protection {kind}"), number.expect("a number"));
            }
            continue;
        }
        let (name, number) = content.rsplit_once(' ').expect("a number at the end");
        let (name, number) =
            (name.trim_end(), number.parse::<u64>().unwrap_or_else(|_| panic!("{line:?}")));
        let width = line.len() - number.to_string().len();
        match indent {
            // `pages free` and the values under it are in one column.
            2 if name == "pages free" => assert_eq!(width, 17, "{line:?}"),
            2 if name == "vm stats threshold:" => continue,
            2 => assert_eq!(width, 23, "{line:?}"),
            4 => {
                cpu = Some(number);
                continue;
            }
            6 => assert!(width == 19 || name.len() > 12 && width == 7 + name.len(), "{line:?}"),
            8 => assert_eq!(width, 17, "{line:?}"),
            14 => assert_eq!(width, 24, "{line:?}"),
            _ => panic!("{line:?}"),
        }
        let key = cpu
            .filter(|_| indent == 14)
            .map_or_else(|| name.to_owned(), |cpu| format!("cpu {cpu} {name}"));
        assert_eq!(zone.insert(key, number), None, "{line:?}");
    }
    zones
}

/// Names and numbers of `/proc/vmstat`.
pub(super) fn parse_vmstat(text: &str) -> BTreeMap<String, u64> {
    let is_name =
        |name: &str| name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        assert!(is_name(name), "{line:?}");
        assert_eq!(
            found.insert(name.to_owned(), number.parse().expect("a number")),
            None,
            "{line:?}"
        );
    }
    found
}

/// Names and KiB of a `meminfo`, whose lines begin with `prefix`.
pub(super) fn parse_meminfo(text: &str, prefix: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let line = after(line, prefix);
        let (name, rest) = line.split_once(':').expect("a colon");
        // The huge pages of a pool are a count, not a size.
        if name.starts_with("HugePages_") {
            continue;
        }
        let number = rest.strip_suffix(" kB").unwrap_or_else(|| panic!("{line:?}"));
        assert!(name.len() + 1 + number.len() == 24 || number.len() >= 12, "{line:?}");
        found.insert(name.to_owned(), number.trim_start().parse().expect("a number"));
    }
    found
}

/// Returns the pages of a row of counts.
pub(super) fn pages(counts: &[u64]) -> u64 {
    counts.iter().enumerate().map(|(order, count)| count << order).sum()
}

fn name(kind: ZoneKind) -> String {
    kind.name().to_owned()
}

#[test]
fn what_reads_linuxs_files_reads_ours() {
    let manager = two_nodes();
    let held = manager.allocate(&Request::pages(3)).expect("memory");
    for (path, parse) in [
        ("/proc/buddyinfo", (|text| parse_buddyinfo(text).len()) as fn(&str) -> usize),
        ("/proc/pagetypeinfo", |text| parse_pagetypeinfo(text).blocks.len()),
        ("/proc/zoneinfo", |text| parse_zoneinfo(text).len()),
        ("/proc/vmstat", |text| parse_vmstat(text).len()),
        ("/proc/meminfo", |text| parse_meminfo(text, "").len()),
    ] {
        // The parser is as strict as Linux's own file allows, so that passing it means something.
        if let Some(theirs) = of_this_machine(path) {
            assert!(parse(&theirs) > 0, "{path}");
        }
        assert!(parse(&read(&manager, path)) > 0, "{path}");
    }
    let theirs = of_this_machine("/sys/devices/system/node/node0/meminfo").unwrap_or_default();
    parse_meminfo(&theirs, "Node 0 ");
    parse_meminfo(&read(&manager, "/sys/devices/system/node/node0/meminfo"), "Node 0 ");
    manager.give_back(held).expect("held");
}

#[test]
fn buddyinfo_is_this_text() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 64)).ram(gib(4, 7)).build());
    if crate::common::is_careful() {
        return;
    }
    let text = read(&manager, "/proc/buddyinfo");
    let free = |zone: usize| {
        manager
            .views()
            .nth(zone)
            .expect("a zone")
            .free_areas()
            .by_order()
            .map(|runs| runs.to_string())
    };
    let row = |zone| free(zone).iter().map(|runs| format!("{runs:>6} ")).collect::<String>();
    let zones = [("DMA", 0), ("DMA32", 1), ("Normal", 2)];
    let expected: String =
        zones.map(|(zone, index)| format!("Node 0, zone {zone:>8} {}\n", row(index))).concat();
    assert_eq!(text, expected);
    // The tables are in the third GiB.
    assert!(text.ends_with("     2 \n"), "{text}");
}

#[test]
fn small_orders_are_counted_from_the_maps() {
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 5)).build());
    let before =
        parse_buddyinfo(&read(&manager, "/proc/buddyinfo"))[&(0, name(ZoneKind::Normal))].clone();
    let start = PfnRange::new(0x12_0000, 0x12_0200).start;
    let page = manager.allocate_at(start, order(0), MigrateType::Movable).expect("free");
    let counts = &parse_buddyinfo(&read(&manager, "/proc/buddyinfo"))[&(0, name(ZoneKind::Normal))];
    // The page's buddy and the upper halves, up to the run that the page was split from.
    let split =
        (0..counts.len()).find(|&order| counts[order] < before[order]).expect("a run that is gone");
    assert!(split > 9 && counts[split + 1..] == before[split + 1..]);
    for order in 0..split {
        assert_eq!(counts[order], before[order] + 1, "order {order}: {counts:?} {before:?}");
    }
    assert_eq!(pages(counts), manager.totals().free_pages);
    manager.give_back(page).expect("held");
    manager.drain().expect("good frames");
    let after = &parse_buddyinfo(&read(&manager, "/proc/buddyinfo"))[&(0, name(ZoneKind::Normal))];
    assert_eq!(pages(after), pages(&before));
}

/// What both files count has one name.
#[test]
fn counters_of_zoneinfo_are_named_as_in_vmstat() {
    let manager = two_nodes();
    let known = parse_vmstat(&read(&manager, "/proc/vmstat"));
    let zoneinfo = read(&manager, "/proc/zoneinfo");
    let words = zoneinfo.split_whitespace().filter(|word| word.starts_with("nr_"));
    let names: Vec<&str> = words.collect();
    assert!(names.len() >= 7, "{names:?}");
    names.iter().for_each(|&name| assert!(known.contains_key(name), "{name}"));
}

/// Checks all sums that files have in common against the manager's own.
fn check_sums(manager: &Fake) {
    let totals = manager.totals();
    let buddyinfo = parse_buddyinfo(&read(manager, "/proc/buddyinfo"));
    let types = parse_pagetypeinfo(&read(manager, "/proc/pagetypeinfo"));
    let zoneinfo = parse_zoneinfo(&read(manager, "/proc/zoneinfo"));
    assert_eq!(buddyinfo.len(), manager.views().count());
    assert_eq!(zoneinfo.len(), manager.nodes().len() * (ZoneKind::COUNT + 1));
    for zone in manager.views() {
        let key = (zone.id().node.index() as u64, name(zone.id().kind));
        let free = zone.free_pages() + zone.isolated_pages();
        assert_eq!(pages(&buddyinfo[&key]), free, "{}", zone.id());
        let mut of_types = vec![0; buddyinfo[&key].len()];
        let shown = MigrateType::ALL.into_iter().filter(|&kind| kind != MigrateType::MovableOnly);
        for kind in shown {
            let runs = &types.runs[&(key.0, key.1.clone(), kind.name().to_owned())];
            assert_eq!(
                pages(runs) == 0 || kind != MigrateType::Isolate,
                zone.isolated_pages() == 0 || kind != MigrateType::Isolate
            );
            of_types.iter_mut().zip(runs).for_each(|(sum, runs)| *sum += runs);
        }
        assert_eq!(of_types, buddyinfo[&key]);
        let blocks: u64 = zone.segments().map(|segment| u64::from(segment.blocks)).sum();
        assert!(types.blocks[&key].iter().sum::<u64>() <= blocks);
        assert!(types.blocks[&key].iter().sum::<u64>() * 512 >= zone.managed_pages());
        let info = &zoneinfo[&key];
        let marks = zone.watermarks();
        for (name, value) in [
            ("pages free", zone.free_pages()),
            ("nr_free_pages", zone.free_pages()),
            ("min", marks.min_pages),
            ("low", marks.low_pages),
            ("high", marks.high_pages),
            ("promo", marks.promo_pages),
            ("spanned", zone.span().pages()),
            ("present", zone.present_pages()),
            ("managed", zone.managed_pages()),
            ("protection 2", zone.lowmem_reserve()[2]),
            ("start_pfn:", zone.span().start.0),
        ] {
            assert_eq!(info[name], value, "{name} of {}", zone.id());
        }
    }
    let cached: u64 = zoneinfo
        .values()
        .flatten()
        .filter(|(name, _)| name.ends_with("count:"))
        .map(|(_, pages)| pages)
        .sum();
    assert_eq!(cached, manager.caches().pages());
    let vmstat = parse_vmstat(&read(manager, "/proc/vmstat"));
    let meminfo = parse_meminfo(&read(manager, "/proc/meminfo"), "");
    assert_eq!(vmstat["nr_free_pages"], totals.free_pages);
    assert_eq!(vmstat["nr_pcp_pages"], manager.caches().pages());
    assert_eq!(vmstat["nr_isolated_pages"], totals.isolated_pages);
    assert_eq!(vmstat["nr_memmap_pages"], totals.descriptor_pages);
    assert!(vmstat["nr_free_pages_blocks"] <= totals.free_pages);
    assert_eq!(
        (meminfo["MemTotal"], meminfo["MemFree"]),
        (4 * totals.managed_pages, 4 * totals.free_pages)
    );
    assert!(meminfo["MemAvailable"] <= 4 * (totals.free_pages + manager.caches().pages()));
    let mut of_nodes = BTreeMap::<String, u64>::new();
    for node in manager.nodes() {
        let folder = format!("/sys/devices/system/node/node{}", node.id);
        for (name, value) in parse_meminfo(
            &read(manager, &format!("{folder}/meminfo")),
            &format!("Node {} ", node.id),
        ) {
            *of_nodes.entry(name).or_default() += value;
        }
        for (name, value) in parse_vmstat(&read(manager, &format!("{folder}/vmstat"))) {
            *of_nodes.entry(name).or_default() += value;
        }
    }
    for name in ["MemTotal", "MemFree", "MemMap", "Isolated"] {
        assert_eq!(of_nodes[name], meminfo[name], "{name}");
    }
    for name in
        ["nr_free_pages", "nr_free_pages_blocks", "block_split", "block_merge", "pcp_refill_pages"]
    {
        assert_eq!(of_nodes[name], vmstat[name], "{name}");
    }
}

fn random_traffic(manager: &Fake, isolate: Option<BlockRange>) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let mut held: Vec<PfnRange> = Vec::new();
    for round in 0..12 {
        for _ in 0..120 {
            if below(5) < 3 || held.is_empty() {
                let migrate_type = MigrateType::ALL[usize::try_from(below(3)).expect("small")];
                let of = order(u8::try_from(below(11)).expect("small"));
                if below(2) == 0 {
                    let taken = manager.allocate_order(of, migrate_type);
                    held.extend(taken.map(|start| PfnRange { start, end: start.add(of.pages()) }));
                } else {
                    held.extend(manager.allocate(&Request { migrate_type, ..Request::new(of) }));
                }
            } else {
                let range =
                    held.swap_remove(usize::try_from(below(held.len() as u64)).expect("small"));
                manager.give_back(range).expect("held");
            }
        }
        match (isolate, round) {
            (Some(range), 4) => drop(manager.isolation().isolate(range).expect("not isolated")),
            (Some(range), 9) => manager.isolation().unisolate(range).expect("isolated"),
            _ => {}
        }
        check_sums(manager);
    }
    let vmstat = parse_vmstat(&read(manager, "/proc/vmstat"));
    for name in ["pcp_refill", "pcp_refill_pages", "block_split"] {
        assert!(vmstat[name] > 0, "{name}: {vmstat:?}");
    }
    for range in held {
        manager.give_back(range).expect("held");
    }
    let drains = vmstat["pcp_drain"];
    let table = manager.files();
    FileSystem::new(&[&table])
        .write("/proc/sys/vm/compact_memory", "1\n")
        .expect("memory is compacted");
    check_sums(manager);
    let vmstat = parse_vmstat(&read(manager, "/proc/vmstat"));
    assert!(
        vmstat["pcp_drain"] > drains
            && vmstat["pcp_return_pages"] > 0
            && vmstat["nr_pcp_pages"] == 0
    );
    assert!(vmstat["block_merge"] > 0);
}

#[test]
fn sums_agree_under_random_traffic() {
    random_traffic(&two_nodes(), None);
}

#[test]
fn sums_agree_with_descriptors_inside_blocks() {
    random_traffic(&bring_up_described(FakeMachine::builder().ram(mib(0, 512)).build()), None);
}

#[test]
fn sums_agree_while_blocks_are_isolated() {
    let range = BlockRange { start: BlockNumber(0x820), end: BlockNumber(0x8a0) };
    random_traffic(&bring_up(FakeMachine::builder().ram(gib(4, 5)).build()), Some(range));
}

#[test]
fn stalls_are_counted_where_memory_is_short() {
    let manager = bring_up(FakeMachine::builder().ram(mib(0, 32)).build());
    let request = Request { zone: ZoneKind::Dma32, ..Request::new(order(18)) };
    assert!(manager.allocate(&request).is_err() && manager.allocate(&request).is_err());
    let vmstat = parse_vmstat(&read(&manager, "/proc/vmstat"));
    assert_eq!(
        (vmstat["allocstall_dma32"], vmstat["allocstall_normal"], vmstat["alloc_fail"]),
        (2, 0, 2)
    );
}

#[test]
fn nodes_have_their_files() {
    let manager = two_nodes();
    assert_eq!(read(&manager, "/sys/devices/system/node/online"), "0-1\n");
    assert_eq!(read(&manager, "/sys/devices/system/node/has_memory"), "0-1\n");
    let lines = |name| {
        (0..2)
            .map(|node| read(&manager, &format!("/sys/devices/system/node/node{node}/{name}")))
            .collect::<Vec<_>>()
    };
    let cpus = |node| {
        (0..4)
            .filter(|&cpu| manager.platform().node_of_cpu(cpu).index() == node)
            .collect::<Vec<_>>()
    };
    for (node, list) in lines("cpulist").iter().enumerate() {
        let mut expected = String::new();
        procfs::write_cpu_list(&mut expected, cpus(node).into_iter()).expect("text");
        assert_eq!(*list, expected);
    }
    for (node, line) in lines("distance").iter().enumerate() {
        let distances: Vec<u8> =
            line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        assert_eq!(distances, manager.nodes()[node].distances);
        assert_eq!((distances.len(), distances[node]), (2, 10));
    }
}

#[test]
fn folders_are_listed_in_order() {
    let manager = two_nodes();
    let table = manager.files();
    let sources: [&dyn procfs::Source; 1] = [&table];
    let files = FileSystem::new(&sources);
    let list = |path: &str| {
        let mut names = Vec::new();
        files.list(path, &mut |name, kind| names.push((name.to_owned(), kind))).map(|()| names)
    };
    let folder = |name: &str| (name.to_owned(), Kind::Folder);
    assert_eq!(list("/"), Ok(vec![folder("proc"), folder("sys")]));
    let nodes = list("/sys/devices/system/node/").expect("a folder");
    let folders: Vec<_> = nodes.iter().filter(|(_, kind)| *kind == Kind::Folder).collect();
    assert_eq!(folders, [&folder("node0"), &folder("node1")]);
    assert!(nodes.is_sorted_by(|one, next| one.0 < next.0));
    let vm = list("/proc/sys/vm").expect("a folder");
    assert_eq!(
        vm[0],
        ("compact_memory".to_owned(), Kind::File { readable: false, writable: true })
    );
    assert_eq!(list("/proc/vmstat").expect("a file")[0].0, "vmstat");
    assert_eq!(list("/nothing"), Err(FileError::NotFound));
    // Every listed file exists.
    let mut folders = vec!["/".to_owned()];
    let mut read_files = 0;
    while let Some(path) = folders.pop() {
        for (name, kind) in list(&path).expect("a folder") {
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            assert_eq!(files.kind(&path), Ok(kind));
            match kind {
                Kind::Folder => folders.push(path),
                Kind::File { readable: true, .. } => {
                    assert!(read(&manager, &path).ends_with('\n'), "{path}");
                    read_files += 1;
                }
                Kind::File { .. } => {
                    assert_eq!(files.read(&path, &mut String::new()), Err(FileError::NotPermitted))
                }
            }
        }
    }
    assert!(read_files > 25);
}
