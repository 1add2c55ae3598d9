//! Movable memory by commands: a table of handles is filled, compacted, vacated and checked, and
//! all memory is free again when the shell ends.

use crate::common::Bench;
use std::sync::atomic::Ordering;

fn bench() -> Bench {
    Bench::new("", [128, 64])
}

/// Returns the number that begins a line or follows a word in it.
fn number(line: &str, behind: &str) -> u64 {
    let from = line.find(behind).map_or(line.len(), |at| at + behind.len());
    let digits: String =
        line[from..].trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {behind:?} in {line:?}"))
}

#[test]
fn memory_is_filled_compacted_and_intact() {
    let bench = bench();
    let out = bench.says(
        "movable fill 70; movable check; compact; movable check; compact; contig 16M node=0; \
         movable check; movable; held; free 1; movable free",
    );
    assert!(out[0].contains(" handles with runs of order 0 hold ") && out[0].ends_with("(70 %)"));
    let handles = number(&out[0], "");
    assert!(
        out[1].starts_with(&format!("{handles} handles, ")) && out[1].ends_with(": all intact")
    );
    // A third of memory is free: 57 MiB.
    let (blocks, moved) = (number(&out[2], ""), number(&out[2], "moved "));
    assert!(out[2].contains(" blocks made whole, moved ") && out[2].contains(" refused in "));
    assert!((20..30).contains(&blocks) && moved > 1000, "{}", out[2]);
    assert!(out[4].starts_with("0 blocks made whole, moved ") || number(&out[4], "") < 3);
    assert!(out[5].starts_with("1: 4096 pages, 16 MiB, at 0x"), "{}", out[5]);
    for line in [3, 6] {
        assert_eq!(out[line], out[1]);
    }
    assert!(out[7].starts_with(&format!("{handles} handles hold ")) && out[7].contains(" 0 of "));
    assert!(out[8].starts_with("1: 1 run, 4096 pages, 16 MiB, first at 0x"));
    assert!(out[9] == "freed 16 MiB" && out[10].starts_with("freed "));
}

#[test]
fn memory_is_compacted_in_the_background_as_far_as_the_setting_says() {
    let bench = bench();
    let out = bench.says(
        "movable fill 70; echo 0 > /proc/sys/vm/compaction_proactiveness; compact background 1; \
         echo 60 > /proc/sys/vm/compaction_proactiveness; compact background 1; movable check",
    );
    assert!(out[1].starts_with("0 blocks made whole, moved 0 pages; "), "{}", out[1]);
    let (blocks, moved) = (number(&out[2], ""), number(&out[2], "moved "));
    assert!(blocks > 5 && moved > 500, "{}", out[2]);
    // From nearly everything to 40 %, except in a small zone that has no block to spare.
    assert!(number(&out[2], "; ") > 80 && number(&out[2], "in pieces, ") <= 50, "{}", out[2]);
    assert!(out[3].ends_with(": all intact"), "{}", out[3]);
}

#[test]
fn larger_runs_move_too_and_a_budget_of_blocks_is_kept() {
    let bench = bench();
    let out = bench.says("movable fill 50 0,0,3,1 seed 7; compact 1 2; movable check");
    assert!(out[0].contains("with runs of order 0,1,3 hold"), "{}", out[0]);
    assert!(out[1].starts_with("2 blocks made whole"), "{}", out[1]);
    assert!(out[2].ends_with("all intact"));
    let again = bench.says("movable fill 50 seed 7; movable fill 60 1; movable check");
    assert!(again[1].ends_with("(60 %)") && again[2].ends_with("all intact"));
}

