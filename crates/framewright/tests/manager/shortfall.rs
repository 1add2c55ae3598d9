//! The explanation of a request that finds no memory: the reason, and where memory is, in Linux's
//! format.

use crate::common::{Fake, bring_up, bring_up_with, gib, mib, order, parameters};
use framewright::manager::Shortfall;
use framewright::memblock::NodeChoice;
use framewright::units::NodeId;
use framewright::zone::MigrateType;
use framewright::zone::ZoneKind;
use framewright::{AllocateError, Request, Reserves, bootlog};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner};

fn machine() -> &'static FakeMachine {
    let builder = FakeMachine::builder().ram(mib(0, 64)).ram(gib(4, 5)).cpus_on(0, 1).cpus_on(1, 1);
    builder.node(mib(0, 64), 0).node(gib(4, 5), 1).build()
}

/// Allocates everything that ordinary requests get from one node.
fn use_up(manager: &Fake, node: NodeId) {
    for of in (0..=10).rev() {
        let request = Request { node: NodeChoice::Exact(node), ..Request::new(order(of)) };
        while manager.allocate(&request).is_ok() {}
    }
}

#[test]
fn a_watermark_is_named_as_the_reason() {
    let parameters = parameters("min_free_kbytes=99999999");
    let manager = bring_up_with(machine(), &[], &parameters).expect("comes up");
    let request = Request::new(order(0));
    let error = manager.allocate(&request).expect_err("all is kept");
    assert_eq!(error, AllocateError::OutOfMemory { order: order(0) });
    let free_pages = manager.totals().free_pages;
    let why = manager.shortfall(&request).expect("is a request");
    let Shortfall::Watermark { free_pages: free, kept_pages } = why else { panic!("{why:?}") };
    assert!(free == free_pages && free > 100_000 && kept_pages > free, "{why}");
    let text = bootlog::allocation_failure(&manager, &request).to_string();
    let first = text.lines().next().expect("a line");
    assert!(
        first.ends_with(&format!("{free} pages are free, but watermarks keep {kept_pages}")),
        "{first}"
    );
    // A request that may use the reserves has no shortfall.
    let reserves = Request { reserves: Reserves::All, ..request };
    assert_eq!(manager.shortfall(&reserves), Ok(Shortfall::None));
}

#[test]
fn other_reasons_are_told_apart() {
    let manager = bring_up(machine());
    let on = |node| NodeChoice::Exact(NodeId::new(node).expect("a node"));
    let why = |request: &Request| manager.shortfall(request).expect("is a request");
    let usual = Request::new(order(0));
    assert_eq!(why(&usual), Shortfall::None);
    // Node 1 lies above 4 GiB, node 0 below it.
    let dma = Request { node: on(1), zone: ZoneKind::Dma, ..usual };
    assert_eq!(why(&dma), Shortfall::NoZone { highest: ZoneKind::Dma });
    let low = Request { node: on(1), max_address: 1 << 32, ..usual };
    assert_eq!(why(&low), Shortfall::Address { max_address: 1 << 32 });
    let nobody = Request { node: on(7), ..usual };
    assert_eq!(
        manager.shortfall(&nobody),
        Err(AllocateError::NoNode(NodeId::new(7).expect("a node")))
    );
    let large = Request { node: on(0), ..Request::new(order(18)) };
    let Shortfall::Exhausted { free_pages } = why(&large) else { panic!("{:?}", why(&large)) };
    assert!(free_pages < 1 << 14);
    // Every other page of node 1 is in use.
    let node = NodeId::new(1).expect("a node");
    let single = Request { node: on(1), reserves: Reserves::All, ..usual };
    let mut held: Vec<_> = std::iter::from_fn(|| manager.allocate(&single).ok()).collect();
    held.sort_by_key(|range| range.start);
    for range in held.iter().filter(|range| range.start.0 % 2 == 0) {
        manager.give_back(*range).expect("was allocated");
    }
    let pair = Request { node: on(1), ..Request::new(order(1)) };
    assert!(manager.allocate(&pair).is_err());
    let fragmented = why(&pair);
    let Shortfall::Fragmented { free_pages, largest } = fragmented else {
        panic!("{fragmented:?}")
    };
    assert!(free_pages > 100_000 && largest == Some(order(0)), "{fragmented}");
    use_up(&manager, node);
    assert!(matches!(why(&Request { node: on(1), ..usual }), Shortfall::Watermark { .. }));
    // Memory that is lent out as movable is out of reach for other requests.
    crate::common::check(&manager);
}

