//! A process as a machine: large and sparse maps, CPUs, barriers, and memory that is populated and
//! discarded.

use framewright::firmware::{MapBuilder, MapRange, MemoryKind};
use framewright::platform::{IrqState, PinnedCpu, Platform};
use framewright::units::{NodeId, PhysRange};
use framewright_hosted::{CpuToken, HostedError, HostedPlatform, Layout, Machine};
use std::cell::Cell;
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn open(ranges: &[(u64, u64)], cpus: u32) -> Result<HostedPlatform, HostedError> {
    let mut storage = [MapRange::EMPTY; 64];
    let mut map = MapBuilder::new(&mut storage);
    for &(start, size) in ranges {
        map.add(start, size, MemoryKind::Conventional).unwrap();
    }
    HostedPlatform::open(map.finish().unwrap(), cpus)
}

/// A word of physical memory, which only the test uses.
fn word(platform: &HostedPlatform, pa: u64) -> &AtomicU64 {
    // SAFETY: the address is present memory of a machine without a manager, readable, writable and
    // aligned; all accesses are atomic.
    unsafe { platform.direct(pa).cast::<AtomicU64>().as_ref() }
}

/// Checks that in every present range distances in the process equal physical distances, and that 2
/// MiB alignment is kept.
fn check_linear(platform: &HostedPlatform) {
    for range in platform.present() {
        let base = platform.direct(range.start).addr().get() as u64;
        for offset in [0, 1, range.size() / 2, range.size() - 1] {
            assert_eq!(platform.direct(range.start + offset).addr().get() as u64, base + offset);
        }
        assert_eq!(base % (2 * MIB), range.start % (2 * MIB));
    }
}

#[test]
fn a_machine_of_24_tib_costs_what_is_touched() {
    let platform = open(&[(0, 2 * GIB), (4 * GIB, 24 * TIB)], 1).unwrap();
    assert_eq!(platform.layout(), Layout::Linear);
    assert_eq!(platform.direct_limit(), 24 * TIB + 4 * GIB);
    check_linear(&platform);
    assert_eq!(platform.resident_bytes().unwrap(), 0);
    let (low, high) = (0x1000, 24 * TIB + 4 * GIB - 8);
    assert_eq!(word(&platform, low).load(Ordering::Relaxed), 0);
    word(&platform, low).store(1, Ordering::Relaxed);
    word(&platform, high).store(2, Ordering::Relaxed);
    assert_eq!(
        word(&platform, low).load(Ordering::Relaxed)
            + word(&platform, high).load(Ordering::Relaxed),
        3
    );
    let resident = platform.resident_bytes().unwrap();
    assert!((8192..=4 * MIB).contains(&resident), "{resident}");
}

#[test]
fn a_machine_that_lies_askew_is_aligned_to_pages_only() {
    let mut storage = [MapRange::EMPTY; 8];
    let mut map = MapBuilder::new(&mut storage);
    map.add(0, 2 * GIB, MemoryKind::Conventional).unwrap();
    map.add(4 * GIB, GIB, MemoryKind::Conventional).unwrap();
    let platform = HostedPlatform::open_askew(map.finish().unwrap(), 1).unwrap();
    let base = platform.direct(0x1000).addr().get() as u64 - 0x1000;
    assert_eq!(base % 4096, 0);
    assert_ne!(base % (8 << 10), 0);
    assert_eq!(platform.direct(5 * GIB - 1).addr().get() as u64, base + 5 * GIB - 1);
    word(&platform, 5 * GIB - 8).store(7, Ordering::Relaxed);
    // SAFETY: only this test uses the machine.
    unsafe { platform.discard(PhysRange::new(5 * GIB - 4096, 5 * GIB)) }.unwrap();
    assert_eq!(word(&platform, 5 * GIB - 8).load(Ordering::Relaxed), 0);
}

#[test]
fn a_sparse_map_of_52_bits_is_compacted() {
    let top = 1 << 52;
    let ranges = [(0x10_0000, GIB), (100 * TIB + 0x5000, 64 * MIB), (top - 3 * MIB, 3 * MIB)];
    let platform = open(&ranges, 1).unwrap();
    assert_eq!(platform.layout(), Layout::Compact);
    assert!(platform.reserved_bytes() < 2 * GIB, "{platform}");
    assert_eq!(platform.direct_limit(), top);
    check_linear(&platform);
    for (index, range) in (1..).zip(platform.present()) {
        word(&platform, range.end - 8).store(index, Ordering::Relaxed);
    }
    for (index, range) in (1..).zip(platform.present()) {
        assert_eq!(word(&platform, range.end - 8).load(Ordering::Relaxed), index);
    }
    let hole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| platform.direct(50 * TIB)));
    assert!(hole.is_err(), "a hole has no address");
}

