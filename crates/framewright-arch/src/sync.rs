//! The atomics of model-checked code, which the model checker replaces with its own.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic;

/// Performs one iteration of a busy wait.
pub(crate) fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Defines a constructor that is `const`, except under the model checker, whose atomics cannot be
/// made at compile time.
macro_rules! const_fn {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident() -> $result:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])*
        $visibility const fn $name() -> $result $body

        #[cfg(loom)]
        $(#[$meta])*
        $visibility fn $name() -> $result $body
    };
}
pub(crate) use const_fn;
