//! Pools against a model that moves one page at a time, in Linux's order: all counters of all nodes
//! are compared after every operation, on a machine whose other memory comes and goes.

use crate::common::{Fake, bring_up, gib, mib};
use framewright::Request;
use framewright::hugetlb::{NodeMask, PoolError, PoolSize};
use framewright::manager::Pool;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, Owner, PoolOwner};
use proptest::prelude::*;

const NODES: usize = 3;
/// Node 1 has no memory.
const WITH_MEMORY: [usize; 2] = [0, 2];

#[derive(Clone, Debug)]
enum Operation {
    Resize { pages: u64, nodes: u64 },
    ResizeNode { node: usize, pages: u64 },
    Overcommit(u64),
    Reserve { pages: u64, nodes: u64 },
    Unreserve(u64),
    Allocate { node: usize, exact: bool, reserved: bool },
    Commit(prop::sample::Index),
    Free(prop::sample::Index),
    FreeWrong(u64),
    Demote { node: Option<usize>, pages: u64 },
    Hold(u8),
    Release(prop::sample::Index),
}

fn operation() -> impl Strategy<Value = (bool, Operation)> {
    let node = 0..NODES;
    let nodes = prop_oneof![3 => Just(7_u64), 2 => 0_u64..8];
    let pages = prop_oneof![6 => 0_u64..9, 1 => 0_u64..1500, 1 => Just(u64::MAX)];
    let few = prop_oneof![8 => 0_u64..5, 1 => Just(u64::MAX)];
    let index = any::<prop::sample::Index>();
    let what = prop_oneof![
        4 => (pages.clone(), nodes.clone())
            .prop_map(|(pages, nodes)| Operation::Resize { pages, nodes }),
        3 => (node.clone(), pages).prop_map(|(node, pages)| Operation::ResizeNode { node, pages }),
        2 => (0_u64..6).prop_map(Operation::Overcommit),
        3 => (few.clone(), nodes).prop_map(|(pages, nodes)| Operation::Reserve { pages, nodes }),
        3 => few.clone().prop_map(Operation::Unreserve),
        8 => (node.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(node, exact, reserved)| Operation::Allocate { node, exact, reserved }),
        1 => index.clone().prop_map(Operation::Commit),
        6 => index.clone().prop_map(Operation::Free),
        1 => (0_u64..(6 << 18)).prop_map(Operation::FreeWrong),
        2 => (prop::option::of(node), few)
            .prop_map(|(node, pages)| Operation::Demote { node, pages }),
        1 => prop::sample::select(vec![9_u8, 12, 17, 18]).prop_map(Operation::Hold),
        1 => index.prop_map(Operation::Release),
    ];
    (prop::bool::weighted(0.7), what)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Node {
    nr: u64,
    free: u64,
    surplus: u64,
}

/// The pool of one page size, with the counters of `struct hstate` in `include/linux/hugetlb.h`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Model {
    nodes: [Node; NODES],
    reserved: u64,
    overcommit: u64,
    target: u64,
}

impl Model {
    fn sum(&self, of: fn(&Node) -> u64) -> u64 {
        self.nodes.iter().map(of).sum()
    }

    fn persistent(&self) -> u64 {
        self.sum(|node| node.nr - node.surplus)
    }

    fn available(&self) -> u64 {
        self.sum(|node| node.free) - self.reserved
    }

    fn read(pool: &Pool<'_, FakeMachine>) -> Self {
        let counts = pool.counts();
        let nodes = core::array::from_fn(|index| {
            let counts = pool.node_counts(node(index)).expect("exists");
            Node { nr: counts.nr, free: counts.free, surplus: counts.surplus }
        });
        Self {
            nodes,
            reserved: counts.reserved,
            overcommit: counts.overcommit,
            target: counts.target,
        }
    }
}

/// A page that the test has allocated: where it is, and whether freeing it restores a reservation.
struct Used {
    size: usize,
    page: PfnRange,
    node: usize,
    restore: bool,
}

