//! The steps of `cargo xtask test`, cheapest first.

use crate::command::{PANIC, Run};
use crate::step::{Failure, Passed, Step, Tally};
use crate::{adopters, alone, api, guest, house, packages, publish, sizes, soak, workspace};

/// All steps, in the order in which they run.
pub const ALL: &[Step] = &[
    Step { name: "format", about: "cargo fmt leaves nothing to change", run: format },
    Step {
        name: "house",
        about: "headers, file sizes, SAFETY comments, orders of memory, crates that know only what \
            they may",
        run: house,
    },
    Step { name: "api", about: "docs/api lists the public interface as it is", run: api::check },
    Step { name: "clippy", about: "no warning in any target", run: clippy },
    Step { name: "docs", about: "documentation builds without a warning", run: docs },
    Step {
        name: "tests",
        about: "unit, integration and documentation tests that need neither emulator nor browser",
        run: tests,
    },
    Step { name: "careful", about: "the manager's tests where nothing is as usual", run: careful },
    Step {
        name: "misuse",
        about: "what release builds find of what callers do wrong",
        run: misuse,
    },
    Step {
        name: "loom",
        about: "model checking of locks, of owners of caches and of jobs, and of calls that meet \
            there",
        run: loom,
    },
    Step { name: "shuttle", about: "larger concurrent tests under random schedules", run: shuttle },
    Step {
        name: "soak",
        about: "random traffic on machines of all shapes, a few seconds",
        run: soak::step,
    },
    Step {
        name: "guest",
        about: "the reference guest, the example kernels and the program for Linux build and are \
            small",
        run: guest_image,
    },
    Step {
        name: "sizes",
        about: "kernels of five kinds link no more than they may; libraries without some parts do \
            right",
        run: sizes::step,
    },
    Step {
        name: "publish",
        about: "every library can be packed, and builds from its package",
        run: publish::check,
    },
    Step { name: "browser", about: "reports, looked at in a browser", run: browser_tests },
    Step {
        name: "adopters",
        about: "kernels of others on our allocator: their tests, and what it costs",
        run: adopters::step,
    },
    Step { name: "qemu", about: "whole machines boot in QEMU", run: qemu_tests },
];

/// The prefix of integration tests of programs that boot machines.
const QEMU_TESTS: &str = "qemu";
/// The prefix of integration tests that need a browser.
const BROWSER_TESTS: &str = "browser";
/// Printed by tests, bypassing their harness, if the machine or the user does not allow what they
/// try.
const NOT_POSSIBLE: &str = "NOT POSSIBLE HERE: ";
/// Programs that demonstrate the use of a library.
const EXAMPLES: [&str; 4] =
    ["smallest_adopter", "kernel_heap", "parallel_prefault", "parallel_checksum"];

fn format() -> Result<Passed, Failure> {
    Run::cargo(&["fmt", "--all", "--check", "--", "--color", "never"]).output()?;
    Ok(Passed::default())
}

fn house() -> Result<Passed, Failure> {
    let report = house::inspect(workspace::root())?;
    if report.findings.is_empty() {
        Ok(Passed::note(format!("{} files, {} crates", report.files, report.crates)))
    } else {
        Err(Failure::new(report.findings.join("\n")))
    }
}

/// Features of `framewright` that stand for parts of the manager, preceded by none of them, and
/// features for other crates. Each may be the only one that a user enables.
const PARTS: [&str; 20] = [
    "",
    "smp",
    "numa",
    "vmemmap",
    "moving",
    "pools",
    "reporting",
    "hotplug",
    "accept",
    "debug",
    "large-maps",
    "dma-zones",
    "bootloader_api",
    "buddy_system_allocator",
    "frame-alloc",
    "limine",
    "multiboot2",
    "uefi-raw",
    "virtio-drivers",
    "x86_64",
];

fn clippy() -> Result<Passed, Failure> {
    let deny = ["--", "-D", "warnings"];
    Run::cargo(&["clippy", "--workspace", "--all-targets", "--all-features"])
        .args(but_kernels())
        .args(deny)
        .output()?;
    // Check what users of parts of the library build: the minimum, and each part alone.
    for part in PARTS {
        Run::cargo(&["clippy", "-p", "framewright", "--no-default-features", "--features", part])
            .args(deny)
            .output()?;
    }
    // Kernels have no tests to compile, as they have panic handlers of their own.
    for kernel in &guest::KERNELS {
        Run::cargo(&["clippy", "-p", kernel.package, "--bins"])
            .args(deny)
            .env(PANIC, "abort")
            .output()?;
    }
    Ok(Passed::default())
}

