//! CPUs that go offline and come back: nothing is cached for an offline CPU, what the others may
//! keep follows the number of CPUs, and no page is lost however often CPUs come and go under
//! traffic.

use crate::common::{Fake, bring_up_with, check, idle_pages, mib, order, parameters, settled};
use framewright::manager::CpuError;
use framewright::memblock::NodeChoice;
use framewright::procfs::FileSystem;
use framewright::units::{NodeId, Order, PfnRange};
use framewright::zone::{MigrateType, ZoneKind};
use framewright::{Platform, Request};
use framewright_testkit::workload::{Held, Shared, Worker};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn up(line: &str, cpus: u32) -> Fake {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 256)).cpus(cpus).build();
    bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
}

/// Two nodes of 128 MiB with two CPUs each.
fn two_nodes() -> Fake {
    let machine = FakeMachine::builder()
        .ram(mib(4096, 4096 + 256))
        .node(mib(4096, 4096 + 128), 0)
        .node(mib(4096 + 128, 4096 + 256), 1)
        .cpus_on(0, 2)
        .cpus_on(1, 2)
        .build();
    bring_up_with(machine, &[], &parameters("")).expect("bring-up")
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// Allocates and frees pages, so that the CPU's cache holds some afterwards.
fn use_cpu(manager: &Fake, cpu: u32) {
    manager.platform().run_on(cpu, || {
        let held: Vec<_> = (0..100)
            .map(|_| manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("memory"))
            .collect();
        held.into_iter().for_each(|page| manager.give_back_order(page, Order::PAGE).expect("ours"));
        let odd = manager.allocate(&Request::pages(3)).expect("memory");
        manager.give_back(odd).expect("ours");
    });
}

fn kept(manager: &Fake, cpu: u32) -> u64 {
    manager.caches().cpu(cpu).expect("there is such a CPU").pages
}

fn most(manager: &Fake) -> Vec<u64> {
    let cpus = 0..manager.platform().cpus();
    cpus.map(|cpu| manager.caches().cpu(cpu).expect("there").most_pages).collect()
}

/// Idle pages and allocated pages, with empty caches. A block more or less may be in pieces.
fn books(manager: &Fake) -> (u64, u64) {
    let allocated_pages = settled(manager).allocated_pages;
    (idle_pages(manager), allocated_pages)
}

fn read(manager: &Fake, path: &str) -> String {
    let mut text = String::new();
    let files = manager.files();
    FileSystem::new(&[&files]).read(path, &mut text).expect("a file");
    text
}

#[test]
fn what_a_cpu_kept_goes_back_and_it_keeps_nothing_until_it_is_back() {
    for line in ["", "pages=inside", "page_owner=on", "zone_parts=4"] {
        let manager = up(line, 4);
        let before = books(&manager);
        (0..4).for_each(|cpu| use_cpu(&manager, cpu));
        let all = manager.caches().pages();
        assert!(line.contains("owner") || kept(&manager, 2) != 0, "{line}");
        assert_eq!(manager.cpus().offline(2), Ok(all), "{line}");
        assert_eq!((kept(&manager, 2), manager.cpus().count()), (0, 3));
        assert!(!manager.cpus().is_online(2) && manager.cpus().iter().eq([0, 1, 3]));
        check(&manager);
        // Wherever the offline CPU still runs, it is served but keeps nothing, before and after a
        // drain.
        use_cpu(&manager, 2);
        assert_eq!(kept(&manager, 2), 0, "{line}");
        settled(&manager);
        use_cpu(&manager, 2);
        assert_eq!(manager.caches().pages(), 0, "{line}");
        assert_eq!(manager.totals().allocated_pages, before.1);
        use_cpu(&manager, 1);
        let others = manager.caches().pages();
        assert_eq!(manager.cpus().online(2), Ok(others), "{line}");
        assert!(manager.cpus().is_online(2));
        use_cpu(&manager, 2);
        assert!(line.contains("owner") || kept(&manager, 2) != 0, "{line}");
        assert_eq!(books(&manager), before);
        check(&manager);
    }
}

#[test]
fn a_cpu_may_say_itself_that_it_is_back() {
    let manager = up("", 2);
    manager.cpus().offline(1).expect("another is there");
    manager.platform().run_on(1, || manager.cpus().online(1).expect("it was away"));
    use_cpu(&manager, 1);
    assert_ne!(kept(&manager, 1), 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let manager = up("", 3);
    let cpus = manager.cpus();
    use_cpu(&manager, 1);
    let before = (manager.totals(), manager.caches().pages());
    for cpu in [3, 4, u32::MAX] {
        let unknown = CpuError::Unknown { cpu, cpus: 3 };
        assert_eq!((cpus.offline(cpu), cpus.online(cpu)), (Err(unknown), Err(unknown)));
        assert!(!cpus.is_online(cpu));
    }
    manager.platform().run_on(2, || {
        assert_eq!(cpus.offline(2), Err(CpuError::Calling(2)));
        manager.platform().interrupt(|| {
            assert_eq!(cpus.offline(1), Err(CpuError::CannotWait));
            assert_eq!(cpus.online(1), Err(CpuError::CannotWait));
        });
    });
    assert_eq!(cpus.online(1), Err(CpuError::Online(1)));
    assert_eq!((manager.totals(), manager.caches().pages()), before);
    cpus.offline(1).expect("others are there");
    assert_eq!(cpus.offline(1), Err(CpuError::Offline(1)));
    cpus.offline(2).expect("this one is there");
    manager.platform().run_on(1, || {
        // Whichever CPU calls, one CPU has to stay online.
        assert_eq!(cpus.offline(0), Err(CpuError::Last(0)));
        assert_eq!(cpus.offline(1), Err(CpuError::Offline(1)));
    });
    assert_eq!(cpus.count(), 1);
    cpus.online(1).expect("it is away");
    cpus.online(2).expect("it is away");
    let alone = up("", 1);
    assert_eq!(alone.cpus().offline(0), Err(CpuError::Last(0)));
    assert_eq!(alone.cpus().online(0), Err(CpuError::Online(0)));
    check(&manager);
}

#[test]
fn what_others_may_keep_is_what_it_is_on_a_machine_without_the_absent_ones() {
    let manager = up("", 6);
    let (before, cpus) = (most(&manager), manager.cpus());
    for absent in [5, 1, 4, 2, 3] {
        cpus.offline(absent).expect("others are there");
        let count = cpus.count();
        let like = most(&up("", count))[0];
        let expected: Vec<u64> =
            (0..6).map(|cpu| if cpus.is_online(cpu) { like } else { 0 }).collect();
        assert_eq!(most(&manager), expected, "{count}");
        (0..6).for_each(|cpu| use_cpu(&manager, cpu));
        assert!((0..6).all(|cpu| kept(&manager, cpu) <= expected[cpu as usize]));
    }
    assert!(most(&manager)[0] > before[0]);
    for absent in [3, 5, 2, 1, 4] {
        cpus.online(absent).expect("it is away");
    }
    assert_eq!(most(&manager), before);
    // CPUs of the other node may keep what they kept before.
    let manager = two_nodes();
    let before = most(&manager);
    (0..4).for_each(|cpu| use_cpu(&manager, cpu));
    let theirs = kept(&manager, 0) + kept(&manager, 1);
    manager.cpus().offline(3).expect("others are there");
    let after = most(&manager);
    assert!(after[..2] == before[..2] && after[2] > before[2] && after[3] == 0, "{after:?}");
    assert_eq!(manager.caches().pages(), theirs);
    check(&manager);
}

#[test]
fn a_node_all_of_whose_cpus_are_gone_serves_others() {
    let manager = two_nodes();
    let before = books(&manager);
    let lists = |manager: &Fake| {
        ["node/has_cpu", "node/node0/cpulist", "node/node1/cpulist"]
            .map(|file| read(manager, &format!("/sys/devices/system/{file}")).trim().to_owned())
    };
    assert_eq!(lists(&manager), ["0-1", "0-1", "2-3"]);
    (0..4).for_each(|cpu| use_cpu(&manager, cpu));
    manager.cpus().offline(2).expect("others are there");
    assert_eq!(lists(&manager), ["0-1", "0-1", "3"]);
    manager.cpus().offline(3).expect("others are there");
    assert_eq!(lists(&manager), ["0", "0-1", ""]);
    assert_eq!(read(&manager, "/proc/zoneinfo").matches("cpu: 3").count(), 0);
    let far = Request { node: NodeChoice::Exact(node(1)), ..Request::new(order(0)) };
    let start = (4096 + 128) << 8;
    let mut held: Vec<PfnRange> = Vec::new();
    for pages in [1, 2, 3, 8, 512, 700] {
        let run = manager.allocate(&Request { pages, ..far }).expect("memory");
        assert!(run.start.0 >= start, "{run:?}");
        held.push(run);
    }
    // Allocates all of the memory, down to the last page.
    while let Ok(run) = manager.allocate(&far) {
        held.push(run);
    }
    let free = manager.zones().iter().filter(|zone| zone.id().node == node(1));
    assert!(free.map(|zone| zone.free_pages()).sum::<u64>() < 1000);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    assert_eq!(books(&manager), before);
    for cpu in [3, 2] {
        manager.cpus().online(cpu).expect("it is away");
        use_cpu(&manager, cpu);
        let zone = manager.caches().cpu(cpu).expect("there").zone;
        assert_eq!((zone.node, zone.kind), (node(1), ZoneKind::Normal));
    }
    assert_eq!(lists(&manager), ["0-1", "0-1", "2-3"]);
    assert_eq!(books(&manager), before);
    check(&manager);
}

/// Messages to and from one CPU's thread.
#[derive(Default)]
struct Post {
    /// The thread shall stop between two calls of the manager.
    stop: AtomicBool,
    /// The thread has stopped.
    stands: AtomicBool,
    rounds: AtomicU64,
}

impl Post {
    /// Waits for `flag`, or until the test is over because another thread has failed.
    fn wait_for(flag: &AtomicBool, wanted: bool, over: &AtomicBool) {
        while flag.load(Ordering::Acquire) != wanted && !over.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    }

    fn park(&self, over: &AtomicBool) {
        self.stop.store(true, Ordering::Release);
        Self::wait_for(&self.stands, true, over);
    }

    fn wake(&self, over: &AtomicBool) {
        self.stop.store(false, Ordering::Release);
        Self::wait_for(&self.stands, false, over);
    }

    /// A point at which the thread looks whether it shall stop.
    fn look(&self, over: &AtomicBool) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if self.stop.load(Ordering::Acquire) {
            self.stands.store(true, Ordering::Release);
            Self::wait_for(&self.stop, false, over);
            self.stands.store(false, Ordering::Release);
        }
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Rounds in which one CPU after the other goes offline, stands still, and comes back, while the
/// others allocate, free and drain. Some are taken offline before they stop, some after, some never
/// stop, and two threads take them offline.
fn come_and_go(manager: &Fake, rounds: u64) {
    const CPUS: u32 = 5;
    let before = books(manager);
    let (shared, stop) = (Shared::new(manager), AtomicBool::new(false));
    let posts: [Post; CPUS as usize] = Default::default();
    thread::scope(|scope| {
        let (posts, shared, stop) = (&posts, &shared, &stop);
        let turn = move |first: u64, of: &[u32]| {
            let failing = Stop(stop);
            for round in 0..rounds / 2 {
                let cpu = of[usize::try_from(round).expect("small") % of.len()];
                let post = &posts[cpu as usize];
                let cpus = manager.cpus();
                let kind = (round + first) % 3;
                if kind == 0 {
                    post.park(stop);
                }
                cpus.offline(cpu).expect("it is there");
                if kind == 1 {
                    post.park(stop);
                }
                assert_eq!(kept(manager, cpu), 0, "round {round}");
                if round % 8 == 0 {
                    manager.drain().expect("only good frames are cached");
                }
                thread::yield_now();
                assert!(!cpus.is_online(cpu) && kept(manager, cpu) == 0, "round {round}");
                if round % 2 == 0 && kind != 2 {
                    post.wake(stop);
                    cpus.online(cpu).expect("it is away");
                } else {
                    cpus.online(cpu).expect("it is away");
                    if kind != 2 {
                        post.wake(stop);
                    }
                }
            }
            std::mem::forget(failing);
        };
        // Stops the threads however the scope is left.
        let _stop = Stop(stop);
        for cpu in 1..CPUS {
            scope.spawn(move || {
                let _stop = Stop(stop);
                manager.platform().run_on(cpu, || {
                    let mut room = [Held::NOTHING; 64];
                    let mut worker = Worker::new(manager, shared, &mut room, u64::from(cpu));
                    let post = &posts[cpu as usize];
                    while !stop.load(Ordering::Relaxed) {
                        worker.run(20).unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"));
                        post.look(stop);
                    }
                    worker.finish().unwrap_or_else(|failure| panic!("CPU {cpu}: {failure}"));
                });
            });
        }
        let other = scope.spawn(move || manager.platform().run_on(CPUS, || turn(1, &[2, 4])));
        manager.platform().run_on(0, || turn(0, &[1, 3]));
        other.join().expect("no panic");
    });
    shared.settle(manager).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(posts[1..].iter().all(|post| post.rounds.load(Ordering::Relaxed) != 0));
    assert_eq!(manager.cpus().count(), CPUS + 1);
    assert_eq!((books(manager), manager.caches().pages()), (before, 0));
    check(manager);
}

#[test]
fn a_thousand_rounds_under_traffic_lose_no_page() {
    let rounds = std::env::var("HAMMER_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    for (line, rounds) in [("", rounds), ("pages=inside", rounds / 4), ("zone_parts=4", rounds / 4)]
    {
        come_and_go(&up(line, 6), rounds);
    }
}

#[test]
fn cpus_of_a_small_node_come_and_go() {
    let machine = FakeMachine::builder()
        .ram(mib(4096, 4096 + 40))
        .node(mib(4096, 4096 + 32), 0)
        .node(mib(4096 + 32, 4096 + 40), 1)
        .cpus_on(0, 1)
        .cpus_on(1, 3)
        .cpus_on(0, 2)
        .build();
    come_and_go(&bring_up_with(machine, &[], &parameters("")).expect("bring-up"), 200);
}
