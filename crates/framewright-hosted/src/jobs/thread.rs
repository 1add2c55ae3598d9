//! Threads of helpers: [`Thread`].
//!
//! The standard library takes a lock of its own when a thread begins, for its message about stack
//! overflows. A child made by fork while a thread of its parent began or ended finds that lock
//! taken for ever, and no thread that it starts gets past it. The C library's threads are whole
//! after a fork, so a child takes those. What it loses is that message, and the name in a panic's.

use super::per_process::generation;
use super::system;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::thread::JoinHandle;

type Body = Box<dyn FnOnce() + Send>;

/// A thread that was started. Dropped, it goes on by itself.
pub(super) enum Thread {
    Usual(JoinHandle<()>),
    OfChild(Bare),
}

impl Thread {
    /// Starts one that runs `body`, with so much stack. It sees no signals that are meant for the
    /// program.
    ///
    /// # Errors
    /// Those of the system: there are too many.
    pub fn start(
        name: String,
        stack_bytes: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        system::without_signals(|| {
            if generation() != 0 {
                return Bare::start(stack_bytes, Box::new(body)).map(Self::OfChild);
            }
            let builder = std::thread::Builder::new().name(name).stack_size(stack_bytes);
            builder.spawn(body).map(Self::Usual)
        })
    }

    /// Waits until it has ended. What it threw is lost.
    pub fn join(self) {
        match self {
            Self::Usual(thread) => drop(thread.join()),
            Self::OfChild(thread) => thread.join(),
        }
    }
}

/// A thread of the C library.
pub(super) struct Bare(libc::pthread_t);

impl Bare {
    fn start(stack_bytes: usize, body: Body) -> io::Result<Self> {
        // A thin pointer to a wide one.
        let body = Box::into_raw(Box::new(body));
        let mut thread = Self(0);
        // SAFETY: attributes are bytes, for which zero is a value, and are initialised before use.
        let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
        // SAFETY: the attributes are live here and below, and destroyed once.
        unsafe { libc::pthread_attr_init(&raw mut attributes) };
        // SAFETY: as above. A size that is refused leaves the default.
        unsafe { libc::pthread_attr_setstacksize(&raw mut attributes, stack_bytes) };
        // SAFETY: the handle and the attributes are live; the body is handed over, and taken once.
        let error = unsafe {
            libc::pthread_create(&raw mut thread.0, &raw const attributes, run, body.cast())
        };
        // SAFETY: as above.
        unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
        if error == 0 {
            return Ok(thread);
        }
        let _no_thread = ManuallyDrop::new(thread);
        // SAFETY: it came from a box, and no thread has it.
        drop(unsafe { Box::from_raw(body) });
        Err(io::Error::from_raw_os_error(error))
    }

    fn join(self) {
        let thread = ManuallyDrop::new(self);
        // SAFETY: the thread was started and is neither joined nor detached: this takes its handle.
        unsafe { libc::pthread_join(thread.0, ptr::null_mut()) };
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: the thread was started and is not joined, as that forgets the handle.
        unsafe { libc::pthread_detach(self.0) };
    }
}

extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: it came from `Bare::start`, which gave it away.
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
    fn a_bare_thread_runs_and_is_waited_for() {
        let count = Arc::new(AtomicU32::new(0));
        let add = || {
            let count = Arc::clone(&count);
            let body: Body = Box::new(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                count.fetch_add(1, Ordering::Relaxed);
            });
            body
        };
        Bare::start(1 << 16, add()).expect("it starts").join();
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
        // One that throws is waited for as well, and one that is left alone goes on.
        Bare::start(1 << 16, Box::new(|| std::panic::resume_unwind(Box::new("thrown"))))
            .expect("it starts")
            .join();
        drop(Bare::start(1 << 16, add()).expect("it starts"));
        while Arc::strong_count(&count) != 1 {
            std::thread::yield_now();
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn children_take_bare_ones() {
        let threads_of_child = || {
            let thread = Thread::start("any".to_owned(), 1 << 16, || {});
            let is_bare = matches!(thread, Ok(Thread::OfChild(_)));
            thread.map(Thread::join).is_ok() && is_bare
        };
        assert!(matches!(Thread::start("any".to_owned(), 1 << 16, || {}), Ok(Thread::Usual(_))));
        crate::jobs::HostedHelpers::new().pool();
        assert!(system::in_child(threads_of_child).success());
    }
}