#[test]
fn what_cannot_be_reserved_is_said() {
    let error = open(&[(0, 4000 * TIB)], 1).unwrap_err();
    let HostedError::CannotReserve { needed_bytes, limit_bytes, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*needed_bytes, 4000 * TIB);
    assert!((GIB..128 * TIB).contains(limit_bytes), "{limit_bytes}");
    assert!(error.to_string().contains("can reserve at most"), "{error}");
    assert!(matches!(open(&[(0, GIB)], 0), Err(HostedError::CpuCount { cpus: 0 })));
}

#[test]
fn memory_comes_and_goes() {
    let platform = open(&[(0, 64 * MIB)], 1).unwrap();
    let range = PhysRange::new(16 * MIB, 24 * MIB);
    // SAFETY: no manager and no other user of this memory exists.
    unsafe { platform.prefault(range, 0xa5) }.unwrap();
    let resident = platform.resident_bytes().unwrap();
    assert!((8 * MIB..=12 * MIB).contains(&resident), "{resident}");
    assert_eq!(word(&platform, 24 * MIB - 8).load(Ordering::Relaxed), 0xa5a5_a5a5_a5a5_a5a5);
    // SAFETY: as above.
    unsafe { platform.discard(range) }.unwrap();
    assert!(platform.resident_bytes().unwrap() <= resident - 8 * MIB);
    assert_eq!(word(&platform, 24 * MIB - 8).load(Ordering::Relaxed), 0);
    for wrong in [
        PhysRange::new(0, 2 * MIB),
        PhysRange::new(63 * MIB, 65 * MIB),
        PhysRange::new(MIB, MIB),
        PhysRange::new(TIB, TIB + 1),
    ] {
        // SAFETY: as above.
        let refused = unsafe { platform.prefault(wrong, 0) };
        assert!(matches!(refused, Err(HostedError::NotMemory { .. })), "{wrong:?}");
    }
    // SAFETY: as above.
    let odd = unsafe { platform.discard(PhysRange::new(MIB + 1, 2 * MIB)) };
    assert!(matches!(odd, Err(HostedError::Unaligned { .. })));
}

#[test]
fn shared_memory_is_discarded_too() {
    let mut storage = [MapRange::EMPTY; 8];
    let mut map = MapBuilder::new(&mut storage);
    map.add(0, 64 * MIB, MemoryKind::Conventional).unwrap();
    let platform = HostedPlatform::open_shared(map.finish().unwrap(), 1).unwrap();
    let range = PhysRange::new(16 * MIB, 24 * MIB);
    // SAFETY: no manager and no other user of this memory exists.
    unsafe { platform.prefault(range, 0xa5) }.unwrap();
    let resident = platform.resident_bytes().unwrap();
    // SAFETY: as above.
    unsafe { platform.discard(range) }.unwrap();
    assert!(platform.resident_bytes().unwrap() <= resident - 8 * MIB);
    assert_eq!(word(&platform, 24 * MIB - 8).load(Ordering::Relaxed), 0);
}

#[test]
fn threads_are_cpus_with_different_numbers() {
    let platform = open(&[(0, 64 * MIB)], 4).unwrap();
    assert_eq!(platform.cpus(), 4);
    let (both, pins) = (Barrier::new(2), Barrier::new(2));
    let (platform, both, pins) = (&platform, &both, &pins);
    std::thread::scope(|scope| {
        let cpus: Vec<_> = (0..2)
            .map(|index| {
                scope.spawn(move || {
                    let token = platform.enter_cpu(index).unwrap();
                    assert_eq!(token.index(), index);
                    both.wait();
                    assert!(matches!(
                        platform.enter_cpu(1 - index),
                        Err(HostedError::AlreadyCpu { .. })
                    ));
                    let cpu = platform.pin();
                    let again = platform.pin();
                    assert_eq!((cpu.index(), again.index()), (index, index));
                    unpin(platform, again);
                    platform.cpu_barrier();
                    pins.wait();
                    let number = cpu.index();
                    unpin(platform, cpu);
                    number
                })
            })
            .collect();
        let numbers: Vec<u32> = cpus.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(numbers, [0, 1]);
    });
    let token = platform.enter_cpu(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(platform.enter_cpu(0), Err(HostedError::CpuTaken { cpu: 0 })))
        });
    });
    drop(token);
    drop(platform.enter_cpu(0).unwrap());
    assert!(matches!(platform.enter_cpu(4), Err(HostedError::NoSuchCpu { cpu: 4, cpus: 4 })));
}

