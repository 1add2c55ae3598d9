//! The threads of helpers: [`Thread`], created through the C library.
//!
//! The standard library takes a lock when a thread begins, for its message about stack overflows.
//! If a child is forked while a thread of its parent begins or ends, it finds that lock taken for
//! ever, and every thread that it starts would wait for the lock, whether or not its parent had
//! helpers. Threads of the C library work after a fork. They lack only that message, and their name
//! in panic messages; debuggers and `top` show the name.

use super::system;
use std::ffi::CString;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

type Body = Box<dyn FnOnce() + Send>;

/// The stack size of a thread, on which chunks run: the default of the standard library's threads.
/// The program's thread-local storage is part of it.
const STACK_BYTES: usize = 2 << 20;

/// A thread that was started. Dropping this lets the thread go on.
pub(super) struct Thread(libc::pthread_t);

// SAFETY: the handle only names the thread, and any other thread may use the name.
unsafe impl Send for Thread {}

impl Thread {
    /// Starts a thread that runs `body`, with `name` as its name in the system. It gets no signals
    /// that are meant for the program.
    ///
    /// # Errors
    /// Those of the system, such as too many threads.
    pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let name = CString::new(name)?;
        let body: Body = Box::new(move || {
            system::name_this_thread(&name);
            body();
        });
        system::without_signals(|| Self::start_boxed(body))
    }

    fn start_boxed(body: Body) -> io::Result<Self> {
        // Boxed twice, because the pointer that is passed must be thin.
        let body = Box::into_raw(Box::new(body));
        let mut thread = MaybeUninit::uninit();
        // SAFETY: attributes are bytes, for which zero is a valid value, and they are initialised
        // before use.
        let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
        // SAFETY: the attributes are live here and below, and are destroyed once.
        unsafe { libc::pthread_attr_init(&raw mut attributes) };
        // SAFETY: the attributes are live and initialised. A size that is refused leaves the
        // default.
        unsafe { libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES) };
        // SAFETY: the handle and the attributes are live; ownership of the body passes to the
        // thread, which takes it once.
        let error = unsafe {
            libc::pthread_create(thread.as_mut_ptr(), &raw const attributes, run, body.cast())
        };
        // SAFETY: the attributes are live, initialised, and not used after this.
        unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
        if error == 0 {
            // SAFETY: the call above has written the handle.
            return Ok(Self(unsafe { thread.assume_init() }));
        }
        // SAFETY: the pointer came from a box, and no thread has it.
        drop(unsafe { Box::from_raw(body) });
        Err(io::Error::from_raw_os_error(error))
    }

    /// Waits until the thread has ended. The payload of a panic is lost.
    pub fn join(self) {
        let thread = ManuallyDrop::new(self);
        // SAFETY: the thread was started and is neither joined nor detached: `self` owns its
        // handle.
        unsafe { libc::pthread_join(thread.0, ptr::null_mut()) };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was started and is not joined, because `join` does not drop its
        // handle.
        unsafe { libc::pthread_detach(self.0) };
    }
}

extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the pointer came from `Thread::start`, which passed on its ownership.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    let _ = catch_unwind(AssertUnwindSafe(body));
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_thread_runs_and_is_joined() {
        let count = Arc::new(AtomicU32::new(0));
        let add = || {
            let count = Arc::clone(&count);
            move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let start = |body: Body| Thread::start("any", body).expect("it starts");
        start(Box::new(add())).join();
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
        // A thread that panics can be joined too, and a thread whose handle is dropped goes on.
        start(Box::new(|| std::panic::resume_unwind(Box::new("thrown")))).join();
        drop(start(Box::new(add())));
        while Arc::strong_count(&count) != 1 {
            std::thread::yield_now();
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    /// This works whatever threads of the parent begin or end at the fork, even if the parent has
    /// not used helpers yet.
    #[test]
    fn children_start_threads() {
        let over = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while over.load(Ordering::Relaxed) == 0 {
                        std::thread::spawn(|| {}).join().expect("no panic");
                    }
                });
            }
            let all = (0..300).all(|_| {
                let one = || Thread::start("any", || {}).map(Thread::join).is_ok();
                system::in_child(one).success()
            });
            over.store(1, Ordering::Relaxed);
            assert!(all);
        });
    }
}
