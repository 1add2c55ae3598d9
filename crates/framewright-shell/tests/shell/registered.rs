//! Movable memory that files, pools and requests move, rather than a command, while there is any.

use crate::common::{self, Fake, Threads, machine};
use framewright::hugetlb::PoolSize;
use framewright::manager::{Begun, Budget};
use framewright::procfs::FileSystem;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::{Manager, MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{Handles, Placed, Relay};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the stress test waits for moves.
const PATIENCE: Duration = Duration::from_millis(20);
const COMPACT: &str = "echo 1 > /proc/sys/vm/compact_memory";

/// Runs each text in one shell, with other work in between, and frees everything.
fn with_shell(manager: &Fake, host: &Threads, used: impl FnOnce(&mut dyn FnMut(&str) -> String)) {
    common::with_shell(manager, host, |run| {
        used(&mut |text| {
            let (status, out, errors) = run(text);
            assert_eq!((status, errors.as_str()), (0, ""), "{text}: {out}");
            out
        });
    });
}

fn in_use(manager: &Fake) -> u64 {
    manager.totals().allocated_pages - manager.caches().pages()
}

fn moved(manager: &Fake) -> u64 {
    manager.moving().events().moved_pages
}

#[test]
fn writing_to_files_compacts_what_there_is() {
    let (manager, host) = machine("", [128, 64], 1000);
    let before = in_use(&manager);
    with_shell(&manager, &host, |run| {
        run(COMPACT);
        assert_eq!(moved(&manager), 0);
        run("movable fill 70");
        let filled = moved(&manager);
        let text = run(&format!("{COMPACT}; movable check; cat /proc/vmstat"));
        let vmstat: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once(' ')).collect();
        let number = |name: &str| vmstat[name].parse::<u64>().expect("a number");
        assert!(number("pgmigrate_success") > filled + 1000, "{text}");
        assert!(number("compact_isolated") > 1000 && number("compact_blocks") > 5, "{text}");
        // Once more with new holes, and on one node only.
        run("movable free; movable fill 60 seed 2");
        let filled = moved(&manager);
        run("echo 1 > /sys/devices/system/node/node1/compact; movable check");
        assert!(moved(&manager) > filled + 100);
        run("movable fill 65 seed 3; movable check; movable free");
        let last = moved(&manager);
        run(COMPACT);
        assert_eq!((moved(&manager), in_use(&manager)), (last, before));
        // A table that ends with the shell.
        run("movable fill 50");
    });
    let last = moved(&manager);
    FileSystem::new(&[&manager.files()]).write("/proc/sys/vm/compact_memory", "1").ok();
    assert_eq!((moved(&manager), in_use(&manager)), (last, before));
    // Another shell on this host.
    with_shell(&manager, &host, |run| {
        run(&format!("movable fill 60; {COMPACT}; movable check"));
        assert!(moved(&manager) > last + 1000);
    });
    manager.verify().expect("the tables are right");
    assert_eq!(in_use(&manager), before);
}

#[test]
fn without_a_relay_nothing_is_registered() {
    let (manager, mut host) = machine("", [128, 64], 1000);
    host.relay = None;
    with_shell(&manager, &host, |run| {
        run(&format!("movable fill 60; {COMPACT}; movable check"));
        assert_eq!(moved(&manager), 0);
        run("compact; movable check");
        assert!(moved(&manager) > 1000);
    });
}

#[test]
fn pools_get_pages_where_no_block_is_free() {
    let (manager, host) = machine("", [128, 64], 1000);
    with_shell(&manager, &host, |run| {
        run("movable fill 60");
        let whole: u64 = manager.views().map(|zone| zone.free_block_pages() / 512).sum();
        let wanted = whole + 15;
        run(&format!("resize 2M {wanted}; movable check"));
        let pool = manager.pool(PoolSize::TwoMib);
        assert_eq!(pool.counts().all.free, wanted, "{whole} blocks were whole");
        assert!(moved(&manager) > 500);
        run("resize 2M 0; movable check; movable free");
    });
}

/// Ends the other thread, even if this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table that records calls that come after it was closed, and moves that were under way then.
struct Watched<'t> {
    table: &'t Handles<'t, FakeMachine>,
    is_closed: AtomicBool,
    moves: AtomicU64,
    /// The table is closed once more than this many moves are under way.
    enough: u64,
    /// Whether the table is about to be closed.
    is_seen: AtomicBool,
    late: &'t AtomicU64,
}

impl Watched<'_> {
    fn look(&self) {
        self.late.fetch_add(u64::from(self.is_closed.load(Ordering::SeqCst)), Ordering::SeqCst);
    }
}

