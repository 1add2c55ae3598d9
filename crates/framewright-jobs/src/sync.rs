//! The one place that names atomics, so that a model checker can put its own in their stead.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell whose users say how they use it; the model checker's has the same interface and checks
/// it.
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

/// One turn of a busy wait. Under a model checker a waiter lets others go on, or no model would
/// end.
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
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        #[cfg(not(any(loom, shuttle)))]
        $(#[$meta])*
        $visibility const fn $name($($argument: $type),*) -> $result $body

        #[cfg(any(loom, shuttle))]
        $(#[$meta])*
        $visibility fn $name($($argument: $type),*) -> $result $body
    };
}
pub(crate) use const_fn;