fn docs() -> Result<Passed, Failure> {
    Run::cargo(&["doc", "--workspace", "--no-deps", "--all-features"])
        .args(but_kernels())
        .env("RUSTDOCFLAGS", "-D warnings")
        .output()?;
    Ok(Passed::default())
}

/// Runs a command for all packages except the kernels. It names the same packages every time, so
/// that cargo reuses what it has built: the set of named packages decides on the features of their
/// shared dependencies.
fn workspace(command: &[&str]) -> Run {
    Run::cargo(command).args(["--workspace", "--all-features"]).args(but_kernels())
}

fn test_workspace() -> Run {
    workspace(&["test", "--no-fail-fast"])
}

/// Runs an example, which checks its own claims. The tests have built it.
fn run_example(example: &str) -> Result<(), Failure> {
    let program = workspace(&["build", "--profile", "test", "--example", example])
        .built(&format!("the example {example}"))?;
    Run::program(program, &[]).output().map(drop)
}

/// Tests many CPUs, and devices with short addresses, on memory that is a single zone. No other
/// test covers this, as all others enable all features.
fn test_one_zone() -> Result<String, Failure> {
    Run::cargo(&["test", "--no-fail-fast", "-p", "framewright", "--no-default-features"])
        .args(["--features", "files,large-maps", "--test", "reach", "--test", "hammer"])
        .output()
}

fn tests() -> Result<Passed, Failure> {
    let init = guest::build(&guest::LINUX_INIT)?;
    let targets = workspace::test_targets(|name| !needs_more(name))?;
    let code = test_workspace()
        .args(["--lib", "--bins"])
        .args(only(&targets))
        .env("FRAMEWRIGHT_LINUX_INIT", &init.path)
        .output();
    // Run the examples in the documentation, too, whatever the result of the other tests.
    let documentation = test_workspace().args(["--doc"]).output();
    let output = joined(joined(code, documentation), test_one_zone())?;
    for example in EXAMPLES {
        run_example(example)?;
    }
    tested(&output, "")
}

/// The result of tests that passed, with a note about what they could not try on this machine or as
/// this user, after `note`.
///
/// # Errors
/// Fails if no test ran, as the wrong thing was built then.
fn tested(output: &str, note: &str) -> Result<Passed, Failure> {
    let tests = Tally::of(output);
    if tests.passed == 0 {
        return Err(Failure { output: format!("{output}no test ran\n"), tests });
    }
    let mut notes: Vec<String> = Vec::new();
    notes.extend((!note.is_empty()).then(|| note.to_owned()));
    let not_possible: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split_once(NOT_POSSIBLE))
        .map(|(_, what)| what)
        .collect();
    if !not_possible.is_empty() {
        let (count, what) = (not_possible.len(), not_possible.join("; "));
        notes.push(format!("{count} not possible here: {what}"));
    }
    Ok(Passed { tests, note: notes.join("; ") })
}

/// The output of two runs. If one failed, the failure also counts the other's tests.
fn joined(one: Result<String, Failure>, other: Result<String, Failure>) -> Result<String, Failure> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(one + &other),
        (Err(mut failure), Ok(output)) | (Ok(output), Err(mut failure)) => {
            failure.tests.add(Tally::of(&output));
            Err(failure)
        }
        (Err(mut failure), Err(other)) => {
            failure.output.push_str(&other.output);
            failure.tests.add(other.tests);
            Err(failure)
        }
    }
}

/// Whether an integration test needs an emulator or a browser.
fn needs_more(name: &str) -> bool {
    name.starts_with(QEMU_TESTS) || name.starts_with(BROWSER_TESTS)
}

/// The seed of the careful run, unless the environment sets one.
const CAREFUL_SEED: &str = "1";
/// The variable from which the test kit reads the seed.
const CAREFUL: &str = "FRAMEWRIGHT_CAREFUL";
/// Tests of `stepped` that do not read the seed and would only repeat themselves.
const NEVER_CAREFUL: &str = "holds::";

/// The crowd is not included: it has debug aids of its own, and poisoning all of its memory needs
/// more memory than small machines have.
fn careful() -> Result<Passed, Failure> {
    let seed = std::env::var(CAREFUL).unwrap_or_else(|_| CAREFUL_SEED.to_owned());
    let output = test_workspace()
        .args(["--test", "manager", "--test", "hotplug", "--test", "misuse", "--test", "stepped"])
        .args(["--", "--skip", NEVER_CAREFUL])
        .env(CAREFUL, &seed)
        .output()?;
    tested(&output, &format!("{CAREFUL}={seed}"))
}

