//! NUMA policies: which node serves, which requests are refused, what is counted, and what the
//! control files of the weights do. The vectors are Linux's (`mm/mempolicy.c`).

use super::HERE;
use crate::common::{Fake, bring_up_with, check, is_careful, order, parameters, settled};
use framewright::manager::{
    InterleaveCursor, NumaCounts, NumaPolicy, Placed, PolicyError, PolicyMode, Weights,
};
use framewright::memblock::NodeChoice;
use framewright::procfs::{FileError, FileSystem};
use framewright::units::{NodeId, NodeMask, Order, Pfn, PfnRange, PhysRange};
use framewright::zone::{ZoneId, ZoneKind};
use framewright::{AllocateError, Reclaim, Request, Shortage};
use framewright_testkit::{Builder, FakeMachine, Owner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs that no cache keeps, so that each is counted and comes from where it is asked for.
const RUN: u8 = 10;
const RUN_PAGES: u64 = 1 << RUN;

pub(crate) fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

pub(crate) fn nodes(list: &str) -> NodeMask {
    list.parse().expect("a list of nodes")
}

/// Memory of node `index`, far above the zone DMA32.
fn place(index: usize, mib: u64) -> PhysRange {
    let start = (index as u64 + 1) << 32;
    PhysRange::new(start, start + (mib << 20))
}

/// Nodes of `sizes` MiB each, where 0 means no memory; the first two nodes have one CPU each, and
/// each node has one zone.
pub(crate) fn machine(sizes: &[u64]) -> Builder {
    let start = FakeMachine::builder().nodes(sizes.len()).cpus_on(0, 1).cpus_on(1, 1);
    sizes.iter().enumerate().fold(start, |machine, (index, &size)| {
        let range = place(index, size.max(1));
        let machine = machine.node(range, index);
        if size == 0 { machine } else { machine.ram(range) }
    })
}

fn up(sizes: &[u64]) -> &'static Fake {
    let manager = bring_up_with(machine(sizes).build(), &[], &parameters("min_free_kbytes=1024"));
    Box::leak(Box::new(manager.expect("bring-up")))
}

/// Allocates all memory of a node that a request may have, the largest runs first.
fn fill(manager: &Fake, index: usize) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for of in (0..=18).rev().map(order) {
        let request = Request { node: NodeChoice::Exact(node(index)), ..Request::new(of) };
        let fails_fast = Request { fail_fast: true, ..request };
        while let Ok(range) = manager.allocate(&fails_fast) {
            taken.push(range);
        }
    }
    taken
}

pub(crate) fn read(manager: &Fake, path: &str) -> Result<String, FileError> {
    let (mut text, table) = (String::new(), manager.files());
    FileSystem::new(&[&table]).read(path, &mut text).map(|()| text)
}

fn write(manager: &Fake, path: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    FileSystem::new(&[&table]).write(path, text)
}

const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";

/// The nodes that `count` requests for one page come from.
fn served(
    manager: &Fake,
    policy: &NumaPolicy<'_>,
    cursor: &mut InterleaveCursor,
    count: usize,
) -> Vec<usize> {
    let mut one = || {
        let placed = manager.numa().allocate(&Request::pages(1), policy, cursor);
        let placed = placed.expect("there is memory");
        assert_eq!(manager.numa().zone_of(placed.range.start), Some(placed.zone));
        manager.give_back(placed.range).expect("allocated");
        placed.node().index()
    };
    (0..count).map(|_| one()).collect()
}