struct Pair {
    manager: Fake,
    models: [Model; 2],
    used: Vec<Used>,
    held: Vec<PfnRange>,
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

fn mask(bits: u64) -> NodeMask {
    (0..NODES)
        .filter(|&index| bits >> index & 1 != 0)
        .map(node)
        .fold(NodeMask::EMPTY, NodeMask::with)
}

fn node_of(page: Pfn) -> usize {
    if page.address() >= 8 << 30 { 2 } else { 0 }
}

impl Pair {
    fn pool(&self, size: usize) -> Pool<'_, FakeMachine> {
        self.manager.pool(PoolSize::ALL[size])
    }

    /// A resize to `count` pages over all nodes that changes only the nodes of `nodes`.
    fn resized(&mut self, size: usize, count: u64, nodes: u64) {
        let after = Model::read(&self.pool(size));
        let before = self.models[size].clone();
        let allowed: Vec<usize> =
            WITH_MEMORY.into_iter().filter(|index| nodes >> index & 1 != 0).collect();
        let others = (0..NODES).filter(|index| !allowed.contains(index));
        for index in others {
            assert_eq!(after.nodes[index], before.nodes[index], "a node that was not to change");
        }
        assert_eq!((after.reserved, after.overcommit), (before.reserved, before.overcommit));
        assert_eq!(after.target, after.persistent());
        if count >= before.persistent() {
            // Surplus pages are converted first, then memory is allocated; the result is smaller
            // only if there is none.
            let wanted = count - before.persistent();
            let surplus: u64 = allowed.iter().map(|&index| before.nodes[index].surplus).sum();
            let converted = wanted.min(surplus);
            // If surplus pages suffice, all others that are free and unreserved leave the pool.
            let gone = before.sum(|node| node.surplus) - after.sum(|node| node.surplus) - converted;
            assert!(gone == 0 || converted == wanted, "{gone} left a pool that grows");
            let fresh = after.sum(|node| node.nr) + gone - before.sum(|node| node.nr);
            assert_eq!(after.sum(|node| node.free) + gone, before.sum(|node| node.free) + fresh);
            if fresh < wanted - converted {
                for &index in &allowed {
                    let request = Request {
                        node: NodeChoice::Exact(node(index)),
                        fail_fast: true,
                        ..Request::new(PoolSize::ALL[size].order())
                    };
                    assert!(self.manager.allocate(&request).is_err(), "node {index} had one more");
                }
            } else {
                assert_eq!(after.persistent(), count);
            }
        } else {
            // As many pages as possible are removed, one at a time; the cursor decides which node
            // gives the next.
            let over = |model: &Model, of: fn(&Node) -> u64| -> u64 {
                allowed.iter().map(|&index| of(&model.nodes[index])).sum()
            };
            let capacity = over(&before, |node| node.free.min(node.nr - node.surplus));
            let excess = before.persistent() - count;
            let removed = excess.min(before.available()).min(capacity);
            let stay = over(&before, |node| node.nr - node.surplus) - removed;
            let made = (excess - removed).min(stay);
            assert_eq!(after.persistent(), before.persistent() - removed - made);
            // All surplus pages that are free and unreserved are removed as well.
            let gone = before.sum(|node| node.nr) - after.sum(|node| node.nr);
            assert!(gone >= removed, "{gone} went, {removed} could");
            assert_eq!(after.available().min(over(&after, |node| node.free.min(node.surplus))), 0);
            for &index in &allowed {
                let gone = before.nodes[index].nr - after.nodes[index].nr;
                assert_eq!(before.nodes[index].free - after.nodes[index].free, gone);
            }
            if gone == removed {
                balanced(&allowed, |index| {
                    let Node { nr, free, surplus } = before.nodes[index];
                    (nr - after.nodes[index].nr, free.min(nr - surplus))
                });
            }
        }
        self.models[size] = after;
    }