#[test]
fn vacated_blocks_are_held_and_pins_are_named() {
    let bench = bench();
    let out = bench.says(
        "movable fill 60; vacate 4M@0x2400000; held; movable check; free 1; \
         vacate 0x2800..0x2a00; free all",
    );
    assert!(out[1].starts_with("1: 1024 pages, 4 MiB, at 0x2400000, ") && out[1].contains(" us"));
    assert!(number(&out[1], "0x2400000,") > 200, "{}", out[1]);
    assert!(out[3].ends_with("all intact") && out[4] == "freed 4 MiB");
    assert!(out[5].starts_with("1: 512 pages, 2 MiB, at 0x2800000"));

    let all = bench.says("movable fill 60");
    let pinned = number(&all[0], "");
    let (status, out, errors) = bench.run(&format!(
        "movable fill 60; movable pin {pinned}; movable; vacate 2M@0x2400000; compact; movable \
         check; movable pin 0; vacate 2M@0x2400000"
    ));
    assert_eq!(status, 0, "{errors}");
    assert!(out.contains(&format!(", {pinned} of them pinned;")), "{out}");
    let errors: Vec<&str> = errors.lines().collect();
    let named = errors.iter().filter(|line| line.starts_with("vacate: pfn 0x2"));
    assert_eq!(named.count(), 16, "{errors:?}");
    assert!(errors[0].ends_with(" is pinned"), "{errors:?}");
    let more = number(errors[16], "and ");
    assert_eq!(number(errors[17], "vacate: "), more + 16, "{errors:?}");
    assert!(errors[17].contains(" runs could not be moved, the first: pfn 0x2"), "{errors:?}");
    assert!(errors[17].contains("; moved 0 pages in 0 runs in "), "{errors:?}");
    assert_eq!(errors.len(), 18, "{errors:?}");
    assert!(out.contains("\n0 blocks made whole, moved 0 pages in 0 runs, "), "{out}");
    assert!(out.contains(" of them pinned") && out.contains("\n0 handles pinned\n1: 512 pages"));
}

#[test]
fn a_named_place_is_taken_whatever_is_in_it() {
    let bench = bench();
    let out = bench.says(
        "movable fill 60; contig 3M@0x2401000; movable check; held; free 0x2401000; held; contig \
         0x2401..0x2402; contig 8M@0x2600000; free all; movable check",
    );
    assert!(out[1].starts_with("1: 768 pages, 3 MiB, at 0x2401000, "), "{}", out[1]);
    assert!(
        number(&out[1], "0x2401000,") > 200 && out[1].contains(" pages moved in "),
        "{}",
        out[1]
    );
    assert_eq!(out[3], "1: 1 run, 768 pages, 3 MiB, first at 0x2401000");
    assert!(out[2].ends_with("all intact") && out[4] == "freed 3 MiB");
    assert!(out[5].starts_with("1: 1 page, 4 KiB, at 0x2401000, "), "{}", out[5]);
    assert!(out[6].starts_with("2: 2048 pages, 8 MiB, at 0x2600000, "), "{}", out[6]);
    assert!(out[7] == "freed 8 MiB" && out[8].ends_with("all intact"), "{out:?}");
}

#[test]
fn another_cpu_uses_it_meanwhile() {
    let bench = bench();
    // A run that somebody is in is refused, so that `vacate` could fail here; these go on without.
    let out = bench.says(
        "movable fill 60; movable busy on; compact; contig 4M node=1; movable check; movable busy \
         off; compact",
    );
    let handles = number(&out[0], "");
    for line in [1, 3] {
        assert!(out[line].starts_with("1 CPU used "), "{out:?}");
        assert!(number(&out[line], "used ") >= handles, "{out:?}");
    }
    assert!(number(&out[2], "moved ") > 1000 && out[4].starts_with("1: 1024 pages"), "{out:?}");
    assert!(out[5].ends_with("all intact"), "{out:?}");
    assert!(out.len() == 7 && out[6].contains(" made whole"), "{out:?}");
}