#[test]
fn nodes_take_turns_by_their_weights() {
    let manager = up(&[128, 128, 128]);
    let numa = manager.numa();
    let (both, mut cursor) = (nodes("0-1"), InterleaveCursor::START);
    let weighted = NumaPolicy::weighted_interleave(both);
    assert_eq!(served(manager, &weighted, &mut cursor, 4), [0, 1, 0, 1], "all weights are 1");
    numa.set_weight(node(0), 5).expect("a weight");
    numa.set_weight(node(1), 2).expect("a weight");
    cursor = InterleaveCursor::START;
    assert_eq!(served(manager, &weighted, &mut cursor, 8), [0, 0, 0, 0, 0, 1, 1, 0]);
    // Each cursor counts for itself, and each policy has its own weights.
    let own = Weights::new(&[1, 3]).expect("weights");
    let mut other = InterleaveCursor::START;
    let with_own = weighted.with_weights(&own);
    assert_eq!((with_own.own_weights(), weighted.own_weights()), (Some(&own), None));
    assert_eq!(served(manager, &with_own, &mut other, 5), [0, 1, 1, 1, 0]);
    assert_eq!(served(manager, &weighted, &mut cursor, 5), [0, 0, 0, 0, 1]);
    // A node leaves the set in the middle of its weight, and plain turns are one page each.
    let mut cursor = InterleaveCursor::START;
    assert_eq!(served(manager, &weighted, &mut cursor, 2), [0, 0]);
    let without = NumaPolicy::weighted_interleave(nodes("1-2"));
    assert_eq!(served(manager, &without, &mut cursor, 4), [1, 1, 2, 1]);
    let mut cursor = InterleaveCursor::START;
    assert_eq!(served(manager, &weighted, &mut cursor, 1), [0]);
    let plain = NumaPolicy::interleave(nodes("0-2"));
    assert_eq!(served(manager, &plain, &mut cursor, 4), [1, 2, 0, 1]);
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn many_pages_are_as_if_taken_one_by_one_with_one_lock_for_each_node() {
    let manager = up(&[128, 128, 128]);
    let numa = manager.numa();
    let weights = Weights::new(&[5, 2]).expect("weights");
    let policy = NumaPolicy::weighted_interleave(nodes("0-1")).with_weights(&weights);
    let (mut cursor, mut pages) = (InterleaveCursor::START, [Pfn(0); 20]);
    let request = Request::new(Order::PAGE);
    let before = manager.platform().calls().irq_save;
    let placed = numa.allocate_bulk(&request, &policy, &mut cursor, &mut pages);
    let locks = manager.platform().calls().irq_save - before;
    let placed = placed.expect("there is memory");
    assert_eq!((placed.pages, placed.on(node(0)), placed.on(node(1))), (20, 15, 5));
    if !is_careful() {
        // Debug aids take locks of their own.
        assert_eq!(locks, 2, "one for each node");
    }
    let mut all: Vec<_> = pages.to_vec();
    all.dedup();
    assert_eq!(all.len(), 20);
    assert_eq!(served(manager, &policy, &mut cursor, 2), [1, 0], "node 1 has one left");
    // The pages of each node are as many as the answer says.
    let on =
        |index| move |page: &&Pfn| numa.zone_of(**page).map(|zone| zone.node) == Some(node(index));
    assert_eq!((pages.iter().filter(on(0)).count(), pages.iter().filter(on(1)).count()), (15, 5));
    assert_eq!(numa.counts(node(0)).interleave, 15 + 1);
    assert_eq!(numa.counts(node(1)).interleave, 5 + 1);
    manager.give_back_bulk(&pages).expect("allocated");
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn many_pages_come_from_elsewhere_when_a_node_is_full() {
    let manager = up(&[128, 128, 128]);
    let numa = manager.numa();
    let request = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    let full = fill(manager, 0);
    let mut cursor = InterleaveCursor::START;
    let mut pages = vec![Pfn(0); 300];
    let plain = NumaPolicy::interleave(nodes("0-1"));
    let placed = numa.allocate_bulk(&request, &plain, &mut cursor, &mut pages).expect("memory");
    // Node 2 is as near as node 1, and has no CPU to share with.
    assert_eq!([0, 1, 2].map(|index| placed.on(node(index))), [0, 150, 150]);
    assert_eq!(numa.counts(node(0)).interleave, 0);
    assert_eq!(numa.counts(node(1)).interleave, 150);
    assert_eq!(cursor.node(), node(1), "300 turns were had");
    manager.give_back_bulk(&pages).expect("allocated");
    // Bound to the full node: nothing is allocated, and the list is unchanged.
    let bound = NumaPolicy::bind(nodes("0"));
    let kept = [Pfn(7); 3];
    let mut some = kept;
    let refused = numa.allocate_bulk(&request, &bound, &mut cursor, &mut some);
    let (order, of) = (Order::PAGE, nodes("0"));
    assert_eq!(refused, Err(PolicyError::OutOfMemory { order, nodes: of }));
    assert_eq!(some, kept);
    // A policy that prefers the full node and the one beside it.
    let many = NumaPolicy::preferred_many(nodes("0,2"));
    let placed = numa.allocate_bulk(&request, &many, &mut cursor, &mut some).expect("memory");
    assert_eq!((placed.pages, placed.on(node(2))), (3, 3));
    manager.give_back_bulk(&some).expect("allocated");
    let local = numa.allocate_bulk(&request, &NumaPolicy::LOCAL, &mut cursor, &mut some);
    assert_eq!(local.map(|placed| placed.on(node(0))), Ok(0));
    manager.give_back_bulk(&some).expect("allocated");
    let none = numa.allocate_bulk(&request, &plain, &mut cursor, &mut []).expect("nothing");
    assert_eq!((none.pages, cursor.node()), (0, node(1)));
    for range in full {
        manager.give_back(range).expect("allocated");
    }
    // A request for more than the bound node has gets what there is, and the refusal is counted.
    let mut all = vec![Pfn(0); 3 * 128 * 256];
    let refused = numa.counts(node(0)).refused;
    let placed = numa.allocate_bulk(&request, &bound, &mut cursor, &mut all).expect("some");
    assert!((20_000..32_768).contains(&placed.pages), "{}", placed.pages);
    assert_eq!(placed.on(node(0)), placed.pages);
    assert_eq!(numa.counts(node(0)).refused, refused + 1);
    manager.give_back_bulk(&all[..placed.pages]).expect("allocated");
    // A request for more than all nodes have gets at most all.
    let placed = numa.allocate_bulk(&request, &plain, &mut cursor, &mut all).expect("some");
    assert!(placed.pages < all.len() && placed.on(node(2)) > 20_000);
    manager.give_back_bulk(&all[..placed.pages]).expect("allocated");
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

/// A hook that frees runs which a test has put there, wherever they lie.
struct Hook {
    runs: Mutex<Vec<PfnRange>>,
    asked: Mutex<Vec<Shortage>>,
    calls: AtomicU32,
    manager: &'static Fake,
}

impl Reclaim for Hook {
    fn reclaim(&self, wanted: &Shortage) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().expect("no test panicked").push(*wanted);
        let run = self.runs.lock().expect("no test panicked").pop();
        run.map_or(0, |run| {
            self.manager.give_back(run).expect("allocated");
            run.pages()
        })
    }
}

#[test]
fn who_is_bound_gets_nothing_else_and_others_do_not_help() {
    let manager = up(&[128, 128, 128]);
    let numa = manager.numa();
    let mut cursor = InterleaveCursor::START;
    let mut own = fill(manager, 1);
    let mut others = fill(manager, 2);
    let request = Request::new(order(RUN));
    let bound = NumaPolicy::bind(nodes("1"));
    let refusal = PolicyError::OutOfMemory { order: order(RUN), nodes: nodes("1") };
    let text = refusal.to_string();
    assert!(text.starts_with("out of memory") && text.ends_with("on the nodes 1"), "{text}");
    assert_eq!(numa.allocate(&request, &bound, &mut cursor), Err(refusal));
    assert_eq!(numa.counts(node(1)).refused, 1);
    assert_eq!(numa.counts(node(0)).refused, 0);

    // The hook is told which nodes will do. What it frees on another node does not help a bound
    // request.
    let is_large = |run: &PfnRange| run.pages() >= RUN_PAGES;
    let hook: &'static Hook = Box::leak(Box::new(Hook {
        runs: Mutex::new(others.extract_if(.., |run| is_large(run)).take(1).collect()),
        asked: Mutex::new(Vec::new()),
        calls: AtomicU32::new(0),
        manager,
    }));
    manager.pressure().set_reclaim(Some(hook));
    assert_eq!(numa.allocate(&request, &bound, &mut cursor), Err(refusal));
    assert_eq!(hook.calls.swap(0, Ordering::Relaxed), 2, "once more after it freed something");
    let asked = std::mem::take(&mut *hook.asked.lock().expect("no test panicked"));
    assert!(asked.iter().all(|asked| asked.nodes == nodes("1") && asked.pages == RUN_PAGES));
    // What it frees on the right node does.
    let mine = own.extract_if(.., |run| is_large(run)).take(1);
    hook.runs.lock().expect("no test panicked").extend(mine);
    let placed = numa.allocate(&request, &bound, &mut cursor).expect("the hook freed some");
    assert_eq!((placed.node(), placed.is_hit()), (node(1), true));
    // For other requests the hook is told that all nodes will do, or one.
    hook.asked.lock().expect("no test panicked").clear();
    let exact = Request { node: NodeChoice::Exact(node(1)), ..Request::new(Order::MAX) };
    assert!(manager.allocate(&exact).is_err());
    assert!(manager.allocate(&Request::new(Order::MAX)).is_err());
    let asked = hook.asked.lock().expect("no test panicked").clone();
    assert_eq!(
        asked.iter().map(|asked| asked.nodes).collect::<Vec<_>>(),
        [nodes("1"), NodeMask::ALL]
    );
    manager.pressure().set_reclaim(None);
    // A bound request fails at once if it must not wait, and is served if some nodes of its set are
    // free.
    let set = NumaPolicy::bind(nodes("0-1"));
    let served = numa.allocate(&request, &set, &mut cursor).expect("node 0 has some");
    assert_eq!((served.node(), served.wanted), (node(0), node(0)));
    for range in own.into_iter().chain(others).chain([placed.range, served.range]) {
        manager.give_back(range).expect("allocated");
    }
    assert_eq!(cursor, InterleaveCursor::START, "nobody took turns");
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn who_prefers_many_gets_others_before_anybody_is_asked() {
    let manager = up(&[128, 128, 128]);
    let numa = manager.numa();
    let mut cursor = InterleaveCursor::START;
    let full: Vec<_> = [0, 1].into_iter().flat_map(|index| fill(manager, index)).collect();
    let hook: &'static Hook = Box::leak(Box::new(Hook {
        runs: Mutex::new(Vec::new()),
        asked: Mutex::new(Vec::new()),
        calls: AtomicU32::new(0),
        manager,
    }));
    manager.pressure().set_reclaim(Some(hook));
    let (request, many) = (Request::new(order(RUN)), NumaPolicy::preferred_many(nodes("0-1")));
    let drains = manager.pressure().events().drains;
    let before = [0, 2].map(|index| numa.counts(node(index)));
    let placed = numa.allocate(&request, &many, &mut cursor).expect("the third has some");
    assert_eq!((placed.node(), placed.wanted, placed.is_hit()), (node(2), node(0), false));
    assert_eq!(hook.calls.load(Ordering::Relaxed), 0);
    assert_eq!(manager.pressure().events().drains, drains);
    let after = [0, 2].map(|index| numa.counts(node(index)));
    assert_eq!(after[0].foreign - before[0].foreign, RUN_PAGES);
    assert_eq!(after[1].miss - before[1].miss, RUN_PAGES);
    assert_eq!(after[1].other - before[1].other, RUN_PAGES);
    // If no node has any memory, everything is tried, and the shortage is one of all nodes.
    let last = fill(manager, 2);
    let refused = numa.allocate(&request, &many, &mut cursor);
    let of_all = AllocateError::OutOfMemory { order: order(RUN) };
    assert_eq!(refused, Err(PolicyError::Request(of_all)));
    assert_eq!(hook.calls.load(Ordering::Relaxed), 1);
    assert_eq!([0, 1, 2].map(|index| numa.counts(node(index)).refused), [0; 3]);
    manager.pressure().set_reclaim(None);
    for range in full.into_iter().chain(last).chain([placed.range]) {
        manager.give_back(range).expect("allocated");
    }
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn a_full_node_loses_its_turn_to_the_nearest() {
    let machine = machine(&[128, 128, 128]).distance(1, 2, 12).distance(1, 0, 30).build();
    let manager = HERE.bring_up(machine);
    let numa = manager.numa();
    let full = fill(&manager, 1);
    let mut cursor = InterleaveCursor::START;
    let (request, turns) = (Request::new(order(RUN)), NumaPolicy::interleave(nodes("0-1")));
    let before = [0, 1, 2].map(|index| numa.counts(node(index)));
    let placed: Vec<Placed> = (0..4)
        .map(|_| numa.allocate(&request, &turns, &mut cursor).expect("there is memory"))
        .collect();
    let from: Vec<_> = placed.iter().map(|placed| placed.node().index()).collect();
    assert_eq!(from, [0, 2, 0, 2], "node 2 is nearer to node 1 than node 0");
    let grown = |index: usize| {
        let (now, then) = (numa.counts(node(index)), before[index]);
        [
            now.hit - then.hit,
            now.miss - then.miss,
            now.foreign - then.foreign,
            now.interleave - then.interleave,
        ]
        .map(|pages| pages / RUN_PAGES)
    };
    assert_eq!([grown(0), grown(1), grown(2)], [[2, 0, 0, 2], [0, 0, 2, 0], [0, 2, 0, 0]]);
    let numastat = read(&manager, "/sys/devices/system/node/node0/numastat").expect("a file");
    assert!(numastat.contains(&format!("interleave_hit {}\n", 2 * RUN_PAGES)), "{numastat}");
    let vmstat = read(&manager, "/proc/vmstat").expect("a file");
    assert!(vmstat.contains(&format!("numa_interleave {}\n", 2 * RUN_PAGES)), "{vmstat}");
    for range in full.into_iter().chain(placed.iter().map(|placed| placed.range)) {
        manager.give_back(range).expect("allocated");
    }
    check(&manager);
}