#[test]
fn memory_is_shown_as_linux_shows_it() {
    let manager = bring_up(machine());
    manager
        .pool(framewright::hugetlb::PoolSize::TwoMib)
        .resize(3, &NoHelpers)
        .expect("nobody else resizes");
    manager
        .allocate(&Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(0)) })
        .expect("is free");
    let text = bootlog::show_memory(&manager).to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Mem-Info:");
    assert!(
        lines[1].starts_with(&format!("free:{} free_pcp:", manager.totals().free_pages)),
        "{}",
        lines[1]
    );
    for zone in manager.zones() {
        let head = format!("Node {} {}", zone.id().node, zone.id().kind);
        let state = lines
            .iter()
            .find(|line| line.starts_with(&format!("{head} free:")))
            .expect("its state");
        let marks = zone.watermarks();
        let numbers = format!(
            "free:{}kB min:{}kB low:{}kB",
            zone.free_pages() * 4,
            marks.min_pages * 4,
            marks.low_pages * 4
        );
        assert!(state.contains(&numbers), "{state}");
        // 12*4kB (UM) 3*8kB (M) 0*16kB ... = 72kB
        let sizes = lines
            .iter()
            .find_map(|line| line.strip_prefix(&format!("{head}: ")))
            .expect("its sizes");
        let (runs, sum) = sizes.split_once("= ").expect("a sum");
        let words: Vec<_> = runs.split_whitespace().collect();
        let (mut total, mut orders) = (0, 0);
        for (place, word) in words.iter().enumerate() {
            if let Some(letters) = word.strip_prefix('(') {
                assert!(
                    letters.trim_end_matches(')').chars().all(|letter| "UMEHCI".contains(letter)),
                    "{word}"
                );
                continue;
            }
            let (count, size) = word.trim_end_matches("kB").split_once('*').expect("a product");
            let (count, size): (u64, u64) =
                (count.parse().expect("a count"), size.parse().expect("a size"));
            assert_eq!(size, 4 << orders);
            assert_eq!(
                count != 0,
                words.get(place + 1).is_some_and(|next| next.starts_with('(')),
                "{sizes}"
            );
            total += count * size;
            orders += 1;
        }
        assert_eq!((orders, format!("{total}kB")), (19, sum.to_owned()));
        assert_eq!(total, zone.free_pages() * 4);
    }
    let pool = "hugepages_total=2 hugepages_free=2 hugepages_surp=0 hugepages_size=2048kB";
    assert!(lines.iter().any(|line| line.ends_with(pool)), "{text}");
    assert!(lines.contains(&&*format!("{} pages RAM", manager.totals().present_pages)));
}

/// Unaccepted memory helps only requests that may have it.
#[test]
fn what_is_withheld_elsewhere_does_not_serve() {
    let machine = || super::unaccepted::machine(mib(4096, 4160), mib(4160, 4224)).build();
    let manager = bring_up_with(machine(), &[], &parameters("")).expect("comes up");
    let low = Request { max_address: 4160 << 20, ..Request::new(order(0)) };
    assert_eq!(manager.shortfall(&low), Ok(Shortfall::None));
    while manager.allocate(&low).is_ok() {}
    assert_eq!(manager.shortfall(&low), Ok(Shortfall::Exhausted { free_pages: 0 }));
    assert_ne!(manager.acceptance().unaccepted_pages(), 0);
    // With one more block in reach the request succeeds.
    let higher = Request { max_address: 4162 << 20, ..low };
    assert_eq!(manager.shortfall(&higher), Ok(Shortfall::None));
    assert!(manager.allocate(&higher).is_ok());
    assert_eq!(manager.shortfall(&Request::new(order(0))), Ok(Shortfall::None));
    crate::common::check(&manager);
    // All unaccepted memory is reserved for movable requests.
    let line = "movablecore=64M";
    let manager = bring_up_with(machine(), &[], &parameters(line)).expect("comes up");
    let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(0)) };
    while manager.allocate(&fixed).is_ok() {}
    assert_ne!(manager.acceptance().unaccepted_pages(), 0);
    assert_ne!(manager.shortfall(&fixed), Ok(Shortfall::None));
    assert_eq!(manager.shortfall(&Request::new(order(0))), Ok(Shortfall::None));
    crate::common::check(&manager);
}
