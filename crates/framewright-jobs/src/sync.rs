//! The only place that names atomics, so that a model checker can replace them with its own.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell with the interface of the model checker's cell, which checks that accesses do not
/// overlap.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Performs one iteration of a busy wait. Under a model checker it yields to other threads, or no
/// model would terminate.
pub(crate) fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    core::hint::spin_loop();
}

/// Defines a constructor that is `const`, except under a model checker, whose atomics cannot be
/// made at compile time.
macro_rules! const_fn {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident() -> $result:ty $body:block) => {
        #[cfg(not(any(loom, shuttle)))]
        $(#[$meta])*
        $visibility const fn $name() -> $result $body

        #[cfg(any(loom, shuttle))]
        $(#[$meta])*
        $visibility fn $name() -> $result $body
    };
}
pub(crate) use const_fn;