#[test]
fn what_takes_too_long_is_given_up_and_nothing_is_held() {
    let bench = Bench::new("cma=16M", [128, 64]);
    for (text, expected) in [
        ("vacate 4M@0x2400000 within 0", "vacate: out of time after 0 pages were moved; moved 0 "),
        ("contig 3M@0x2401000 within 0", "contig: out of time after 0 pages were moved; 0 pages "),
        ("contig 16M within 0", "contig: no run could be made free: out of time after 0 pages "),
        ("cma alloc reserved 16M within 0", "cma: out of time after 0 pages were moved; 0 pages "),
    ] {
        bench.complains(&format!("movable fill 75; {text}"), 1, expected);
    }
    // The clock advances by a microsecond at each reading, and each run reads it once.
    let (status, _, errors) = bench.run("movable fill 75; vacate 16M@0x2400000 within 1");
    let moved = number(&errors, "out of time after ");
    assert!(status == 1 && (1..1200).contains(&moved), "{errors}");
    // A sufficient limit; and a range without pages to move takes no time.
    let out = bench.says(
        "movable fill 60; vacate 4M@0x2400000 within 100000; free 1; contig 3M@0x2401000 within \
         100000; free 1; contig 16M align=3 within 100000; free 1; cma alloc reserved 8M align=9 \
         within 100000; movable check; free all; movable free; vacate 4M@0x2400000 within 0; \
         contig 8M within 0; cma alloc reserved 4M within 0",
    );
    assert_eq!(out.iter().filter(|line| line.contains(" moved in ")).count(), 7, "{out:?}");
    assert!(out.iter().any(|line| line.ends_with(": all intact")), "{out:?}");
}