    fn run(&mut self, size: usize, operation: Operation) {
        let gigantic = size == 1;
        let of = PoolSize::ALL[size];
        let mut model = self.models[size].clone();
        match operation {
            Operation::Resize { pages, nodes } => {
                let resized = self
                    .pool(size)
                    .resize_within(pages, mask(nodes), &NoHelpers)
                    .expect("nobody else resizes");
                assert_eq!(resized.wanted, pages);
                return self.resized(size, pages, nodes);
            }
            Operation::ResizeNode { node: index, pages } => {
                let others =
                    model.persistent() - (model.nodes[index].nr - model.nodes[index].surplus);
                self.pool(size).resize_node(node(index), pages, &NoHelpers).expect("exists");
                return self.resized(size, pages.saturating_add(others), 1 << index);
            }
            Operation::Overcommit(pages) => match self.pool(size).set_overcommit(pages) {
                Ok(()) => model.overcommit = pages,
                Err(error) => assert!(gigantic && error == PoolError::NotPossible(of)),
            },
            Operation::Reserve { pages, nodes } => {
                let fresh = pages.saturating_sub(model.available());
                let allowed = if gigantic {
                    0
                } else {
                    model.overcommit.saturating_sub(model.sum(|node| node.surplus))
                };
                match self.pool(size).reserve(pages, mask(nodes)) {
                    Ok(()) => {
                        assert!(fresh <= allowed);
                        model.reserved += pages;
                        let now = Model::read(&self.pool(size));
                        // The manager decides on which nodes it finds memory, but not how much in
                        // all.
                        let mut sum = 0;
                        for index in WITH_MEMORY {
                            let more = now.nodes[index].nr - model.nodes[index].nr;
                            assert!(more == 0 || nodes >> index & 1 != 0);
                            let Node { nr, free, surplus } = &mut model.nodes[index];
                            (*nr, *free, *surplus) = (*nr + more, *free + more, *surplus + more);
                            sum += more;
                        }
                        assert_eq!(sum, fresh);
                    }
                    Err(error) => {
                        assert_eq!(error, PoolError::NoPage(of));
                        let there: u64 = (0..NODES)
                            .filter(|index| nodes >> index & 1 != 0)
                            .map(|index| model.nodes[index].free)
                            .sum();
                        // It was refused for a reason: too many pages, pages on other nodes, or no
                        // memory.
                        assert!(fresh > 0 || there < pages);
                        // Free surplus pages may have left together with the pages that were
                        // allocated in vain.
                        let now = Model::read(&self.pool(size));
                        assert_eq!(
                            (now.reserved, now.persistent()),
                            (model.reserved, model.persistent())
                        );
                        model = now;
                    }
                }
            }
            Operation::Unreserve(pages) => {
                let before = model.clone();
                match self.pool(size).unreserve(pages) {
                    Ok(()) => {
                        model.reserved =
                            model.reserved.checked_sub(pages).expect("was refused otherwise");
                        let now = Model::read(&self.pool(size));
                        let mut gone = 0;
                        for (mine, theirs) in model.nodes.iter_mut().zip(&now.nodes) {
                            let less = mine.nr - theirs.nr;
                            *mine = Node {
                                nr: mine.nr - less,
                                free: mine.free - less,
                                surplus: mine.surplus - less,
                            };
                            gone += less;
                        }
                        let capacity: u64 =
                            before.nodes.iter().map(|node| node.free.min(node.surplus)).sum();
                        let most = pages.min(before.sum(|node| node.surplus)).min(capacity);
                        assert_eq!(gone, most.min(before.sum(|node| node.free) - model.reserved));
                        balanced(&WITH_MEMORY, |index| {
                            let Node { free, surplus, nr } = before.nodes[index];
                            (nr - now.nodes[index].nr, free.min(surplus))
                        });
                    }
                    Err(error) => {
                        assert_eq!(
                            error,
                            PoolError::NotReserved { pages, reserved: model.reserved }
                        );
                        assert!(pages > model.reserved);
                    }
                }
            }
            Operation::Allocate { node: first, exact, reserved } => {
                let choice = if exact {
                    NodeChoice::Exact(node(first))
                } else {
                    NodeChoice::Preferred(node(first))
                };
                // Nodes with memory, the wanted one first; from node 1 both are equally far.
                let order: Vec<usize> = match (first, exact) {
                    (1, true) => vec![],
                    (0 | 2, true) => vec![first],
                    (2, false) => vec![2, 0],
                    _ => vec![0, 2],
                };
                let may = if reserved { model.reserved != 0 } else { model.available() != 0 };
                let from = order.iter().copied().find(|&index| may && model.nodes[index].free != 0);
                let surplus = !gigantic && model.sum(|node| node.surplus) < model.overcommit;
                match self.pool(size).allocate(choice, reserved) {
                    Ok(page) => {
                        assert_eq!(page.pages(), of.frames());
                        assert!(page.start.is_aligned(of.order()));
                        assert!(
                            self.used.iter().all(|used| used.page.intersection(page).is_empty())
                        );
                        let index = node_of(page.start);
                        assert!(order.contains(&index));
                        match from {
                            Some(from) => {
                                assert_eq!(index, from);
                                model.nodes[index].free -= 1;
                            }
                            None => {
                                assert!(surplus && (!reserved || model.reserved != 0));
                                model.nodes[index].nr += 1;
                                model.nodes[index].surplus += 1;
                            }
                        }
                        model.reserved -= u64::from(reserved);
                        let is_kept = |node: &Node| node.free.min(node.surplus) != 0;
                        if reserved
                            && from.is_none()
                            && model.available() != 0
                            && model.nodes.iter().any(is_kept)
                        {
                            // The page that was kept for the reservation leaves; the cursor decides
                            // on which node.
                            let now = Model::read(&self.pool(size)).nodes;
                            let gone = now.iter().zip(&mut model.nodes);
                            let mut gone = gone.filter(|(now, node)| now.free + 1 == node.free);
                            let (_, node) = gone.next().expect("a page went");
                            assert!(is_kept(node));
                            node.nr -= 1;
                            node.free -= 1;
                            node.surplus -= 1;
                        }
                        self.used.push(Used { size, page, node: index, restore: reserved });
                    }
                    Err(PoolError::NotReserved { .. }) => assert!(reserved && model.reserved == 0),
                    Err(error) => {
                        assert_eq!(error, PoolError::NoPage(of));
                        assert!(from.is_none());
                    }
                }
            }
            Operation::Commit(slot) if !self.used.is_empty() => {
                let used = slot.get(&self.used);
                self.pool(used.size).commit(used.page.start).expect("is in use");
                let index = slot.index(self.used.len());
                self.used[index].restore = false;
                return;
            }
            Operation::Free(slot) if !self.used.is_empty() => {
                let used = self.used.swap_remove(slot.index(self.used.len()));
                self.pool(used.size).give_back_page(used.page.start).expect("is in use");
                let mut model = self.models[used.size].clone();
                model.reserved += u64::from(used.restore);
                let promised = model.sum(|node| node.free) < model.reserved;
                let node = &mut model.nodes[used.node];
                if node.surplus != 0 && !promised {
                    node.nr -= 1;
                    node.surplus -= 1;
                } else {
                    node.free += 1;
                }
                self.models[used.size] = model;
                return;
            }
            Operation::FreeWrong(pfn) => {
                let pfn = Pfn(pfn);
                if self.used.iter().all(|used| used.size != size || used.page.start != pfn) {
                    assert_eq!(
                        self.pool(size).give_back_page(pfn),
                        Err(PoolError::NotAllocated(pfn))
                    );
                }
            }
            Operation::Demote { node: on, pages } => {
                let result = match on {
                    Some(index) => self.pool(size).demote_node(node(index), pages),
                    None => self.pool(size).demote(pages),
                };
                if !gigantic {
                    assert_eq!(result, Err(PoolError::NotPossible(of)));
                } else if pages == 0 {
                    assert_eq!(result, Ok(0));
                } else {
                    let on_nodes =
                        WITH_MEMORY.into_iter().filter(|&index| on.is_none_or(|on| on == index));
                    let capacity: u64 = on_nodes
                        .map(|index| model.nodes[index])
                        .map(|node| node.free.min(node.nr - node.surplus))
                        .sum();
                    let expected = pages.min(model.available()).min(capacity);
                    assert_eq!(
                        result,
                        if expected == 0 { Err(PoolError::NothingToDemote) } else { Ok(expected) }
                    );
                    let now = Model::read(&self.pool(1));
                    let mut small = self.models[0].clone();
                    for index in WITH_MEMORY {
                        let gone = model.nodes[index].nr - now.nodes[index].nr;
                        assert!(gone == 0 || on.is_none_or(|on| on == index));
                        model.nodes[index].nr -= gone;
                        model.nodes[index].free -= gone;
                        small.nodes[index].nr += 512 * gone;
                        small.nodes[index].free += 512 * gone;
                    }
                    model.target -= expected;
                    small.target += 512 * expected;
                    self.models[0] = small;
                }
            }
            Operation::Hold(of) => {
                let order = Order::new(of).expect("an order");
                while let Ok(range) =
                    self.manager.allocate(&Request { fail_fast: true, ..Request::new(order) })
                {
                    self.held.push(range);
                    if self.held.len().is_multiple_of(7) {
                        break;
                    }
                }
                return;
            }
            Operation::Release(slot) if !self.held.is_empty() => {
                let range = self.held.swap_remove(slot.index(self.held.len()));
                self.manager.give_back(range).expect("was allocated");
                return;
            }
            Operation::Commit(_) | Operation::Free(_) | Operation::Release(_) => return,
        }
        self.models[size] = model;
    }

