//! The control: numbers in an array that is used as a stack, one stack for each CPU. No allocator
//! can do less.
//!
//! A stack has no ends: a thread that takes more than was put back goes on at the other end, so
//! that some threads may only get and others only put. The numbers are relaxed atomics, which are
//! plain loads and stores, as each stack belongs to one thread.

use crate::bench::subject::Subject;
use framewright::units::Order;
use framewright_cli::error::Error;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers in a stack: more than mixed traffic holds on half a machine's memory.
const NUMBERS: usize = 1 << 16;

thread_local! {
    /// The position of this thread's stack, and how many numbers are in it.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The stacks.
pub struct Control(Box<[AtomicU64]>);

impl Control {
    /// Makes stacks for this many CPUs.
    pub fn new(cpus: usize) -> Self {
        Self((0..NUMBERS as u64).cycle().take(NUMBERS * cpus).map(AtomicU64::new).collect())
    }
}

impl Subject for Control {
    const NAME: &'static str = super::CONTROL;

    type Seat<'a> = ();

    fn sit(&self, cpu: u32) -> Result<(), Error> {
        STACK.set((cpu as usize * NUMBERS, NUMBERS));
        Ok(())
    }

    #[inline]
    fn get(&self, _order: Order) -> Option<u64> {
        let (first, numbers) = STACK.get();
        let numbers = numbers.wrapping_sub(1) % NUMBERS;
        STACK.set((first, numbers));
        Some(self.0[first + numbers].load(Ordering::Relaxed))
    }

    #[inline]
    fn put(&self, pfn: u64, _order: Order) {
        let (first, numbers) = STACK.get();
        self.0[first + numbers % NUMBERS].store(pfn, Ordering::Relaxed);
        STACK.set((first, numbers.wrapping_add(1)));
    }

    fn drain(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_never_ends_and_is_its_threads_own() {
        let control = Control::new(2);
        control.sit(1).expect("there are two");
        let [one, other] = [1 << 20, 1 << 21];
        control.put(one, Order::PAGE);
        control.put(other, Order::PAGE);
        let got = [(); 3].map(|()| control.get(Order::PAGE));
        assert_eq!(got, [Some(other), Some(one), Some(65_535)]);
        control.sit(0).expect("there are two");
        let got: Vec<u64> = (0..2 * NUMBERS).map_while(|_| control.get(Order::PAGE)).collect();
        assert!(got.len() == 2 * NUMBERS && !got.contains(&one));
        (0..2 * NUMBERS).for_each(|_| control.put(9, Order::PAGE));
        assert_eq!(control.get(Order::PAGE), Some(9));
    }
}