#[test]
fn wrong_calls_say_why_and_change_nothing() {
    let bench = bench();
    for (text, status, expected) in [
        ("movable nonsense", 2, "movable: expected fill PERCENT [ORDER,...] [seed N], check"),
        ("movable fill", 2, "fill PERCENT"),
        ("movable fill x", 2, "a percentage must be a number"),
        ("movable fill 98", 2, "at most 97 % of memory can be filled, not 98"),
        ("movable fill 50 19", 2, "an order must be 0 to 18"),
        ("movable fill 50 0,,1", 2, "an order must be 0 to 18"),
        ("movable fill 50 seed", 2, "an order must be 0 to 18"),
        ("movable fill 50 0 1", 2, "only orders separated by commas"),
        ("movable", 1, "no memory is held by handles; `movable fill` takes some"),
        ("movable check", 1, "no memory is held by handles"),
        ("movable pin 1", 1, "no memory is held by handles"),
        ("movable free", 1, "no memory is held by handles"),
        ("movable fill 9; movable pin 999999", 1, "handles, not 999999"),
        ("movable pin x", 2, "pin must be a number"),
        ("movable busy", 2, "busy on, busy off"),
        ("movable busy on", 1, "no memory is held by handles"),
        ("compact", 1, "there is no mover; `movable fill` makes one for this shell"),
        ("compact x", 2, "node must be the number of a node"),
        ("compact 7", 1, "there is no node 7"),
        ("compact 0 x", 2, "BLOCKS must be a number"),
        ("compact 0 1 2", 2, "expected [NODE [BLOCKS]] or background SECONDS"),
        ("compact background x", 2, "SECONDS must be a number"),
        ("vacate", 2, "which range?"),
        ("vacate 5", 2, "expected SIZE@ADDRESS or FRAME..FRAME, not \"5\""),
        ("vacate 2M@0x2001000", 2, "whole blocks of 2 MiB"),
        ("vacate 2M@5", 2, "must be a multiple"),
        ("vacate 0@0", 2, "vacate: 0@0: the range must have at least one page"),
        ("vacate 0x2400..0x2400", 2, "at least one"),
        ("vacate 0x2800..0x2400", 2, "at least one"),
        ("vacate 1M@0x2400000", 2, "whole blocks of 2 MiB"),
        ("vacate 2M@0x7fffffffffe00000", 2, "ends beyond all addresses"),
        ("vacate 0..0xfffffffffffffe00", 2, "ends beyond all addresses"),
        ("vacate 2M@0x20000000", 1, "vacate: "),
        ("alloc 0 at=0x2400000; vacate 2M@0x2400000", 1, "vacate: pfn 0x2400..0x2401"),
        ("vacate within 5", 2, "which range?"),
        ("vacate 2M@0x2400000 within", 2, "vacate: within how many milliseconds?"),
        ("vacate 2M@0x2400000 within x", 2, "a time in milliseconds must be a number, not \"x\""),
        ("vacate 2M@0x2400000 within 5 5", 2, "SIZE@ADDRESS or FRAME..FRAME [within"),
        ("vacate 2M@0x2400000 5", 2, "which range?"),
        ("contig 4M within", 2, "contig: within how many milliseconds?"),
        ("contig 4M within -1", 2, "a time in milliseconds must be a number"),
        ("contig 4M within 5 align=3", 2, "within: expected align=ORDER"),
        ("contig 1M@0x2400000 align=3 within 5", 2, "align=3: only within MS may follow a place"),
        ("contig within 5", 2, "how much?"),
        ("contig", 2, "how much?"),
        ("contig x", 2, "not a number"),
        ("contig 0", 1, "0 pages"),
        ("contig 4M align=19", 2, "align must be 0 to 18"),
        ("contig 4M colour=red", 2, "expected align=ORDER"),
        ("contig 4M type=CMA", 2, "type must be Unmovable, Movable or Reclaimable, not \"CMA\""),
        ("contig 4M node=7", 1, "there is no node 7"),
        ("contig 200M", 1, "no zone has a run of 51200 pages"),
        ("contig 1T", 1, "no zone has"),
        ("contig 0@0x2400000", 2, "contig: 0@0x2400000: the range must have at least one page"),
        ("contig 0x2400..0x2400", 2, "at least one page"),
        ("contig 1M@0x2400001", 2, "must be a multiple"),
        ("contig 1M@", 2, "an address must be a number"),
        ("contig @0x2400000", 2, "not a number"),
        ("contig 0x2400..", 2, "the frame after the last must be a number"),
        ("contig 1M@0x2400000 align=3", 2, "align=3: only within MS may follow a place"),
        ("contig 99999T@0x2400000", 2, "ends beyond all addresses"),
        ("contig 0..0xffffffffffffffff", 2, "ends beyond all addresses"),
        // Across the end of a node, across the hole behind it, and inside that hole.
        ("contig 4M@0x7e00000", 1, "contig: the range does not lie in one zone; 0 pages moved in"),
        ("contig 4G@0x7e00000", 1, "the range does not lie in one zone"),
        ("contig 4K@0x20000000", 1, "the range does not lie in one zone"),
        ("contig 4K@0", 1, "contig: "),
        ("alloc 0 at=0x2405000; contig 1M@0x2400000", 1, "contig: one run could not be moved: pfn"),
    ] {
        let (found, out, errors) = bench.run(text);
        assert!(found == status && errors.contains(expected), "{text}: {found}, {out}{errors}");
        let is_one_line = errors.lines().count() == 1;
        assert!(!text.contains('@') || is_one_line || text.contains("vacate"), "{text}: {errors}");
    }
    let out = bench
        .says("contig 6M align=10 node=1 below=0x101000000; contig 1M zone=DMA32 type=Movable");
    assert!(out[0].starts_with("1: 1536 pages, 6 MiB, at 0x100"), "{}", out[0]);
    assert!(out[1].starts_with("2: 256 pages, 1 MiB, at 0x"), "{}", out[1]);
}

#[test]
fn interrupts_end_it_and_everything_comes_back() {
    let bench = bench();
    for text in ["movable fill 70; echo never", "movable fill 20; compact; echo never"] {
        bench.host.looks.store(2, Ordering::Relaxed);
        let (status, out, errors) = bench.run(text);
        assert!(status == 130 && errors.contains("interrupted"), "{text}: {status} {errors}");
        assert!(!out.contains("never"), "{out}");
        bench.host.looks.store(0, Ordering::Relaxed);
    }
}