#[test]
fn a_thread_that_never_entered_borrows_a_number() {
    let platform = open(&[(0, 64 * MIB)], 2).unwrap();
    let cpu = platform.pin();
    assert_eq!(cpu.index(), 0, "the thread that made the machine is CPU 0");
    assert!(matches!(platform.enter_cpu(1), Err(HostedError::AlreadyCpu { cpu: 0 })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = platform.pin();
            assert_eq!(other.index(), 1);
            unpin(&platform, other);
            // A second machine on this thread has its own numbers.
            let second = open(&[(0, 64 * MIB)], 1).unwrap();
            let (here, there) = (second.pin(), platform.pin());
            assert_eq!((here.index(), there.index()), (0, 1));
            unpin(&second, here);
            unpin(&platform, there);
            drop(platform.enter_cpu(1).unwrap());
        });
    });
    unpin(&platform, cpu);
    // If a token is dropped while its thread is pinned, the thread keeps the number until it
    // unpins.
    let token = platform.enter_cpu(1).unwrap();
    let cpu = platform.pin();
    drop(token);
    let inner = platform.pin();
    assert_eq!((cpu.index(), inner.index()), (1, 1));
    unpin(&platform, inner);
    unpin(&platform, cpu);
    drop(platform.enter_cpu(1).unwrap());
}

#[test]
fn a_cpu_is_lent_to_a_thread_that_waits_for_one() {
    let platform = open(&[(0, 64 * MIB)], 1).unwrap();
    let token = platform.enter_cpu(0).unwrap();
    // Nobody waits, and then nobody may take the number, as this thread is pinned.
    platform.lend_cpu();
    let is_pinned = AtomicBool::new(true);
    let cpu = platform.pin();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..3 {
                let cpu = platform.pin();
                assert!(!is_pinned.load(Ordering::Acquire), "the number was lent while in use");
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let refused = platform.enter_cpu(0).unwrap_err();
                        assert!(matches!(refused, HostedError::CpuTaken { cpu: 0 }));
                    });
                });
                unpin(&platform, cpu);
            }
        });
        for _ in 0..1000 {
            platform.lend_cpu();
            std::thread::yield_now();
        }
        is_pinned.store(false, Ordering::Release);
        unpin(&platform, cpu);
        while !other.is_finished() {
            platform.lend_cpu();
        }
        other.join().unwrap();
    });
    // The number is this thread's again.
    let cpu = platform.pin();
    assert_eq!(cpu.index(), 0);
    unpin(&platform, cpu);
    drop(token);
    drop(platform.enter_cpu(0).unwrap());
}

/// What a thread yields for may be done by one that needs its number.
#[test]
fn a_number_is_lent_while_its_thread_yields() {
    let platform = open(&[(0, 64 * MIB)], 1).unwrap();
    let token = platform.enter_cpu(0).unwrap();
    let has_come = std::thread::scope(|scope| {
        let other = scope.spawn(|| unpin(&platform, platform.pin()));
        let began = std::time::Instant::now();
        while !other.is_finished() && began.elapsed().as_secs() < 60 {
            platform.yield_now();
        }
        let has_come = other.is_finished();
        drop(token);
        has_come
    });
    assert!(has_come);
}

/// Thread-local data of others may hold a number, and goes when it goes.
#[test]
fn numbers_come_back_from_thread_local_data() {
    thread_local! {
        static HELD: Cell<Option<CpuToken<'static>>> = const { Cell::new(None) };
    }
    let [one, other] = [0, 1].map(|_| open(&[(0, 64 * MIB)], 1).unwrap().leak());
    std::thread::spawn(move || {
        // What is used first goes last.
        HELD.set(None);
        HELD.set(Some(one.enter_cpu(0).unwrap()));
        unpin(other, other.pin());
    })
    .join()
    .unwrap();
    drop(one.enter_cpu(0).unwrap());
}

/// Undoes the last pin of this thread.
fn unpin(platform: &HostedPlatform, cpu: PinnedCpu) {
    // SAFETY: the pin is the last of this thread, and nothing here relies on a CPU.
    unsafe { platform.unpin(cpu) };
}

/// Restores what this thread saved last.
fn restore(platform: &HostedPlatform, state: IrqState) {
    // SAFETY: the state is the last that this thread saved.
    unsafe { platform.irq_restore(state) };
}

/// Many threads on a few CPU numbers: no two pinned threads share one.
#[test]
fn no_two_pinned_threads_share_a_number() {
    let platform = open(&[(0, 64 * MIB)], 3).unwrap();
    let users: [AtomicU32; 3] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..6_u32 {
            let (platform, users) = (&platform, &users);
            scope.spawn(move || {
                for round in 0..500_u32 {
                    let token = (round % 3 == 0)
                        .then(|| platform.enter_cpu(thread % 3))
                        .and_then(Result::ok);
                    let cpu = platform.pin();
                    let user = &users[cpu.index() as usize];
                    assert_eq!(user.fetch_add(1, Ordering::AcqRel), 0, "CPU {}", cpu.index());
                    platform.relax();
                    user.fetch_sub(1, Ordering::AcqRel);
                    unpin(platform, cpu);
                    platform.lend_cpu();
                    drop(token);
                }
            });
        }
    });
}