#[test]
fn an_offset_says_whose_turn_it_is() {
    let manager = up(&[128, 128, 128, 128]);
    let numa = manager.numa();
    let from = |policy: &NumaPolicy<'_>, offset| {
        let placed = numa.allocate_at_offset(&Request::pages(1), policy, offset).expect("memory");
        manager.give_back(placed.range).expect("allocated");
        placed.node().index()
    };
    let plain = NumaPolicy::interleave(nodes("0,2-3"));
    for (offset, index) in [(0, 0), (1, 2), (2, 3), (3, 0), (7, 2), (u64::MAX, 0), (4, 2)] {
        assert_eq!(from(&plain, offset), index, "offset {offset}");
    }
    let weights = Weights::new(&[2, 9, 1, 3]).expect("weights");
    let weighted = NumaPolicy::weighted_interleave(nodes("0,2-3")).with_weights(&weights);
    let all: Vec<_> = (0..12).map(|offset| from(&weighted, offset)).collect();
    assert_eq!(all, [0, 0, 2, 3, 3, 3, 0, 0, 2, 3, 3, 3]);
    assert_eq!(from(&NumaPolicy::preferred(node(3)), 0), 3);
    assert_eq!(from(&NumaPolicy::bind(nodes("2")), 1), 2);
    check(manager);
}

