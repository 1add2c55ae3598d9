//! Reserve areas and grades by commands: areas are made and listed, runs are allocated from them
//! and return to them, 1 GiB pages come out of them, and a refused command changes nothing.

use crate::common::Bench;
use framewright::manager::MOST_AREAS;

/// The number of 4 KiB pages in 1 GiB.
const GIB_PAGES: u64 = 1 << 18;
/// Of a name's column.
const COUNTS: usize = 7;

/// Returns what `cma` lists for an area: pages, pages in use, free, success, failed, released.
fn counts(lines: &[String], name: &str) -> [u64; 6] {
    let line = lines.iter().rfind(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {lines:?}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let last = words.last_chunk::<6>().filter(|_| words.len() > COUNTS).expect("all columns");
    last.map(|word| word.parse().expect("a number"))
}

#[test]
fn areas_are_made_listed_and_used() {
    let bench = Bench::new("", [128, 64]);
    assert_eq!(bench.says("cma"), ["there are no areas; `cma create` makes one"]);
    let out = bench.says("cma create camera 8M@0x2400000; cma create screen 0x3000..0x3400; cma");
    assert_eq!(out[..2], ["camera: 8 MiB at 0x2400000", "screen: 4 MiB at 0x3000000"]);
    let head: Vec<&str> = out[2].split_whitespace().collect();
    assert_eq!(head.join(" "), "area from to size pages in use free success failed released");
    assert_eq!(out[2].len(), out[3].len());
    assert!(
        out[3].starts_with("camera           0000000002400000 0000000002c00000      8 MiB "),
        "{}",
        out[3]
    );
    assert_eq!(counts(&out, "camera"), [2048, 0, 2048, 0, 0, 0]);

    let out = bench.says(
        "cma alloc camera 3M; cma alloc camera pages=5 align=9; held; cma; free 1; cma; free \
         0x2800000; cma; cat /sys/kernel/mm/cma/camera/available_pages",
    );
    assert!(out[0].starts_with("1: 768 pages, 3 MiB, at 0x2400000, 0 pages moved in "), "{out:?}");
    assert!(out[1].starts_with("2: 5 pages, 20 KiB, at 0x2800000, 0 pages moved in "), "{out:?}");
    assert_eq!(
        out[2..4],
        [
            "1: 1 run, 768 pages, 3 MiB, first at 0x2400000",
            "2: 1 run, 5 pages, 20 KiB, first at 0x2800000"
        ]
    );
    assert_eq!(counts(&out[4..7], "camera"), [2048, 773, 1275, 773, 0, 0]);
    assert_eq!(counts(&out[8..11], "camera"), [2048, 5, 2043, 773, 0, 768]);
    assert_eq!(counts(&out[12..15], "camera"), [2048, 0, 2048, 773, 0, 773]);
    assert_eq!(out[15], "2048");
    // Two adjacent runs of one size are one entry; each is freed on its own.
    let out = bench.says(
        "cma alloc screen 64K; cma alloc screen 64K; free 0x3010000; cma alloc screen 64K; free 1; \
         cma",
    );
    assert!(out[3].starts_with("2: 16 pages, 64 KiB, at 0x3010000, "), "{out:?}");
    assert_eq!(counts(&out, "screen"), [1024, 16, 1008, 48, 0, 32]);
    // These runs are not part of an area, whose counters do not change.
    let out = bench.says("contig 64K@0x3000000; alloc 3 at=0x3010000; cma; free all; cma");
    assert_eq!(counts(&out, "screen"), [1024, 0, 1024, 48, 0, 48]);
}

#[test]
fn what_is_lent_is_moved_and_what_cannot_be_is_passed_by() {
    let bench = Bench::new("cma=16M", [128, 64]);
    let out = bench.says(
        "cma; movable fill 75; cma alloc reserved 12M; movable check; cma; free 1; cma alloc \
         reserved 16M; movable check; movable free",
    );
    assert_eq!(counts(&out[..2], "reserved"), [4096, 0, 4096, 0, 0, 0]);
    assert!(out[3].starts_with("1: 3072 pages, 12 MiB, at 0x"), "{out:?}");
    assert!(!out[3].contains(", 0 pages moved in "), "{out:?}");
    assert_eq!(counts(&out[5..7], "reserved"), [4096, 3072, 1024, 3072, 0, 0]);
    for line in [4, 9] {
        assert!(out[line].ends_with("all intact"), "{out:?}");
    }
    let (status, _, errors) = bench
        .run("movable fill 75; movable busy on; cma alloc reserved 4M; cma alloc reserved 16M");
    assert!(status == 1 && errors.contains("cma: no run of 4096 pages could be vacated; "));
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// Pinned pages stay for long, so they may not stay in memory that is kept for movable pages.
#[test]
fn what_is_pinned_leaves_areas_and_graded_memory_first() {
    let bench = Bench::new("cma=16M kernelcore=100M", [128, 64]);
    let out = bench.says(
        "movable fill 75; movable pin 5000; movable; movable check; cma alloc reserved 16M; \
         movable pin 5000; movable check; grade",
    );
    let (count, moved) = out[1].split_once(" handles pinned, ").expect("both");
    let (moved, rest) = moved.split_once(' ').expect("a number");
    assert_eq!((count, rest), ("5000", "of them moved out of movable-only memory first"));
    let moved: u64 = moved.parse().expect("a number");
    assert!((1000..5000).contains(&moved), "{out:?}");
    assert!(out[2].contains(", 5000 of them pinned; "), "{out:?}");
    assert!(out[4].starts_with("1: 4096 pages, 16 MiB, at 0x"), "{out:?}");
    // These are the handles pinned before; none moves, as all lie where they may stay.
    assert_eq!(out[5], "5000 handles pinned");
    assert!(out[3].ends_with(": all intact") && out[6] == out[3], "{out:?}");
    // If there is no other memory they are not pinned.
    let (status, out, errors) = bench.run("movable fill 90; movable pin 30000; movable");
    let left = errors.split_once(" could not be moved first; handle ").expect("why").0;
    let left: u64 = left
        .rsplit_once(": ")
        .expect("a command")
        .1
        .split(' ')
        .next()
        .map_or(0, |left| left.parse().expect("a number"));
    assert!(status == 0 && errors.contains("there is no memory to move it to"), "{errors}");
    let pinned = 30_000 - left;
    assert!(left != 0 && out.contains(&format!("\n{pinned} handles pinned, ")), "{out}");
    assert!(out.contains(&format!(", {pinned} of them pinned; ")), "{out}");
}

#[test]
fn wrong_areas_say_why_and_nothing_is_held() {
    let bench = Bench::new("cma=8M", [128, 64]);
    bench.says("cma create camera 4M@0x2400000");
    for (text, status, expected) in [
        ("cma nonsense", 2, "cma: nonsense: expected alloc, create or no argument"),
        ("cma alloc", 2, "which area, and how much?"),
        ("cma alloc camera", 2, "which area, and how much?"),
        ("cma alloc nobody 1M", 1, "cma: there is no area nobody; `cma` lists areas"),
        ("cma alloc '' 1M", 1, "there is no area ; `cma`"),
        ("cma alloc camera x", 2, "not a number"),
        ("cma alloc camera 0", 1, "cannot allocate 0 pages"),
        ("cma alloc camera pages=0", 1, "cannot allocate 0 pages"),
        ("cma alloc camera pages=x", 2, "pages must be a number"),
        ("cma alloc camera count=2", 2, "not a number"),
        ("cma alloc camera 1M align=19", 2, "align must be 0 to 18"),
        ("cma alloc camera 1M within", 2, "cma: within how many milliseconds?"),
        ("cma alloc camera 1M within x", 2, "a time in milliseconds must be a number"),
        (
            "cma alloc camera 1M within 5 align=0",
            2,
            "within: only align=ORDER and then within MS may follow",
        ),
        ("cma alloc camera 1M node=0", 2, "node=0: only align=ORDER and then within MS may follow"),
        (
            "cma alloc camera 1M align=0 align=1",
            2,
            "only align=ORDER and then within MS may follow",
        ),
        ("cma alloc camera 5M", 1, "cma: no run of 1280 pages could be vacated; 0 pages moved in"),
        ("cma alloc camera 4M; cma alloc camera 4K", 1, "no run of 1 page could be vacated; 0"),
        ("contig 4K below=0x1000", 1, "no zone has a run of 1 page that can all"),
        ("cma alloc camera 1M align=18", 1, "no run of 256 pages could be vacated"),
        ("cma alloc camera pages=18446744073709551615", 1, "no run of 18446744073709551615 pages"),
        ("cma create", 2, "cma: expected a name and SIZE@ADDRESS or FRAME..FRAME"),
        ("cma create one", 2, "expected a name"),
        ("cma create one 2M@0x2800000 node=0", 2, "expected a name"),
        ("cma create a/b 2M@0x2800000", 2, "\"a/b\": a name must be 1 to 16 printable characters"),
        ("cma create '' 2M@0x2800000", 2, "\"\": a name must be 1 to 16"),
        ("cma create seventeen-letters 2M@0x2800000", 2, "a name must be 1 to 16"),
        ("cma create camera 2M@0x2800000", 1, "cma: area camera exists already; no area was"),
        ("cma create one 4M@0x2600000", 1, "part of it belongs to area 1; no area was made"),
        ("cma create one 2M", 2, "expected SIZE@ADDRESS or FRAME..FRAME, not \"2M\""),
        ("cma create one 0@0x2800000", 2, "at least one page"),
        ("cma create one 0x2800..0x2800", 2, "at least one page"),
        ("cma create one 1M@0x2800000", 2, "whole blocks of 2 MiB"),
        ("cma create one 2M@0x2900000", 2, "whole blocks of 2 MiB"),
        ("cma create one 2M@0x2800001", 2, "must be a multiple"),
        ("cma create one 4M@0x7e00000", 1, "cma: the blocks do not lie in one run of one zone; no"),
        ("cma create one 2M@0x20000000", 1, "cma: no memory is online there; no area was made"),
        ("cma create one 1T@0x2800000", 1, "the blocks do not lie in one run of one zone"),
        ("cma create one 99999T@0x2800000", 2, "ends beyond all addresses"),
        (
            "alloc 0 at=0x2801000 type=Unmovable; cma create one 2M@0x2800000",
            1,
            "cma: the block at pfn 0x2800 holds unmovable memory; no area was made",
        ),
    ] {
        bench.complains(text, status, expected);
    }
    let out = bench.says("cma");
    assert_eq!(out.len(), 3, "{out:?}");
    // Until there is room for no more areas.
    for number in 2..MOST_AREAS {
        let start = 0x280_0000 + ((number as u64) << 21);
        bench.says(&format!("cma create area{number} 2M@{start:#x}"));
    }
    bench.complains(
        "cma create one 2M@0x2800000",
        1,
        "there are 20 areas, and no more are possible",
    );
    let full = bench.says("cma");
    assert_eq!(full.len(), 1 + MOST_AREAS, "{full:?}");
    // This error is the shell's: it has eight places for runs.
    let many = "cma alloc area2 4K; cma alloc area3 4K; cma alloc area4 4K; cma alloc area5 4K; \
                cma alloc area6 4K; cma alloc area7 4K; cma alloc area8 4K; cma alloc area9 4K; \
                cma alloc camera 4K";
    bench.complains(many, 1, "cma: the shell has no room to record more");
}

#[test]
fn the_command_lines_areas_that_were_not_made_are_told() {
    let bench = Bench::new("cma=8M numa_cma=1:1G", [128, 64]);
    let out = bench.says("cma");
    assert!(out.len() == 3 && out[1].starts_with("reserved "), "{out:?}");
    assert_eq!(out[2], "1 GiB requested on the command line could not be set aside");
}

#[test]
fn gigantic_pages_come_out_of_areas_and_go_back() {
    let bench = Bench::new("hugetlb_cma=2G", [2048, 2048]);
    let out = bench.says("cma");
    let unused = [GIB_PAGES, 0, GIB_PAGES, 0, 0, 0];
    assert_eq!([counts(&out, "hugetlb0"), counts(&out, "hugetlb1")], [unused, unused]);
    let out = bench.says(
        "resize 1G 1; cma; resize 1G 2; cma; cat /sys/kernel/mm/cma/hugetlb1/available_pages; \
         hugetlb 1G 2; resize 1G 0; cma",
    );
    let (one, taken) = (&out[..4], [GIB_PAGES, GIB_PAGES, 0, GIB_PAGES, 0, 0]);
    assert!(out[0].starts_with("1.00 GiB: 1 page to stay, 0 surplus, "), "{out:?}");
    assert_eq!([counts(one, "hugetlb0"), counts(one, "hugetlb1")], [taken, unused]);
    let two = &out[4..8];
    assert!(two[0].starts_with("1.00 GiB: 2 pages to stay, 0 surplus, "), "{out:?}");
    assert_eq!([counts(two, "hugetlb0"), counts(two, "hugetlb1")], [taken, taken]);
    assert!(out[8] == "0" && out[9].starts_with("2 pages of 1.00 GiB: each 4 KiB"), "{out:?}");
    assert!(out[10].starts_with("1.00 GiB: 0 pages to stay, 0 surplus, "), "{out:?}");
    let back = [GIB_PAGES, 0, GIB_PAGES, GIB_PAGES, 0, GIB_PAGES];
    assert_eq!([counts(&out, "hugetlb0"), counts(&out, "hugetlb1")], [back, back]);
}

#[test]
fn gigantic_pages_come_out_of_what_is_lent_and_nowhere_else() {
    let bench = Bench::new("hugetlb_cma=0:1G hugetlb_cma_only=on", [2048, 64]);
    let out = bench.says(
        "movable fill 30 9,0; resize 1G 3; cma; movable check; resize 1G 0; cma; movable check; \
         movable free",
    );
    assert!(out[1].starts_with("1.00 GiB: 1 page to stay, 0 surplus, "), "{out:?}");
    assert_eq!(counts(&out[2..4], "hugetlb0"), [GIB_PAGES, GIB_PAGES, 0, GIB_PAGES, 0, 0]);
    assert!(out[5].starts_with("1.00 GiB: 0 pages to stay, 0 surplus, "), "{out:?}");
    assert_eq!(counts(&out[6..8], "hugetlb0"), [GIB_PAGES, 0, GIB_PAGES, GIB_PAGES, 0, GIB_PAGES]);
    for line in [4, 8] {
        assert!(out[line].ends_with("all intact"), "{out:?}");
    }
    // A page of the area with another owner blocks the allocation of the whole area.
    let out = bench.says(
        "cma alloc hugetlb0 4K; resize 1G 1; cma; free 1; resize 1G 1 node 0; cma; resize 1G 0 \
         node 0; cma",
    );
    assert!(out[1].starts_with("1.00 GiB: 0 pages to stay, 0 surplus, "), "{out:?}");
    let begun = GIB_PAGES;
    assert_eq!(counts(&out[2..4], "hugetlb0"), [GIB_PAGES, 1, GIB_PAGES - 1, begun + 1, 0, begun]);
    assert!(out[5].starts_with("1.00 GiB: 1 page to stay, 0 surplus, "), "{out:?}");
    let taken = [GIB_PAGES, GIB_PAGES, 0, 2 * begun + 1, 0, begun + 1];
    assert_eq!(counts(&out[6..8], "hugetlb0"), taken);
    let back = [GIB_PAGES, 0, GIB_PAGES, 2 * begun + 1, 0, 2 * begun + 1];
    assert_eq!(counts(&out, "hugetlb0"), back);
}

#[test]
fn blocks_have_the_grades_that_they_are_given() {
    let bench = Bench::new("", [128, 64]);
    let whole = bench.says("grade");
    let head = "from             to                     size node grade";
    let all = [
        head,
        "0000000000000000 0000000008000000    128 MiB    0 any",
        "0000000100000000 0000000104000000     64 MiB    1 any",
    ];
    assert_eq!(whole, all);
    let out = bench.says(
        "grade 8M@0x2400000 movable; grade 0x2800..0x2a00 removable; grade; grade 4M@0x2600000; \
         cat /proc/zoneinfo",
    );
    assert_eq!(out[0], "4 blocks, 8 MiB, at 0x2400000: movable");
    assert_eq!(out[1], "1 block, 2 MiB, at 0x2800000: removable");
    assert_eq!(
        out[2..8],
        [
            head,
            "0000000000000000 0000000002400000     36 MiB    0 any",
            "0000000002400000 0000000002800000      4 MiB    0 movable",
            "0000000002800000 0000000002a00000      2 MiB    0 removable",
            "0000000002a00000 0000000002c00000      2 MiB    0 movable",
            "0000000002c00000 0000000008000000     84 MiB    0 any",
        ]
    );
    assert_eq!(
        out[9..12],
        [
            head,
            "0000000002600000 0000000002800000      2 MiB    0 movable",
            "0000000002800000 0000000002a00000      2 MiB    0 removable",
        ]
    );
    assert!(out.iter().any(|line| line.contains("zone  Movable")), "{out:?}");
    // Movable pages stay there meanwhile.
    let out = bench.says(
        "movable fill 60; grade 64M@0x2400000 removable; movable check; grade 64M@0x2400000 any; \
         movable check; grade",
    );
    assert!(out[2].ends_with("all intact") && out[4].ends_with("all intact"), "{out:?}");
    assert_eq!(out[5..], all);
}

#[test]
fn wrong_grades_say_why_and_change_nothing() {
    let bench = Bench::new("cma=4M", [128, 64]);
    let before = bench.says("grade");
    let (_, area, _) = bench.manager.moving().area(0).expect("made");
    let area = area.start.address();
    let around = format!("grade 8M@{:#x} any", area - (4 << 20));
    for (text, status, expected) in [
        ("grade x", 2, "grade: expected SIZE@ADDRESS or FRAME..FRAME, not \"x\""),
        ("grade 2M@0x2400000 CMA", 2, "grade: CMA: a grade must be any, movable or removable"),
        ("grade 2M@0x2400000 any any", 2, "grade: any: only a grade may follow the range"),
        ("grade 0@0x2400000 any", 2, "at least one page"),
        ("grade 0x2400..0x2200 any", 2, "at least one page"),
        ("grade 1M@0x2400000 any", 2, "whole blocks of 2 MiB"),
        ("grade 2M@0x2401000 any", 2, "whole blocks of 2 MiB"),
        ("grade 2M@0x2400001 any", 2, "must be a multiple"),
        ("grade 99999T@0x2400000 any", 2, "ends beyond all addresses"),
        ("grade 2M@0x20000000", 1, "grade: no memory is there"),
        ("grade 2M@0x20000000 any", 1, "grade: no memory is online there; no grade was changed"),
        ("grade 4M@0x7e00000 movable", 1, "the blocks do not lie in one run of one zone"),
        ("grade 1T@0x2400000 movable", 1, "the blocks do not lie in one run of one zone"),
        (
            "alloc 0 at=0x2601000 type=Unmovable; grade 4M@0x2400000 movable",
            1,
            "grade: the block at pfn 0x2600 holds unmovable memory; no grade was \
             changed",
        ),
        (&around, 1, "belongs to a reserve area; no grade was changed"),
    ] {
        bench.complains(text, status, expected);
        assert_eq!(bench.says("grade"), before, "{text}");
    }
    bench.says(&format!("grade 4M@{area:#x} removable"));
}