#[test]
fn interrupts_nest_and_the_clock_runs() {
    let platform = open(&[(0, 64 * MIB)], 1).unwrap();
    assert!(platform.interrupts_on() && platform.can_wait());
    let outer = platform.irq_save();
    let inner = platform.irq_save();
    restore(&platform, inner);
    assert!(!platform.interrupts_on() && !platform.can_wait());
    restore(&platform, outer);
    assert!(platform.interrupts_on());
    let first = platform.now_ns().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert!(platform.now_ns().unwrap() - first >= 2_000_000);
}

/// Two threads store at about one time and then look for each other's store; one calls `barrier`
/// between the two. Returns in how many rounds both missed the other's store.
fn rounds_missed_by_both(platform: &HostedPlatform, barrier: impl Fn()) -> u64 {
    let (x, y) = (word(platform, 4 * MIB), word(platform, 5 * MIB));
    [x, y].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    let [here, there, seen] = [const { AtomicU64::new(0) }; 3];
    let ended = AtomicBool::new(false);
    // Threads that are woken would come microseconds apart.
    let meet = |mine: &AtomicU64, other: &AtomicU64, step| {
        mine.store(step, Ordering::Release);
        let mut turns = 0_u32;
        while other.load(Ordering::Acquire) < step {
            turns += 1;
            if turns.is_multiple_of(1 << 10) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                meet(&there, &here, 2 * round - 1);
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                x.store(round, Ordering::Relaxed);
                std::sync::atomic::compiler_fence(Ordering::SeqCst);
                seen.store(y.load(Ordering::Relaxed), Ordering::Relaxed);
                meet(&there, &here, 2 * round);
            }
        });
        let (mut round, mut missed, start) = (0, 0, Instant::now());
        while !ended.load(Ordering::Relaxed) {
            round += 1;
            ended.store(start.elapsed() > Duration::from_millis(500), Ordering::Relaxed);
            meet(&here, &there, 2 * round - 1);
            if !ended.load(Ordering::Relaxed) {
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                y.store(round, Ordering::Relaxed);
                barrier();
                let found = x.load(Ordering::Relaxed);
                meet(&here, &there, 2 * round);
                missed += u64::from(found < round && seen.load(Ordering::Relaxed) < round);
            }
        }
        missed
    })
}

#[test]
fn the_barrier_orders_the_other_side() {
    let platform = open(&[(0, 64 * MIB)], 2).unwrap();
    assert_eq!(rounds_missed_by_both(&platform, || platform.cpu_barrier()), 0);
    // Otherwise this machine does not show what the barrier is good for.
    let without = || std::sync::atomic::compiler_fence(Ordering::SeqCst);
    if rounds_missed_by_both(&platform, without) == 0 {
        let line = "\nNOT POSSIBLE HERE: stores that are seen late without a barrier\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

#[test]
fn cpus_lie_on_their_nodes() {
    let text = "memory 0 +64M usable\nnode 1 memory 0 +64M\nnode 1 cpus 7,9\nnode 3 cpus 2\n";
    let machine = Machine::parse("sparse", text).unwrap();
    let platform =
        open(&[(0, 64 * MIB)], machine.cpu_count()).unwrap().with_cpu_nodes(&machine.cpu_nodes());
    let node = |index| NodeId::new(index).unwrap();
    let nodes: Vec<_> = (0..platform.cpus()).map(|cpu| platform.cpu_node(cpu)).collect();
    assert_eq!(nodes, [node(3), node(1), node(1)], "in ascending order of CPU numbers");
    assert_eq!([1, 3, 0].map(|index| platform.init_threads(node(index))), [2, 1, 1]);
    let none = Machine::parse("none", "memory 0 +64M usable\nnode 1 memory 0 +64M\n").unwrap();
    assert_eq!(none.cpu_nodes(), [node(1)]);
}

#[test]
fn a_made_up_machine_opens_and_lives_for_ever() {
    let machine = Machine::synthetic(8 * GIB, 2, 2).unwrap();
    let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
    let mut map = MapBuilder::new(&mut ranges);
    machine.load(&mut map, &mut framewright::firmware::Topology::new(&mut claims)).unwrap();
    let platform: &'static HostedPlatform =
        HostedPlatform::new(map.finish().unwrap(), machine.cpu_count()).unwrap();
    check_linear(platform);
    assert_eq!(platform.init_threads(NodeId::ZERO), 2, "without nodes every CPU helps");
    assert_eq!(
        platform.to_string(),
        "8191 MiB of memory in 10240 MiB of addresses (linear), 2 CPUs"
    );
}
