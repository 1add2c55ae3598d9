//! Control files: the state of the manager by path, in the formats of Linux's `/proc` and `/sys`,
//! so that programs that read those can read these.
//!
//! There is no file system here, only a table of paths. [`Manager::files`](crate::Manager::files)
//! has the manager's own files, and [`Hugetlb::files`](crate::manager::Hugetlb::files) those of the
//! huge-page pools. A [`FileSystem`] joins them with those of other modules, and reads, writes and
//! lists by path. Nothing is stored: a read streams text that is made at that moment, and a write
//! acts at once or changes nothing.
//!
//! # Adding files
//!
//! A module that has something to show writes one function for each file and a constant table. The
//! owner of all tables puts them together:
//!
//! ```
//! use core::fmt::Write;
//! use core::sync::atomic::{AtomicU64, Ordering};
//! use framewright::procfs::{File, FileError, FileSystem, Source, Table, parse_number};
//!
//! struct Pool {
//!     pages: [AtomicU64; 2],
//! }
//!
//! impl Pool {
//!     const FILES: &'static [File<Self>] = &[
//!         File::read_only("/proc/vmstat", |pool: &Self, _, out| {
//!             let pages: u64 = pool.pages.iter().map(|pages| pages.load(Ordering::Relaxed)).sum();
//!             Ok(writeln!(out, "nr_pool {pages}")?)
//!         }),
//!         // `*` is a number; `numbered` says which there are.
//!         File::read_write(
//!             "/sys/devices/system/node/node*/pool/nr_pages",
//!             |pool: &Self, numbers, out| {
//!                 Ok(writeln!(out, "{}", pool.of(numbers)?.load(Ordering::Relaxed))?)
//!             },
//!             |pool: &Self, numbers, text| {
//!                 pool.of(numbers)?.store(parse_number(text)?, Ordering::Relaxed);
//!                 Ok(())
//!             },
//!         )
//!         .numbered(|pool, visit| (0..).zip(&pool.pages).for_each(|(node, _)| visit(&[node]))),
//!     ];
//!
//!     fn of(&self, numbers: &[u64]) -> Result<&AtomicU64, FileError> {
//!         let node = numbers.first().and_then(|&node| usize::try_from(node).ok());
//!         node.and_then(|node| self.pages.get(node)).ok_or(FileError::NotFound)
//!     }
//! }
//!
//! let pool = Pool { pages: [AtomicU64::new(3), AtomicU64::new(4)] };
//! let table = Table::new(&pool, Pool::FILES);
//! let sources: [&dyn Source; 1] = [&table];
//! let files = FileSystem::new(&sources);
//!
//! let mut text = String::new();
//! files.write("/sys/devices/system/node/node1/pool/nr_pages", "5\n")?;
//! files.read("/proc/vmstat", &mut text)?;
//! assert_eq!(text, "nr_pool 8\n");
//! let absent = files.write("/sys/devices/system/node/node2/pool/nr_pages", "5");
//! assert_eq!(absent, Err(FileError::NotFound));
//! let wrong = files.write("/sys/devices/system/node/node0/pool/nr_pages", "many");
//! assert_eq!(wrong, Err(FileError::Invalid));
//! # Ok::<(), FileError>(())
//! ```
//!
//! A path may be in several tables. A read of it gives all their texts in the order of the tables,
//! which is how a pool adds its lines to `/proc/meminfo` and `/proc/vmstat`. A write goes to the
//! first table whose file can be written.

mod error;
mod of_manager;
mod of_pools;
mod path;
mod system;
mod table;
mod text;

pub use error::FileError;
pub use of_pools::PoolFiles;
pub use system::{FileSystem, Kind};
pub use table::{File, Source, Table};
pub use text::{parse_bool, parse_number, parse_numbers, write_cpu_list, write_kib};