// SAFETY: the table is a mover.
unsafe impl Mover for Watched<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        self.look();
        self.table.occupant(pfn)
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let token = self.table.begin(run)?;
        self.moves.fetch_add(1, Ordering::SeqCst);
        self.look();
        Ok(token)
    }

    fn settle(&self, _begun: &[Begun]) {
        // Waits until the table is being closed, however busy this machine is.
        let began = Instant::now();
        while self.moves.load(Ordering::SeqCst) > self.enough
            && !self.is_seen.load(Ordering::SeqCst)
            && began.elapsed() < PATIENCE
        {
            std::thread::yield_now();
        }
        self.look();
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        // SAFETY: as for this function.
        let moved = unsafe { self.table.relocate(token, run, to) };
        self.moves.fetch_sub(1, Ordering::SeqCst);
        self.look();
        moved
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        // SAFETY: as for this function.
        unsafe { self.table.abort(token, run) };
        self.moves.fetch_sub(1, Ordering::SeqCst);
        self.look();
    }
}

/// A table is opened, used and closed again and again while another CPU compacts, so that it is
/// closed in the middle of calls and of moves that have begun.
#[test]
fn a_table_is_closed_while_another_cpu_moves_its_runs() {
    let (manager, _) = machine("", [32, 16], 1000);
    let manager: &Manager<FakeMachine> = &manager;
    let relay: &'static Relay = Box::leak(Box::new(Relay::new()));
    let (is_over, late) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = in_use(manager);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            manager.platform().run_on(1, || {
                while !is_over.load(Ordering::Relaxed) {
                    // At times there is no mover.
                    let _ = manager.moving().compact(None, u64::MAX, Budget::UNLIMITED);
                }
            });
        });
        let _ends = Ends(&is_over);
        let mut interrupted = 0;
        for round in 0..100 {
            // The table is leaked if the test fails, because the other thread may still use it.
            let place = Box::into_raw(Box::new(Handles::new(manager, 1 << 13).expect("memory")));
            // SAFETY: a box's, which is freed below.
            let table = unsafe { &*place };
            for _ in 0..3000 {
                table.allocate(Order::PAGE).expect("memory");
            }
            for handle in table.held().filter(|handle| handle.0 % 3 != round % 3) {
                table.free(handle).expect("held");
            }
            manager.drain().expect("all in order");
            let watched = Box::leak(Box::new(Watched {
                table,
                is_closed: AtomicBool::new(false),
                moves: AtomicU64::new(0),
                enough: u64::from(round % 32),
                is_seen: AtomicBool::new(false),
                late: &late,
            }));
            // SAFETY: what is watched goes after what this returns was dropped.
            let open = unsafe { relay.open(manager, watched) }.expect("closed before");
            // SAFETY: nothing is opened.
            assert!(unsafe { relay.open(manager, watched) }.is_none());
            // Until moves are under way or no page is left to move.
            let began = Instant::now();
            while watched.moves.load(Ordering::SeqCst) <= watched.enough
                && began.elapsed() < PATIENCE
            {
                std::thread::yield_now();
            }
            interrupted += u32::from(watched.moves.load(Ordering::SeqCst) != 0);
            watched.is_seen.store(true, Ordering::SeqCst);
            drop(open);
            watched.is_closed.store(true, Ordering::SeqCst);
            assert_eq!(watched.moves.load(Ordering::SeqCst), 0, "moves have ended");
            table.held().for_each(|handle| table.check(handle).expect("intact"));
            assert_eq!(late.load(Ordering::SeqCst), 0, "nobody calls what is closed");
            // SAFETY: made above, and used by nobody any more.
            drop(unsafe { Box::from_raw(place) });
        }
        assert!(interrupted > 0, "none was closed while runs moved");
    });
    manager.verify().expect("the tables are right");
    assert_eq!(in_use(manager), before);
}

#[test]
fn a_relay_belongs_to_one_manager() {
    let ((first, _), (second, _)) = (machine("", [32, 16], 0), machine("", [32, 16], 0));
    let relay: &'static Relay = Box::leak(Box::new(Relay::new()));
    let table = |manager| {
        let table = Handles::new(manager, 64).expect("memory");
        Placed::new(manager, table).expect("memory")
    };
    let (mine, other) = (table(&first), table(&second));
    // SAFETY: the tables are in frames, and freed after what this returns was dropped.
    let open = |manager, table: &Handles<'_, _>| unsafe { relay.open(manager, table) };
    drop(open(&first, &mine).expect("new"));
    assert!(open(&second, &other).is_none(), "calls of the first may be under way");
    drop(open(&first, &mine).expect("closed"));
}
