//! Pages that are cached until their memory is needed, and the requests that reclaim them.

use crate::common::{Bench, Fake, Threads, machine, with_shell};
use framewright::procfs::{FileSystem, Source};
use framewright::{Frames, Manager, Platform, Reclaim, Request, Shortage};
use framewright_shell::{Host, Run, Shell};
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{CleanPages, Relay};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_cache_holds_what_others_leave_and_gives_it_up() {
    let bench = Bench::new("", [128, 64]);
    let (status, out, errors) = bench.run("cache; cache read 100M; cache free; cache");
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(out.starts_with("nothing is cached\n100 MiB cached; 0 KiB given up"), "{out}");
    assert!(out.ends_with("nothing is cached\nnothing is cached\n"), "{out}");
    // Reads twice as much as memory holds: requests reclaim the oldest pages, because nothing works
    // in the background.
    let before = bench.manager.pressure().events();
    let (status, out, errors) = bench.run("cache read 400M");
    assert_eq!((status, errors.as_str()), (0, ""));
    let after = bench.manager.pressure().events();
    assert!(after.reclaim_pages - before.reclaim_pages > 200 << 8, "{after:?}");
    assert_eq!(after.failures, before.failures);
    assert!(after.background_wakes > before.background_wakes);
    assert!(out.contains("cached") && !out.contains("not registered"), "{out}");
}

/// Requests get the memory they want from the cache, which never gives up more than it has.
#[test]
fn others_get_what_is_cached() {
    let (manager, host) = machine("", [128, 64], 1000);
    with_shell(&manager, &host, |run| {
        assert_eq!(run("cache read 180M").0, 0);
        let mut held = Vec::new();
        while let Ok(page) = manager.frames(&Request::pages(1)) {
            held.push(page);
        }
        let events = manager.pressure().events();
        assert!(held.len() as u64 > 170 << 8, "{}", held.len());
        assert!(events.reclaim_pages > 160 << 8, "{events:?}");
        let (status, out, errors) = run("cache; cache free");
        assert_eq!((status, errors.as_str()), (0, ""));
        assert!(out.starts_with("0 KiB cached; 18"), "{out}");
    });
    assert_eq!(manager.totals().allocated_pages, manager.caches().pages());
}

#[test]
fn a_cache_makes_room_in_the_background() {
    let (manager, host) = machine("", [128, 64], 1000);
    with_shell(&manager, &host, |run| {
        let mut freed = 0;
        for _ in 0..1200 {
            assert_eq!(run("cache read 256K").0, 0);
            freed += manager.pressure().reclaim_in_background();
        }
        let events = manager.pressure().events();
        assert!(freed > 80 << 8 && events.background_pages == freed, "{events:?}");
        assert_eq!(events.reclaim_pages, 0, "no request waited: {events:?}");
        let (status, out, errors) = run("cache; cat /proc/vmstat");
        assert_eq!((status, errors.as_str()), (0, ""));
        assert!(out.contains(&format!("pgsteal_kswapd {freed}\n")), "{out}");
        assert!(out.contains(&format!("pageoutrun {}\n", events.background_wakes)), "{out}");
    });
    assert_eq!(manager.totals().allocated_pages, manager.caches().pages());
}

/// Requests reclaim cached pages while other CPUs count every page.
#[test]
fn traffic_is_accounted_for_while_a_cache_gives_up_what_it_has() {
    let (manager, host) = machine("", [128, 64], 20_000_000);
    with_shell(&manager, &host, |run| {
        for command in ["stress 1", "cpu storm 30"] {
            assert_eq!(run("cache read 400M").0, 0);
            let before = manager.pressure().events().reclaim_pages;
            let (status, out, errors) = run(command);
            assert_eq!((status, errors.as_str()), (0, ""), "{out}");
            assert!(out.contains(", every page accounted for"), "{out}");
            assert!(manager.pressure().events().reclaim_pages > before, "{command}");
        }
    });
    assert_eq!(manager.totals().allocated_pages, manager.caches().pages());
}

/// A host that is in the middle of something whenever somebody looks, but for when all is quiet.
struct Restless<'a> {
    threads: Threads,
    manager: &'a Fake,
    has: Mutex<Option<Frames<'a, FakeMachine>>>,
}

impl Host for Restless<'_> {
    fn is_interrupted(&self) -> bool {
        let mut has = self.has.lock().expect("nobody panics");
        if has.is_none() {
            *has = self.manager.frames(&Request { fail_fast: true, ..Request::pages(1) }).ok();
        }
        false
    }

    fn on_each_cpu(&self, work: &(dyn Fn(u32) + Sync)) {
        self.threads.on_each_cpu(work);
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        self.threads.beside(others, own);
    }

    fn undisturbed(&self, work: &mut dyn FnMut()) {
        *self.has.lock().expect("nobody panics") = None;
        work();
    }
}

#[test]
fn pages_are_counted_when_nothing_works_in_the_background() {
    let (manager, threads) = machine("", [128, 64], 20_000_000);
    let host = Restless { threads, manager: &manager, has: Mutex::default() };
    let (files, mut room) = (manager.files(), [Run::NOTHING; 8]);
    let sources: [&dyn Source; 1] = [&files];
    // SAFETY: the commands free nothing by address, there is no window, and it is dropped here.
    let mut shell = unsafe { Shell::new(&manager, FileSystem::new(&sources), &host, &mut room) };
    let (mut out, mut errors) = (String::new(), String::new());
    let status = shell.run("stress 1; stress 2; cpu storm 20", &mut out, &mut errors);
    assert_eq!((status, errors.as_str()), (0, ""), "{out}");
    assert_eq!(out.matches(", every page accounted for").count(), 3, "{out}");
}

