//! Random requests under random policies against a model that knows only how many runs each node
//! has left above its watermarks: the model predicts which node serves or which error comes, where
//! every cursor stands, and what is counted.

use crate::common::{Fake, bring_up_with, check, order, parameters};
use framewright::manager::{
    InterleaveCursor, NumaCounts, NumaPolicy, PolicyError, PolicyMode, Weights,
};
use framewright::memblock::NodeChoice;
use framewright::units::{MAX_NODES, NodeId, NodeMask, PfnRange, PhysRange};
use framewright::{AllocateError, Request};
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;

/// Runs of 4 MiB, which no cache keeps.
const RUN: u8 = 10;
const RUN_PAGES: u64 = 1 << RUN;
/// All nodes but the last have memory. The first two and the last have CPUs.
const NODES: usize = 5;

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

fn machine() -> &'static FakeMachine {
    let mut machine =
        FakeMachine::builder().nodes(NODES).cpus_on(0, 1).cpus_on(1, 1).cpus_on(NODES - 1, 1);
    for index in 0..NODES {
        let start = (index as u64 + 1) << 32;
        let range = PhysRange::new(start, start + ((24 + 8 * index as u64) << 20));
        machine = machine.node(range, index);
        if index + 1 < NODES {
            machine = machine.ram(range);
        }
    }
    machine.distance(0, 2, 14).distance(1, 3, 12).distance(0, 3, 40).distance(4, 2, 11).build()
}

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// The mode, the bits of the set, the CPU, the node that the request prefers, if any, and the
    /// offset, if the turn depends on one.
    Allocate { mode: usize, bits: u64, cpu: u32, home: Option<usize>, offset: Option<u64> },
    /// Free the run of this number, modulo the number of runs.
    Free(usize),
    /// Set the weight of this node.
    Weight(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let allocate = (
        0..PolicyMode::ALL.len(),
        // Includes nodes that do not exist.
        0_u64..1 << (NODES + 1),
        0_u32..3,
        proptest::option::weighted(0.3, 0..NODES),
        proptest::option::weighted(0.2, 0_u64..100),
    );
    let allocate = allocate.prop_map(|(mode, bits, cpu, home, offset)| Step::Allocate {
        mode,
        bits,
        cpu,
        home,
        offset,
    });
    prop_oneof![
        6 => allocate,
        3 => any::<usize>().prop_map(Step::Free),
        1 => (0..NODES, 0_u64..8).prop_map(|(node, weight)| Step::Weight(node, weight)),
    ]
}

/// The nodes that have memory: all but the last.
const WITH_MEMORY: u64 = (1 << (NODES - 1)) - 1;

/// What the manager should know.
struct Model<'m> {
    manager: &'m Fake,
    /// The last node and the rest of its weight.
    cursor: (usize, u64),
    weights: [u64; NODES],
    counts: [NumaCounts; NODES],
    without_memory: u64,
}

/// The expected result of a request.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The node that serves, and the node that was wanted.
    Served(usize, usize),
    Refused(PolicyError),
}

