//! Threads of helpers: [`Thread`].
//!
//! The standard library takes a lock when a thread begins, for its message about stack overflows. A
//! child made by fork while a thread of its parent began or ended finds that lock taken for ever,
//! and every thread that it starts would wait for it. Threads of the C library work after a fork,
//! so a child uses those. It loses only that message, and the thread's name in panic messages.

use super::per_process::generation;
use super::system;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::thread::JoinHandle;

type Body = Box<dyn FnOnce() + Send>;

/// A thread that was started. It goes on when this is dropped.
pub(super) enum Thread {
    Std(JoinHandle<()>),
    Posix(PosixThread),
}

impl Thread {
    /// Starts a thread that runs `body`, with `stack_bytes` of stack. It sees no signals that are
    /// meant for the program.
    ///
    /// # Errors
    /// Those of the system, such as too many threads.
    pub fn start(
        name: String,
        stack_bytes: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        system::without_signals(|| {
            if generation() != 0 {
                return PosixThread::start(stack_bytes, Box::new(body)).map(Self::Posix);
            }
            let builder = std::thread::Builder::new().name(name).stack_size(stack_bytes);
            builder.spawn(body).map(Self::Std)
        })
    }

    /// Waits until it has ended. The payload of a panic is lost.
    pub fn join(self) {
        match self {
            Self::Std(thread) => drop(thread.join()),
            Self::Posix(thread) => thread.join(),
        }
    }
}

/// A thread of the C library.
pub(super) struct PosixThread(libc::pthread_t);

impl PosixThread {
    fn start(stack_bytes: usize, body: Body) -> io::Result<Self> {
        // Boxed twice, because the pointer that is passed must be thin.
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

impl Drop for PosixThread {
    fn drop(&mut self) {
        // SAFETY: the thread was started and is not joined, as that forgets the handle.
        unsafe { libc::pthread_detach(self.0) };
    }
}

extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: it came from `PosixThread::start`, which gave it away.
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
    fn a_posix_thread_runs_and_is_joined() {
        let count = Arc::new(AtomicU32::new(0));
        let add = || {
            let count = Arc::clone(&count);
            let body: Body = Box::new(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                count.fetch_add(1, Ordering::Relaxed);
            });
            body
        };
        PosixThread::start(1 << 16, add()).expect("it starts").join();
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
        // A thread that panics can be joined too, and one that is dropped goes on.
        PosixThread::start(1 << 16, Box::new(|| std::panic::resume_unwind(Box::new("thrown"))))
            .expect("it starts")
            .join();
        drop(PosixThread::start(1 << 16, add()).expect("it starts"));
        while Arc::strong_count(&count) != 1 {
            std::thread::yield_now();
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn children_use_posix_threads() {
        let threads_of_child = || {
            let thread = Thread::start("any".to_owned(), 1 << 16, || {});
            let is_posix = matches!(thread, Ok(Thread::Posix(_)));
            thread.map(Thread::join).is_ok() && is_posix
        };
        assert!(matches!(Thread::start("any".to_owned(), 1 << 16, || {}), Ok(Thread::Std(_))));
        crate::HostedHelpers::new().pool();
        assert!(system::in_child(threads_of_child).success());
    }
}
