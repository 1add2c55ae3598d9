//! Writes to control files: a valid write takes effect; an invalid one is refused and changes
//! nothing.

use crate::common::{Fake, bring_up, check, gib, mib};
use framewright::Request;
use framewright::procfs::{File, FileError, FileSystem, Kind, Source, Table, parse_number};
use framewright::units::Order;
use framewright::zone::Watermarks;
use framewright_testkit::{FakeMachine, Owner};
use proptest::prelude::*;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

fn machine() -> Fake {
    bring_up(FakeMachine::builder().ram(mib(0, 64)).ram(gib(4, 5)).cpus(2).build())
}

fn write(manager: &Fake, path: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    FileSystem::new(&[&table]).write(path, text)
}

fn read(manager: &Fake, path: &str) -> Result<String, FileError> {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table]).read(path, &mut text).map(|()| text)
}

fn marks(manager: &Fake) -> Vec<(Watermarks, [u64; 4])> {
    manager.zones().iter().map(|zone| (zone.watermarks(), zone.lowmem_reserve())).collect()
}

#[test]
fn parameters_change_the_marks() {
    let manager = machine();
    let before = marks(&manager);
    assert_eq!(write(&manager, "/proc/sys/vm/min_free_kbytes", "8192\n"), Ok(()));
    assert_eq!(read(&manager, "/proc/sys/vm/min_free_kbytes").as_deref(), Ok("8192\n"));
    let min: u64 = marks(&manager).iter().map(|(marks, _)| marks.min_pages).sum();
    assert!((2040..=2048).contains(&min), "{min}");
    let narrow = marks(&manager);
    assert_eq!(write(&manager, "/proc/sys/vm/watermark_scale_factor", "3000"), Ok(()));
    let wide = marks(&manager);
    for ((narrow, _), (wide, _)) in narrow.iter().zip(&wide) {
        assert!(wide.min_pages == narrow.min_pages && wide.low_pages > narrow.low_pages);
        assert_eq!(wide.high_pages - wide.low_pages, wide.low_pages - wide.min_pages);
    }
    assert_eq!(
        read(&manager, "/proc/sys/vm/lowmem_reserve_ratio").as_deref(),
        Ok("256\t256\t32\t0\n")
    );
    assert_eq!(write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", "128"), Ok(()));
    assert_eq!(
        read(&manager, "/proc/sys/vm/lowmem_reserve_ratio").as_deref(),
        Ok("128\t256\t32\t0\n")
    );
    let reserve = marks(&manager)[0].1[2];
    assert!(reserve.abs_diff(before[0].1[2] * 2) <= 1 && reserve > 0);
    assert_eq!(write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", "0 0 0\n"), Ok(()));
    assert!(marks(&manager).iter().all(|(_, reserve)| *reserve == [0; 4]));
    assert_eq!(write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", "8 -2147483648 -0"), Ok(()));
    assert_eq!(read(&manager, "/proc/sys/vm/lowmem_reserve_ratio").as_deref(), Ok("8\t0\t0\t0\n"));
    // A number for a zone of devices' memory, which there is not, is checked alone.
    assert_eq!(write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", "256 256 32 0 7"), Ok(()));
    let all = "256\t256\t32\t0\n";
    assert_eq!(read(&manager, "/proc/sys/vm/lowmem_reserve_ratio").as_deref(), Ok(all));
    assert_eq!(write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", "8 0 0"), Ok(()));
    for text in ["", "1 2 3 4 5 6", "1 2 3 4 x", "-", "--1", "-2147483649", "2147483648", "-x"] {
        let written = write(&manager, "/proc/sys/vm/lowmem_reserve_ratio", text);
        assert_eq!(written, Err(FileError::Invalid), "{text:?}");
    }
    assert_eq!(read(&manager, "/proc/sys/vm/lowmem_reserve_ratio").as_deref(), Ok("8\t0\t0\t0\n"));
}

#[test]
fn marks_that_are_raised_are_kept_at_once_and_lowered_ones_help_at_once() {
    let manager = machine();
    let request = Request::new(Order::BLOCK);
    assert_eq!(write(&manager, "/proc/sys/vm/min_free_kbytes", "2000000"), Ok(()));
    assert!(manager.allocate(&request).is_err());
    // An allocation that failed is known to fail until something changes.
    assert!(manager.allocate(&request).is_err());
    assert_eq!(write(&manager, "/proc/sys/vm/min_free_kbytes", "128"), Ok(()));
    let taken = manager.allocate(&request).expect("memory");
    manager.give_back(taken).expect("held");
    check(&manager);
}

#[test]
fn errors_are_those_of_linux() {
    let manager = machine();
    for (path, error) in [
        ("", FileError::NotFound),
        ("/nothing", FileError::NotFound),
        ("/proc/sys/vm/swappiness", FileError::NotFound),
        ("/proc/../proc/vmstat", FileError::NotFound),
        ("/sys/devices/system/node/node1/meminfo", FileError::NotFound),
        ("/sys/devices/system/node/node00/meminfo", FileError::NotFound),
        ("/sys/devices/system/node/node*/meminfo", FileError::NotFound),
        ("/", FileError::IsFolder),
        ("/proc", FileError::IsFolder),
        ("/sys/devices/system/node/node0/", FileError::IsFolder),
        ("/proc/vmstat/x", FileError::NotFolder),
        ("/proc/vmstat/", FileError::NotFolder),
    ] {
        assert_eq!(read(&manager, path), Err(error), "{path:?}");
        assert_eq!(write(&manager, path, "1"), Err(error), "{path:?}");
    }
    assert_eq!(write(&manager, "/proc/vmstat", "1"), Err(FileError::NotPermitted));
    assert_eq!(
        write(&manager, "/sys/module/framewright/parameters/pages", "inside"),
        Err(FileError::NotPermitted)
    );
    assert_eq!(read(&manager, "/proc/sys/vm/compact_memory"), Err(FileError::NotPermitted));
    for (text, expected) in [
        ("1", Ok(())),
        ("1\n", Ok(())),
        ("0", Err(FileError::Invalid)),
        ("", Err(FileError::Invalid)),
    ] {
        assert_eq!(write(&manager, "/proc/sys/vm/compact_memory", text), expected, "{text:?}");
    }
    let known = [
        (FileError::NotFound, "ENOENT", 2),
        (FileError::Output, "EIO", 5),
        (FileError::NoMemory, "ENOMEM", 12),
        (FileError::NotPermitted, "EACCES", 13),
        (FileError::Busy, "EBUSY", 16),
        (FileError::NotFolder, "ENOTDIR", 20),
        (FileError::IsFolder, "EISDIR", 21),
        (FileError::Invalid, "EINVAL", 22),
    ];
    for (error, name, number) in known {
        assert_eq!((error.name(), error.errno()), (name, number));
        assert_eq!(
            error.to_string(),
            std::io::Error::from_raw_os_error(number)
                .to_string()
                .split(" (os")
                .next()
                .expect("text")
        );
    }
}

#[test]
fn command_line_settings_can_be_read() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let line = "pages=inside numa=off mem=32M init_on_free=1";
    let manager = crate::common::bring_up_with(machine, &[], &crate::common::parameters(line))
        .expect("bring-up");
    let careful = crate::common::is_careful();
    for (name, value) in [
        ("pages", "inside"),
        ("numa", "N"),
        ("mem", "33554432"),
        ("memmap_init", "on-demand"),
        ("page_owner", if careful { "Y" } else { "N" }),
        ("init_on_alloc", "N"),
        ("init_on_free", if careful { "N" } else { "Y" }),
    ] {
        let text = read(&manager, &format!("/sys/module/framewright/parameters/{name}"));
        assert_eq!(text, Ok(format!("{value}\n")), "{name}");
    }
}

/// A reader that goes away.
struct Full(usize);

impl Write for Full {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}

#[test]
fn a_reader_that_fails_ends_the_read() {
    let manager = machine();
    let table = manager.files();
    for room in [0, 1, 10, 100] {
        for path in [
            "/proc/buddyinfo",
            "/proc/zoneinfo",
            "/proc/vmstat",
            "/proc/meminfo",
            "/proc/pagetypeinfo",
        ] {
            assert_eq!(
                FileSystem::new(&[&table]).read(path, &mut Full(room)),
                Err(FileError::Output),
                "{path}"
            );
        }
    }
    check(&manager);
}

/// Another provider of files, some of which the manager has, too.
struct Other(AtomicU64);

impl Other {
    const FILES: &'static [File<Self>] = &[
        File::read_only("/proc/vmstat", |other, _, out| {
            Ok(writeln!(out, "nr_other {}", other.0.load(Ordering::Relaxed))?)
        }),
        File::write_only("/proc/vmstat", |other, _, text| {
            parse_number(text).map(|number| other.0.store(number, Ordering::Relaxed))
        }),
        File::read_only("/sys/other/file*-*kB", |_, numbers, out| {
            Ok(writeln!(out, "{numbers:?}")?)
        })
        .numbered(|_, visit| [[3, 2048], [10, 4]].iter().for_each(|pair| visit(pair))),
    ];
}

#[test]
fn files_of_several_modules_are_joined() {
    let manager = machine();
    let other = Other(AtomicU64::new(5));
    let (ours, theirs) = (manager.files(), Table::new(&other, Other::FILES));
    let sources: [&dyn Source; 2] = [&ours, &theirs];
    let files = FileSystem::new(&sources);
    assert_eq!(files.write("/proc/vmstat", "7"), Ok(()));
    let mut text = String::new();
    files.read("/proc/vmstat", &mut text).expect("a file");
    assert!(text.starts_with("nr_free_pages ") && text.ends_with("\nnr_other 7\n"), "{text}");
    assert_eq!(files.kind("/proc/vmstat"), Ok(Kind::File { readable: true, writable: true }));
    let mut names = Vec::new();
    files.list("/sys/other", &mut |name, _| names.push(name.to_owned())).expect("a folder");
    assert_eq!(names, ["file10-4kB", "file3-2048kB"]);
    text.clear();
    files.read("/sys/other/file10-4kB", &mut text).expect("a file");
    assert_eq!(text, "[10, 4]\n");
    let mut times = 0;
    files.list("/proc", &mut |name, _| times += u32::from(name == "vmstat")).expect("a folder");
    assert_eq!(times, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nonsense_changes_nothing(
        path in prop_oneof![
            Just("/proc/sys/vm/min_free_kbytes"),
            Just("/proc/sys/vm/watermark_scale_factor"),
            Just("/proc/sys/vm/lowmem_reserve_ratio"),
            Just("/proc/sys/vm/compact_memory"),
            Just("/proc/sys/vm/compaction_proactiveness"),
            Just("/proc/sys/vm/extfrag_threshold"),
        ],
        text in prop_oneof![
            "\\PC{0,40}",
            "[-+ 0-9xXa-f\\n\\t.kM]{0,24}",
            "[0-9]{1,25}( \
            [0-9]{1,3}){0,4}"
        ],
    ) {
        thread_local! {
            static MANAGER: Fake = machine();
        }
        MANAGER.with(|manager| {
            let before = (marks(manager), read(manager, path), manager.totals());
            match write(manager, path, &text) {
                Ok(()) => {
                    // The text was a number after all: each word of it reads back.
                    if let Ok(now) = read(manager, path) {
                        for (word, now) in text.split_whitespace().zip(now.split_whitespace()) {
                            // What is below zero becomes zero.
                            let number = if word.starts_with('-') { "0" } else { word };
                            assert_eq!(parse_number(number), parse_number(now), "{text:?}");
                        }
                    }
                }
                Err(error) => {
                    assert_eq!(error, FileError::Invalid);
                    assert_eq!(
                        before,
                        (marks(manager), read(manager, path), manager.totals()),
                        "{text:?}"
                    );
                }
            }
            check(manager);
        });
    }

    #[test]
    fn any_path_is_answered(
        path in prop_oneof![
            "\\PC{0,60}",
            "(/\
        |proc|sys|vm|node0|node\\*|vmstat|\\.|\\.\\.|\u{0}){0,9}"
        ],
    ) {
        thread_local! {
            static MANAGER: Fake = machine();
        }
        MANAGER.with(|manager| {
            let table = manager.files();
            let sources: [&dyn Source; 1] = [&table];
            let files = FileSystem::new(&sources);
            let kind = files.kind(&path);
            let listed = files.list(&path, &mut |_, _| {});
            assert_eq!(kind.map(drop), listed);
            match (kind, read(manager, &path)) {
                (Ok(Kind::Folder), read) => assert_eq!(read, Err(FileError::IsFolder)),
                (Ok(Kind::File { readable: true, .. }), read) => assert!(read.is_ok()),
                (Ok(Kind::File { .. }), read) => assert_eq!(read, Err(FileError::NotPermitted)),
                (Err(error), read) => assert_eq!(read, Err(error)),
            }
        });
    }
}