impl Model<'_> {
    /// Whether a node has a run whose allocation keeps the low watermark or the min watermark.
    fn has_run(&self, index: usize, low: bool) -> bool {
        self.manager.views().filter(|zone| zone.id().node == node(index)).any(|zone| {
            let marks = zone.watermarks();
            let keeps = if low { marks.low_pages } else { marks.min_pages };
            let largest = zone.free_blocks().iter().rposition(|&blocks| blocks != 0);
            zone.free_pages() >= RUN_PAGES + keeps && largest.is_some_and(|of| of + 9 >= RUN.into())
        })
    }

    /// The node nearest to `from` that has a run above the low watermark, or else above the min
    /// watermark.
    fn serves(&self, from: usize, allowed: u64) -> Option<usize> {
        let order: Vec<usize> = self.manager.nodes()[from]
            .fallback
            .iter()
            .map(|node| node.index())
            .filter(|index| allowed >> index & 1 != 0)
            .collect();
        let find = |low| order.iter().copied().find(|&index| self.has_run(index, low));
        find(true).or_else(|| find(false))
    }

    fn nearest(&self, from: usize, allowed: u64) -> usize {
        let order = self.manager.nodes()[from].fallback.iter().map(|node| node.index());
        order.into_iter().find(|index| allowed >> index & 1 != 0).expect("one has memory")
    }

    /// The node of the next turn, by counting.
    fn turn(&mut self, nodes: &[usize], weighted: bool) -> usize {
        let (last, rest) = self.cursor;
        let weight = |index: usize| if weighted { self.weights[index] } else { 1 };
        if weighted && rest != 0 && nodes.contains(&last) {
            self.cursor = (last, rest - 1);
        } else {
            let next = nodes.iter().copied().find(|&index| index > last).unwrap_or(nodes[0]);
            self.cursor = (next, weight(next) - 1);
        }
        self.cursor.0
    }

    fn turn_at(&self, nodes: &[usize], weighted: bool, offset: u64) -> usize {
        let times = |&index: &usize| if weighted { self.weights[index] } else { 1 };
        let all: Vec<usize> =
            nodes.iter().flat_map(|index| (0..times(index)).map(|_| *index)).collect();
        all[usize::try_from(offset).expect("small") % all.len()]
    }

    fn allocate(
        &mut self,
        mode: PolicyMode,
        bits: u64,
        home: usize,
        offset: Option<u64>,
    ) -> Outcome {
        let usable = bits & WITH_MEMORY;
        let nodes: Vec<usize> = (0..NODES).filter(|index| usable >> index & 1 != 0).collect();
        let takes_set =
            !matches!(mode, PolicyMode::Default | PolicyMode::Local | PolicyMode::Preferred);
        if takes_set && usable == 0 {
            self.without_memory += 1;
            let set = (0..=NODES).filter(|index| bits >> index & 1 != 0);
            let set = set.map(node).fold(NodeMask::EMPTY, NodeMask::with);
            return Outcome::Refused(PolicyError::NoMemory(set));
        }
        let before = self.cursor;
        let none = || {
            let order = order(RUN);
            Outcome::Refused(PolicyError::Request(AllocateError::OutOfMemory { order }))
        };
        let (wanted, served) = match mode {
            PolicyMode::Default | PolicyMode::Local => (home, self.serves(home, u64::MAX)),
            PolicyMode::Preferred => {
                let first = nodes.first().copied().unwrap_or(bits.trailing_zeros() as usize);
                (first, self.serves(first, u64::MAX))
            }
            PolicyMode::Bind => {
                let wanted = self.nearest(home, usable);
                let served = self.serves(home, usable);
                if served.is_none() {
                    self.counts[wanted].refused += 1;
                    let set = nodes.iter().copied().map(node);
                    let nodes = set.fold(NodeMask::EMPTY, NodeMask::with);
                    let order = order(RUN);
                    return Outcome::Refused(PolicyError::OutOfMemory { order, nodes });
                }
                (wanted, served)
            }
            PolicyMode::PreferredMany => {
                let served = self.serves(home, usable).or_else(|| self.serves(home, u64::MAX));
                (self.nearest(home, usable), served)
            }
            PolicyMode::Interleave | PolicyMode::WeightedInterleave => {
                let weighted = mode == PolicyMode::WeightedInterleave;
                let turn = match offset {
                    Some(offset) => self.turn_at(&nodes, weighted, offset),
                    None => self.turn(&nodes, weighted),
                };
                let served = self.serves(turn, u64::MAX);
                if served == Some(turn) {
                    self.counts[turn].interleave += RUN_PAGES;
                }
                (turn, served)
            }
        };
        let Some(served) = served else {
            self.cursor = before;
            return none();
        };
        Outcome::Served(served, wanted)
    }

    fn count(&mut self, served: usize, wanted: usize, local: usize) {
        if served == wanted {
            self.counts[served].hit += RUN_PAGES;
        } else {
            self.counts[served].miss += RUN_PAGES;
            self.counts[wanted].foreign += RUN_PAGES;
        }
        let of_cpu = &mut self.counts[served];
        if served == local { of_cpu.local += RUN_PAGES } else { of_cpu.other += RUN_PAGES }
    }
}