/// Tests without debug assertions, as in release builds: checks that these promise must still find
/// bad frees and ranges. Dependencies are built as for all tests.
fn misuse() -> Result<Passed, Failure> {
    let folders = std::fs::read_dir(workspace::root().join("crates"))?;
    let without: Vec<String> = folders
        .map(|folder| {
            let name = folder?.file_name();
            let name = name.to_string_lossy();
            Ok(format!("--config=profile.test.package.{name}.debug-assertions=false"))
        })
        .collect::<std::io::Result<_>>()?;
    let output = test_workspace().args(without).args(["--test", "misuse"]).output()?;
    tested(&output, "")
}

fn loom() -> Result<Passed, Failure> {
    model_checker("loom", &["framewright", "framewright-jobs", "framewright-arch"])
}

fn shuttle() -> Result<Passed, Failure> {
    model_checker("shuttle", &["framewright", "framewright-jobs"])
}

/// Runs the tests of `packages` that are named after the model checker, with its atomics in place
/// of the processor's.
fn model_checker(name: &str, packages: &[&str]) -> Result<Passed, Failure> {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg ");
    flags.push_str(name);
    let mut tests = Tally::default();
    for package in packages {
        let what = format!("{name} of {package}");
        let run = Run::cargo(&["test", "--profile", "model", "--no-run", "-p", package])
            .args(["--test", name, "--features", name])
            .args(["--target-dir", &format!("target/{name}")])
            .env("RUSTFLAGS", flags.trim_start())
            .built(&what)
            .and_then(|program| alone::run(&what, &program));
        match run {
            Ok(run) => tests.add(run),
            Err(mut failure) => {
                failure.tests.add(tests);
                return Err(failure);
            }
        }
    }
    Ok(Passed { tests, note: String::new() })
}

fn guest_image() -> Result<Passed, Failure> {
    let images: Result<Vec<_>, _> = guest::KERNELS
        .iter()
        .map(|kernel| guest::build(kernel).map(|image| image.to_string()))
        .collect();
    images.map(|images| Passed::note(images.join("; ")))
}

fn qemu_tests() -> Result<Passed, Failure> {
    let version = packages::qemu()?;
    packages::grub()?;
    let (guest, minimal) = (guest::build(&guest::GUEST)?, guest::build(&guest::MINIMAL)?);
    let hobby = guest::build(&guest::HOBBY)?;
    let output = test_workspace()
        .args(only(&required(QEMU_TESTS)?))
        .env("FRAMEWRIGHT_GUEST", &guest.path)
        .env("FRAMEWRIGHT_MINIMAL_KERNEL", &minimal.path)
        .env("FRAMEWRIGHT_HOBBY_KERNEL", &hobby.path)
        .output()?;
    tested(&output, &version)
}

fn browser_tests() -> Result<Passed, Failure> {
    let version = packages::browser()?;
    let output = test_workspace().args(only(&required(BROWSER_TESTS)?)).output()?;
    tested(&output, &format!("{version}; pictures in target/report"))
}

/// The integration tests whose names begin with `start`. It is a failure if there are none.
fn required(start: &str) -> Result<Vec<String>, Failure> {
    let targets = workspace::test_targets(|name| name.starts_with(start))?;
    if targets.is_empty() {
        return Err(Failure::new(format!("there is no tests/{start}*.rs\n")));
    }
    Ok(targets)
}

/// Excludes the kernels from a command for the whole workspace.
fn but_kernels() -> impl Iterator<Item = &'static str> {
    guest::KERNELS.iter().flat_map(|kernel| ["--exclude", kernel.package])
}

fn only(targets: &[String]) -> Vec<String> {
    targets.iter().flat_map(|name| ["--test".to_owned(), name.clone()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_possible_is_noted_and_no_test_is_a_failure() {
        let passed = "test a ... \nNOT POSSIBLE HERE: this\nok\ntest b ... \nNOT POSSIBLE HERE: \
            that\nok\ntest result: ok. 2 passed; 0 failed\n";
        let shown = |note| tested(passed, note).expect("tests").note;
        assert_eq!(shown(""), "2 not possible here: this; that");
        assert_eq!(shown("QEMU 7"), "QEMU 7; 2 not possible here: this; that");
        let empty = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
        let failure = tested(empty, "").err().map(|failure| failure.output);
        assert!(failure.is_some_and(|output| output.ends_with("no test ran\n")));
    }
}
