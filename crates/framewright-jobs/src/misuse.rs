//! Code that the compiler must refuse. Most examples stand next to similar code that it accepts,
//! which shows that the first is refused for the right reason.
//!
//! A chunk function that only one thread may call:
//!
//! ```compile_fail,E0277
//! use framewright_jobs::{Job, NoHelpers};
//! let count = std::cell::Cell::new(0);
//! let _ = Job::new(0..10).run(&NoHelpers, |_, _| { count.set(count.get() + 1); Ok::<_, ()>(()) });
//! ```
//! ```
//! use framewright_jobs::{Job, NoHelpers};
//! let count = std::sync::atomic::AtomicU32::new(0);
//! let add = || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
//! let _ = Job::new(0..10).run(&NoHelpers, |_, _| { add(); Ok::<_, ()>(()) });
//! ```
//!
//! A chunk function that changes what it captured:
//!
//! ```compile_fail,E0594
//! use framewright_jobs::{Job, NoHelpers};
//! let mut count = 0;
//! let _ = Job::new(0..10).run(&NoHelpers, |_, _| { count += 1; Ok::<_, ()>(()) });
//! ```
//!
//! An error that must not move to the caller's thread:
//!
//! ```compile_fail,E0277
//! use framewright_jobs::{Job, NoHelpers};
//! let _ = Job::new(0..10).run(&NoHelpers, |_, _| Err(std::rc::Rc::new(1)));
//! ```
//! ```
//! use framewright_jobs::{Job, NoHelpers};
//! let _ = Job::new(0..10).run(&NoHelpers, |_, _| Err(std::sync::Arc::new(1)));
//! ```
//!
//! A job that outlives what it borrows:
//!
//! ```compile_fail,E0597
//! use framewright_jobs::{Cancel, Job, NoHelpers};
//! let job = {
//!     let cancel = Cancel::new();
//!     Job::new(0..10).cancelled_by(&cancel)
//! };
//! let _ = job.run(&NoHelpers, |_, _| Ok::<_, ()>(()));
//! ```
//! ```
//! use framewright_jobs::{Cancel, Job, NoHelpers};
//! let cancel = Cancel::new();
//! let job = Job::new(0..10).cancelled_by(&cancel);
//! let _ = job.run(&NoHelpers, |_, _| Ok::<_, ()>(()));
//! ```
//!
//! A worker that is kept after its chunk ends:
//!
//! ```compile_fail,E0521
//! use framewright_jobs::{Job, NoHelpers, Worker};
//! let workers: std::sync::Mutex<Vec<&Worker<'_>>> = std::sync::Mutex::new(Vec::new());
//! let _ = Job::new(0..10).run(&NoHelpers, |_, worker| {
//!     workers.lock().unwrap().push(worker);
//!     Ok::<_, ()>(())
//! });
//! ```
//! ```
//! use framewright_jobs::{Job, NoHelpers};
//! let workers = std::sync::Mutex::new(Vec::new());
//! let _ = Job::new(0..10).run(&NoHelpers, |_, worker| {
//!     workers.lock().unwrap().push(worker.index());
//!     Ok::<_, ()>(())
//! });
//! ```
//!
//! Parts of a slice whose elements must not move to another thread:
//!
//! ```compile_fail,E0277
//! use framewright_jobs::{Job, NoHelpers};
//! let mut slice = [std::rc::Rc::new(1)];
//! let _ = Job::indices(0..1).for_slice_mut(&NoHelpers, &mut slice, |_, _, _| ());
//! ```
//! ```
//! use framewright_jobs::{Job, NoHelpers};
//! let mut slice = [std::sync::Arc::new(1)];
//! let _ = Job::indices(0..1).for_slice_mut(&NoHelpers, &mut slice, |_, _, _| ());
//! ```
//!
//! A part that is kept after its chunk ends:
//!
//! ```compile_fail,E0521
//! use framewright_jobs::{Job, NoHelpers};
//! let kept: std::sync::Mutex<Vec<&mut [u8]>> = std::sync::Mutex::new(Vec::new());
//! let _ = Job::indices(0..4).for_slice_mut(&NoHelpers, &mut [0; 4], |_, part, _| {
//!     kept.lock().unwrap().push(part);
//! });
//! ```
//! ```
//! use framewright_jobs::{Job, NoHelpers};
//! let kept: std::sync::Mutex<Vec<Vec<u8>>> = std::sync::Mutex::new(Vec::new());
//! let _ = Job::indices(0..4).for_slice_mut(&NoHelpers, &mut [0; 4], |_, part, _| {
//!     kept.lock().unwrap().push(part.to_vec());
//! });
//! ```
//!
//! Helpers that threads must not share:
//!
//! ```compile_fail,E0277
//! use framewright_jobs::{Workers, Helpers};
//! struct Local(std::cell::Cell<u32>);
//! impl Helpers for Local {
//!     fn workers(&self) -> Option<Workers<'_>> { None }
//!     fn wake(&self, _helper: usize) {}
//! }
//! ```
//! ```
//! use framewright_jobs::{Workers, Helpers};
//! struct Shared(std::sync::atomic::AtomicU32);
//! impl Helpers for Shared {
//!     fn workers(&self) -> Option<Workers<'_>> { None }
//!     fn wake(&self, _helper: usize) {}
//! }
//! ```