#[test]
fn sets_without_memory_are_refused_by_name_and_others_count_for_what_they_have() {
    // Node 2 has no memory, and nodes 4 to 63 do not exist.
    let manager = up(&[128, 128, 0, 128]);
    let numa = manager.numa();
    let mut cursor = InterleaveCursor::START;
    let request = Request::pages(1);
    let with_sets = [
        PolicyMode::Bind,
        PolicyMode::PreferredMany,
        PolicyMode::Interleave,
        PolicyMode::WeightedInterleave,
    ];
    let mut refused = 0;
    for mode in with_sets {
        for list in ["2", "4-63", "2,17"] {
            let policy = NumaPolicy::new(mode, nodes(list)).expect("there are nodes");
            let error = PolicyError::NoMemory(nodes(list));
            assert_eq!(numa.allocate(&request, &policy, &mut cursor), Err(error));
            assert_eq!(
                error.to_string(),
                format!("no node of {list} has memory that the request may use")
            );
            let mut pages = [Pfn(0); 2];
            let bulk = numa.allocate_bulk(&request, &policy, &mut cursor, &mut pages);
            assert_eq!(bulk, Err(error));
            assert_eq!(numa.allocate_at_offset(&request, &policy, 3), Err(error));
            refused += 3;
        }
        let policy = NumaPolicy::new(mode, nodes("2-63")).expect("there are nodes");
        let placed = numa.allocate(&request, &policy, &mut InterleaveCursor::default());
        let placed = placed.expect("node 3 has some");
        assert_eq!(placed.node(), node(3), "{mode:?}");
        manager.give_back(placed.range).expect("allocated");
    }
    assert_eq!(numa.without_memory(), refused);
    let empty = [
        NumaPolicy::bind(NodeMask::EMPTY),
        NumaPolicy::preferred_many(NodeMask::EMPTY),
        NumaPolicy::interleave(NodeMask::EMPTY),
        NumaPolicy::weighted_interleave(NodeMask::EMPTY),
    ];
    for policy in empty {
        let error = Err(PolicyError::NoNodes(policy.mode()));
        assert_eq!(numa.allocate(&request, &policy, &mut cursor), error);
    }
    // Memory that is too high for the request does not count.
    let low = Request { zone: ZoneKind::Dma32, ..request };
    let below = Request { max_address: 4 << 30, ..request };
    for request in [low, below] {
        let bound = numa.allocate(&request, &NumaPolicy::bind(nodes("1,3")), &mut cursor);
        assert_eq!(bound, Err(PolicyError::NoMemory(nodes("1,3"))));
        let many = NumaPolicy::preferred_many(nodes("1,3"));
        let error = AllocateError::OutOfMemory { order: Order::PAGE };
        let refused = numa.allocate(&request, &many, &mut cursor);
        assert_eq!(refused, Err(PolicyError::Request(error)));
    }
    let vmstat = read(manager, "/proc/vmstat").expect("a file");
    assert!(vmstat.contains(&format!("numa_mask_empty {}\n", refused + 2)), "{vmstat}");
    assert_eq!(cursor, InterleaveCursor::START, "an error moves no cursor");
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn wrong_requests_are_refused_and_change_nothing() {
    let manager = up(&[128, 128, 0]);
    let numa = manager.numa();
    let good = Request::pages(1);
    let mut cursor = InterleaveCursor::START;
    let policies = [
        NumaPolicy::DEFAULT,
        NumaPolicy::LOCAL,
        NumaPolicy::preferred(node(1)),
        NumaPolicy::bind(nodes("0-1")),
        NumaPolicy::preferred_many(nodes("1")),
        NumaPolicy::interleave(nodes("0-1")),
        NumaPolicy::weighted_interleave(nodes("0-1")),
    ];
    for policy in policies {
        let mut is_refused = |request: &Request, error: PolicyError| {
            assert_eq!(numa.allocate(request, &policy, &mut cursor), Err(error), "{policy:?}");
            assert_eq!(numa.allocate_at_offset(request, &policy, 1), Err(error), "{policy:?}");
        };
        let exact = Request { node: NodeChoice::Exact(node(0)), ..good };
        if policy != NumaPolicy::DEFAULT {
            is_refused(&exact, PolicyError::NodeNamed(node(0)));
        }
        let absent = Request { node: NodeChoice::Preferred(node(9)), ..good };
        is_refused(&absent, PolicyError::NoNode(node(9)));
        let none = AllocateError::BadSize { pages: 0 };
        is_refused(&Request::pages(0), PolicyError::Request(none));
        let kind = framewright::MigrateType::Isolate;
        let isolate = Request { migrate_type: kind, ..good };
        is_refused(&isolate, PolicyError::Request(AllocateError::BadType(kind)));
    }
    let absent = NumaPolicy::preferred(node(9));
    let error = PolicyError::Request(AllocateError::NoNode(node(9)));
    assert_eq!(numa.allocate(&good, &absent, &mut cursor), Err(error));
    assert_eq!(numa.counts(node(9)), NumaCounts::default());
    // Nodes that do not exist are ignored.
    let some = NumaPolicy::new(PolicyMode::Preferred, nodes("1,9")).expect("nodes");
    let placed = numa.allocate(&good, &some, &mut cursor).expect("there is memory");
    assert_eq!(placed.wanted, node(1));
    manager.give_back(placed.range).expect("allocated");
    // Preferring a node without memory has no effect, as without a policy.
    let placed = numa.allocate(&good, &NumaPolicy::preferred(node(2)), &mut cursor);
    let placed = placed.expect("others have some");
    assert!(!placed.is_hit() && placed.wanted == node(2));
    manager.give_back(placed.range).expect("allocated");
    // Distance is measured from the node that the request prefers.
    let near = Request { node: NodeChoice::Preferred(node(1)), ..good };
    for policy in [NumaPolicy::LOCAL, NumaPolicy::bind(nodes("0-1"))] {
        let placed = numa.allocate(&near, &policy, &mut cursor).expect("there is memory");
        assert_eq!(placed.zone, ZoneId { node: node(1), kind: ZoneKind::Normal });
        manager.give_back(placed.range).expect("allocated");
    }
    assert_eq!(cursor, InterleaveCursor::START, "an error moves no cursor");
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

/// Settings change while requests read them one by one: every page comes from where it may come
/// from, and nothing is lost.
#[test]
fn settings_may_change_under_requests() {
    let machine = machine(&[128, 128, 128]).cpus_on(2, 1).build();
    let manager = &HERE.bring_up(machine);
    let numa = manager.numa();
    let request = Request { fail_fast: true, ..Request::new(Order::PAGE) };
    let work = |cpu: usize| {
        let (mut cursor, mut pages) = (InterleaveCursor::START, [Pfn(0); 100]);
        for round in 0..300 {
            let policy = match round % 3 {
                0 => NumaPolicy::weighted_interleave(nodes("0-2")),
                1 => NumaPolicy::bind(nodes("1-2")),
                _ => NumaPolicy::preferred_many(NodeMask::only(node(cpu))),
            };
            let some = &mut pages[..1 + round % 100];
            let placed = numa.allocate_bulk(&request, &policy, &mut cursor, some);
            let placed = placed.expect("there is memory");
            assert_eq!(placed.pages, some.len());
            let on = |index| placed.on(node(index));
            assert_eq!(on(0) + on(1) + on(2), placed.pages);
            assert!(round % 3 != 1 || on(0) == 0, "bound to the others");
            let one = numa.allocate(&request, &policy, &mut cursor).expect("there is memory");
            manager.give_back(one.range).expect("allocated");
            manager.give_back_bulk(some).expect("allocated");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| machine.run_on(1, || work(1)));
        let change = |round: u64| {
            let of = node(usize::try_from(round % 3).expect("small"));
            numa.set_bandwidth(of, round % 7 * 100).expect("a node");
            numa.set_weights_auto(true);
            numa.set_weight(of, 1 + round % 255).expect("a weight");
        };
        scope.spawn(move || machine.run_on(2, || (0..3000).for_each(change)));
        work(0);
    });
    check(manager);
    assert_eq!(settled(manager).allocated_pages, 0);
}

#[test]
fn weights_are_files_and_follow_bandwidths_until_somebody_sets_one() {
    let manager = up(&[128, 128, 128, 0]);
    let numa = manager.numa();
    let file = |name: &str| read(manager, &format!("{WEIGHTS}/{name}"));
    let put = |name: &str, text: &str| write(manager, &format!("{WEIGHTS}/{name}"), text);
    let all = || [0, 1, 2].map(|index| numa.weight(node(index)));
    assert_eq!((all(), file("auto").as_deref()), ([1; 3], Ok("true\n")));
    for (index, bandwidth) in [256, 64, 64].into_iter().enumerate() {
        numa.set_bandwidth(node(index), bandwidth).expect("a node");
    }
    assert_eq!(all(), [21, 5, 5]);
    assert_eq!(file("node0").as_deref(), Ok("21\n"));
    assert_eq!(
        (numa.weight(node(40)), numa.tier(node(40))),
        (1, numa.tier(node(3))),
        "no such node"
    );
    // Invalid input changes nothing, not even the automatic mode.
    for text in ["0", "256", "-1", "", "x", "1 2", "99999999999999999999"] {
        assert_eq!(put("node1", text), Err(FileError::Invalid), "{text:?}");
        assert_eq!((all(), numa.weights_are_auto()), ([21, 5, 5], true));
    }
    for weight in [0, 256, u64::MAX] {
        assert_eq!(numa.set_weight(node(1), weight), Err(PolicyError::BadWeight { weight }));
        assert_eq!((all(), numa.weights_are_auto()), ([21, 5, 5], true));
    }
    assert_eq!(PolicyError::BadWeight { weight: 256 }.to_string(), "a weight is 1 to 255, not 256");
    assert_eq!(put("node1", "255\n"), Ok(()));
    assert_eq!((all(), file("auto").as_deref()), ([21, 255, 5], Ok("false\n")));
    numa.set_bandwidth(node(2), 640).expect("a node");
    assert_eq!(all(), [21, 255, 5], "weights do not follow any more");
    assert_eq!(put("auto", "maybe"), Err(FileError::Invalid));
    assert_eq!(put("auto", "false"), Ok(()));
    assert_eq!(all(), [21, 255, 5]);
    assert_eq!(put("auto", "true"), Ok(()));
    assert_eq!(all(), [8, 2, 21]);
    // Nodes without memory have no file, and nodes that do not exist have no weight.
    assert_eq!(file("node3"), Err(FileError::NotFound));
    assert_eq!(put("node3", "3"), Err(FileError::NotFound));
    assert_eq!(put("node9", "3"), Err(FileError::NotFound));
    assert_eq!(numa.set_weight(node(9), 3), Err(PolicyError::NoNode(node(9))));
    assert_eq!(numa.set_bandwidth(node(9), 3), Err(PolicyError::NoNode(node(9))));
    assert_eq!(all(), [8, 2, 21]);
}
