//! How much of the stack a call takes, measured on a thread whose stack is painted first: kernels
//! have little of it, and an overflow goes unreported.

use std::hint::black_box;
use std::thread;

/// The stack of the thread, most of which is painted.
const STACK_BYTES: usize = 4 << 20;
const PAINTED_BYTES: usize = 2 << 20;
/// The bytes right below the measured top that are not painted because active frames lie there.
const LEFT_BYTES: usize = 4 << 10;
const PAINT: u64 = 0xA5A5_A5A5_A5A5_A5A5;

/// A thread's stack with room for [`measure`](Self::measure).
pub struct PaintedStack(());

/// Runs `test` on a thread with a stack that can be measured, and returns its result.
///
/// # Panics
/// If there is no thread, or if `test` panics.
pub fn on_painted_stack<T: Send + 'static>(
    test: impl FnOnce(&PaintedStack) -> T + Send + 'static,
) -> T {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(|| test(&PaintedStack(())));
    thread.expect("a thread").join().expect("no panic")
}

impl PaintedStack {
    /// Calls `run`; returns its result and the bytes of stack that it took.
    ///
    /// # Panics
    /// If nothing was measured: the call takes less than can be told from none.
    #[inline(never)]
    pub fn measure<T>(&self, run: impl FnOnce() -> T) -> (T, usize) {
        let here = 0_u64;
        let top = black_box(&raw const here).expose_provenance();
        paint(top);
        let result = black_box(run());
        let used = used(top);
        assert!(used > LEFT_BYTES, "nothing was measured: {used}");
        (result, used)
    }
}

/// The painted words, from the lowest on.
fn below(top: usize) -> impl Iterator<Item = *mut u64> {
    (top - PAINTED_BYTES..top - LEFT_BYTES).step_by(8).map(std::ptr::with_exposed_provenance_mut)
}

#[inline(never)]
fn paint(top: usize) {
    for word in below(top) {
        // SAFETY: of this thread's stack, which has more room than that, and below all frames that
        // are in use.
        unsafe { word.write_volatile(PAINT) };
    }
}

/// Returns how far below `top` the stack was used since it was painted, in bytes.
#[inline(never)]
fn used(top: usize) -> usize {
    // SAFETY: of this thread's stack; whatever is there is a number.
    let first = below(top).find(|word| unsafe { word.read_volatile() } != PAINT);
    first.map_or(LEFT_BYTES, |word| top - word.addr())
}