fn run(history: &[Step]) {
    let machine = machine();
    let parameters = parameters("min_free_kbytes=4096");
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    let numa = manager.numa();
    let all = || core::array::from_fn::<_, NODES, _>(|index| numa.counts(node(index)));
    let start = all();
    let mut model = Model {
        manager: &manager,
        cursor: (MAX_NODES - 1, 0),
        weights: [1; NODES],
        counts: start,
        without_memory: 0,
    };
    let (mut cursor, mut held) = (InterleaveCursor::START, Vec::<PfnRange>::new());
    for step in history {
        match *step {
            Step::Free(which) if !held.is_empty() => {
                let run = held.swap_remove(which % held.len());
                manager.give_back(run).expect("allocated");
            }
            Step::Free(_) => {}
            Step::Weight(index, weight) => {
                let is_set = numa.set_weight(node(index), weight).is_ok();
                assert_eq!(is_set, weight != 0);
                if is_set {
                    model.weights[index] = weight;
                }
            }
            Step::Allocate { mode, bits, cpu, home, offset } => {
                let mode = PolicyMode::ALL[mode];
                let set = (0..=NODES).filter(|index| bits >> index & 1 != 0).map(node);
                let set = set.fold(NodeMask::EMPTY, NodeMask::with);
                let takes_none = matches!(mode, PolicyMode::Default | PolicyMode::Local);
                let set = if takes_none { NodeMask::EMPTY } else { set };
                let Ok(policy) = NumaPolicy::new(mode, set) else {
                    assert!(set.is_empty());
                    continue;
                };
                // Preferring no node means local, and a node that does not exist cannot be
                // preferred.
                if mode == PolicyMode::Preferred && (bits == 0 || bits.trailing_zeros() >= 5) {
                    continue;
                }
                let local = machine.node_of_cpu(cpu).index();
                let choice = home.map_or(NodeChoice::Any, |home| NodeChoice::Preferred(node(home)));
                let request = Request { node: choice, ..Request::new(order(RUN)) };
                let expected = model.allocate(mode, bits, home.unwrap_or(local), offset);
                let found = machine.run_on(cpu, || match offset {
                    Some(offset) => numa.allocate_at_offset(&request, &policy, offset),
                    None => numa.allocate(&request, &policy, &mut cursor),
                });
                let outcome = match found {
                    Ok(placed) => {
                        assert!(
                            placed.range.start.address() >> 32 == placed.node().index() as u64 + 1
                        );
                        held.push(placed.range);
                        model.count(placed.node().index(), placed.wanted.index(), local);
                        Outcome::Served(placed.node().index(), placed.wanted.index())
                    }
                    Err(error) => Outcome::Refused(error),
                };
                assert_eq!(outcome, expected, "{step:?}");
                let (last, rest) = (cursor.node().index(), u64::from(cursor.rest()));
                assert_eq!((last, rest), model.cursor, "{step:?}");
            }
        }
        assert_eq!(all(), model.counts, "{step:?}");
        assert_eq!(numa.without_memory(), model.without_memory);
    }
    for run in held {
        manager.give_back(run).expect("allocated");
    }
    check(&manager);
    let weights = Weights::new(&model.weights.map(|weight| u8::try_from(weight).expect("small")));
    assert_eq!(numa.weights(), weights.expect("weights"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_request_goes_where_the_model_says(
        history in proptest::collection::vec(step(), 1..120),
    ) {
        run(&history);
    }
}