#[test]
fn wrong_words_and_machines_with_a_hook_of_their_own() {
    let mut bench = Bench::new("", [128, 64]);
    for (text, says) in [
        ("cache fill", "cache: expected read SIZE, free, or no argument\n"),
        ("cache read", "cache: expected read SIZE, free, or no argument\n"),
        ("cache read much", "cache: \"much\": "),
        ("cache free 3", "cache: expected read SIZE, free, or no argument\n"),
    ] {
        let (status, out, errors) = bench.run(text);
        assert!(status != 0 && out.is_empty() && errors.starts_with(says), "{text}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    // Nothing gives pages up: the command ends and says how far it came.
    bench.host.reclaim_relay = None;
    let (status, out, errors) = bench.run("cache read 10M; cache read 1G");
    assert!(
        status != 0 && errors.contains("out of memory") && errors.contains("after"),
        "{errors}"
    );
    assert!(out.contains("(not registered for reclaim)"), "{out}");
    // The command is interrupted.
    bench.host.looks.store(3, Ordering::Relaxed);
    let (status, ..) = bench.run("cache read 64M");
    assert_eq!(status, 130);
}

#[test]
fn damage_is_found_and_not_followed() {
    let (manager, _) = machine("", [64, 32], 1000);
    let cache = CleanPages::new(&manager);
    for _ in 0..100 {
        cache.add().expect("memory");
    }
    assert_eq!((cache.pages(), cache.damaged()), (100, None));
    let spoilt = cache.next().expect("some");
    let start = manager.platform().direct(spoilt.address()).cast::<u64>();
    // SAFETY: memory of the machine, which only this thread uses.
    unsafe { start.write_volatile(0x0123_4567_89ab_cdef) };
    cache.clear();
    assert_eq!((cache.damaged(), cache.next()), (Some(spoilt), None));
    assert_ne!(cache.pages(), 0, "who comes behind it nobody knows");
    manager.verify().expect("the tables are right");
}

/// Reclaims slowly, and says when it is called late.
struct Slow<'a> {
    is_inside: AtomicBool,
    is_closed: AtomicBool,
    late: &'a AtomicU64,
}

impl Reclaim for Slow<'_> {
    fn reclaim(&self, _: &Shortage) -> u64 {
        self.is_inside.store(true, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.late.fetch_add(u64::from(self.is_closed.load(Ordering::SeqCst)), Ordering::SeqCst);
        self.is_inside.store(false, Ordering::SeqCst);
        0
    }
}

/// A hook is removed only when no call is inside it.
#[test]
fn a_hook_is_closed_while_another_cpu_is_in_it() {
    let (manager, _) = machine("", [32, 16], 1000);
    let manager: &Manager<FakeMachine> = &manager;
    let relay: &'static Relay<dyn Reclaim> = Box::leak(Box::default());
    let late = AtomicU64::new(0);
    let mut held = Vec::new();
    while manager.pressure().background().is_none() {
        held.push(manager.frames(&Request::pages(1)).expect("memory"));
    }
    let is_over = AtomicBool::new(false);
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            manager.platform().run_on(1, || {
                while !is_over.load(Ordering::SeqCst) {
                    manager.pressure().reclaim_in_background();
                }
            });
        });
        let ends = Ends(&is_over);
        for _ in 0..10 {
            let hook = Slow { is_inside: false.into(), is_closed: false.into(), late: &late };
            // SAFETY: it goes after what this returns was dropped.
            let open = unsafe { relay.open(manager, &hook) }.expect("closed before");
            while !hook.is_inside.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            drop(open);
            hook.is_closed.store(true, Ordering::SeqCst);
            assert!(!hook.is_inside.load(Ordering::SeqCst), "nobody is in it");
        }
        drop(ends);
    });
    assert_eq!(late.load(Ordering::SeqCst), 0);
    drop(held);
    manager.verify().expect("the tables are right");
}

/// Pages are added, reclaimed and taken by other callers on two CPUs at once.
#[test]
fn a_cache_stands_traffic_on_several_cpus() {
    let (manager, _) = machine("", [32, 16], 1000);
    let manager: &Manager<FakeMachine> = &manager;
    let relay: &'static Relay<dyn Reclaim> = Box::leak(Box::default());
    let cache = CleanPages::new(manager);
    // SAFETY: the cache goes after what this returns was dropped.
    let open = unsafe { relay.open(manager, &cache) }.expect("new");
    let added = AtomicU64::new(0);
    let work = |cpu: u32| {
        manager.platform().run_on(cpu, || {
            for round in 0..40_000_u32 {
                // Other callers may have taken all that was left.
                added.fetch_add(u64::from(cache.add().is_ok()), Ordering::Relaxed);
                if round % 64 == 0 {
                    manager.pressure().reclaim_in_background();
                }
                if round % 16 == 0 {
                    drop(manager.frames(&Request::pages(1 + u64::from(round % 9))));
                }
            }
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0);
    });
    drop(open);
    assert_eq!(cache.pages() + cache.given_up(), added.load(Ordering::Relaxed));
    assert!(cache.given_up() > 20_000, "{}", cache.given_up());
    cache.clear();
    assert_eq!((cache.pages(), cache.damaged()), (0, None));
    manager.verify().expect("the tables are right");
}
