//! A CPU that sleeps while a page is unmapped, under every interleaving that the memory model
//! allows. The page is plain memory: the model fails if the CPU still accesses it after it got a
//! new owner.

use framewright_arch::paging::LazyFlush;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

struct Machine {
    cpu: LazyFlush,
    /// The page that the table maps.
    entry: AtomicUsize,
    pages: [Page; 2],
}

struct Page(UnsafeCell<u64>);

// SAFETY: the model checks whether accesses are ordered.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

impl Page {
    fn read(&self) -> u64 {
        self.0.with(|word| {
            // SAFETY: the model checker fails if another thread writes meanwhile.
            unsafe { *word }
        })
    }

    fn write(&self, value: u64) {
        self.0.with_mut(|word| {
            // SAFETY: the model checker fails if another thread accesses the word meanwhile.
            unsafe { *word = value }
        });
    }
}

#[test]
fn what_is_freed_behind_a_sleeping_cpu_is_not_used_by_it() {
    loom::model(|| {
        let pages = [Page(UnsafeCell::new(1)), Page(UnsafeCell::new(1))];
        let machine =
            Arc::new(Machine { cpu: LazyFlush::new(), entry: AtomicUsize::new(0), pages });
        let other = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || {
                machine.entry.store(1, Ordering::Release);
                if machine.cpu.defer() {
                    // The page is free and has a new owner; an access through the old translation
                    // would see this write.
                    machine.pages[0].write(0);
                }
                // Otherwise the CPU is interrupted, which another model covers; the page stays.
            })
        };
        let mut remembered = machine.entry.load(Ordering::Acquire);
        for _ in 0..2 {
            assert_eq!(machine.pages[remembered].read(), 1);
            machine.cpu.sleep();
            if machine.cpu.wake() {
                remembered = machine.entry.load(Ordering::Acquire);
                assert_eq!(remembered, 1, "a CPU that flushes sees the new entry");
            }
            assert_eq!(machine.pages[remembered].read(), 1);
        }
        other.join().expect("the other CPU goes on");
    });
}