    fn check(&self) {
        crate::common::check(&self.manager);
        self.manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
        for (size, model) in self.models.iter().enumerate() {
            assert_eq!(&Model::read(&self.pool(size)), model);
        }
    }
}

/// Checks that a node which gave fewer pages than another, by more than one, had no more to give.
/// `of` returns how many pages a node gave and could give.
fn balanced(nodes: &[usize], of: impl Fn(usize) -> (u64, u64)) {
    let most = nodes.iter().map(|&index| of(index).0).max().unwrap_or(0);
    for &index in nodes {
        let (gave, could) = of(index);
        assert!(
            gave == could || gave + 1 >= most,
            "node {index} gave {gave} of {could}, another {most}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn pools_do_what_the_model_does(steps in prop::collection::vec(operation(), 1..60)) {
        if crate::common::is_careful() {
            // Filling all memory with poison again and again takes minutes, and makes the fake
            // memory real.
            return Ok(());
        }
        let machine = FakeMachine::builder()
            .ram(mib(1, 3072))
            .node(gib(0, 4), 0)
            .ram(gib(8, 10))
            .node(gib(8, 10), 2)
            .distance(0, 2, 20)
            .distance(0, 1, 20)
            .distance(1, 2, 30)
            .build();
        let manager = bring_up(machine);
        let free = crate::common::settled(&manager).free_pages;
        let mut pair =
            Pair { manager, models: Default::default(), used: Vec::new(), held: Vec::new() };
        for (small, operation) in steps {
            pair.run(usize::from(!small), operation);
            pair.check();
        }
        // All pages come back.
        for used in pair.used.drain(..).collect::<Vec<_>>() {
            pair.pool(used.size).give_back_page(used.page.start).expect("is in use");
        }
        for size in [0, 1] {
            let reserved = pair.pool(size).counts().reserved;
            pair.pool(size).unreserve(reserved).expect("are promised");
            pair.pool(size).resize(0, &NoHelpers).expect("nobody else resizes");
            prop_assert_eq!(pair.pool(size).counts().all.nr, 0);
        }
        for range in pair.held.drain(..).collect::<Vec<_>>() {
            pair.manager.give_back(range).expect("was allocated");
        }
        crate::common::check(&pair.manager);
        prop_assert_eq!(crate::common::settled(&pair.manager).free_pages, free);
        drop(pair);
        // SAFETY: the manager is gone, and nobody else knows the machine.
        unsafe { machine.retire() };
    }
}
