//! C programs linked with the archive, built by every available compiler, with the address
//! sanitiser and the undefined behaviour sanitiser.

mod common;

use common::{archive, folder, is_there, run};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const INSTALL: &str = "\
no C compiler with sanitisers is there, and the interface for C cannot be tested without. Install
one with
  apt-get install gcc libc6-dev    (Debian, Ubuntu)
  dnf install gcc libasan libubsan (Fedora)
  pacman -S gcc                    (Arch)";

/// Compiles `all.c` to this C standard and runs it.
fn all(compiler: &str, standard: &str, sanitised: bool, words: &[&str]) {
    let name = format!("all-{compiler}-{standard}-{sanitised}-{}", words.concat());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compile = Command::new(compiler);
    compile.arg(format!("-std={standard}")).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]);
    if sanitised {
        compile.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    compile.arg("-I").arg(folder().join("include")).arg(folder().join("tests/c/all.c"));
    // The test needs low addresses, which could be physical ones.
    run(compile.arg(archive()).args(["-no-pie", "-lpthread", "-o"]).arg(&program));
    let output = run(Command::new(&program).args(words));
    assert!(output.ends_with(" pages free\n"), "{output}");
}

/// The compilers to try.
const COMPILERS: [&str; 2] = ["gcc", "clang"];

/// Whether a compiler has the libraries of its sanitisers.
fn has_sanitisers(compiler: &str) -> bool {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join(format!("nothing-{compiler}.c"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let mut compile = Command::new(compiler);
    compile.arg("-fsanitize=address,undefined").arg(&source).arg("-o");
    compile.arg(source.with_extension("out"));
    compile.output().is_ok_and(|output| output.status.success())
}

/// Tries all standards and sanitisers, with one CPU and with two.
fn all_ways(compiler: &str) {
    let sanitised = has_sanitisers(compiler);
    if !sanitised {
        not_possible(&format!(
            "{compiler} has no sanitisers (apt-get install libclang-rt-dev or libc6-dev, dnf \
             install compiler-rt or libasan libubsan)"
        ));
    }
    for words in [&[][..], &["two"], &["identity"]] {
        all(compiler, "gnu11", sanitised, words);
    }
    all(compiler, "c99", false, &["two"]);
}

/// Everything must work with one of the compilers; the other is tested if it is installed.
fn every_function(compiler: &str) {
    let is_complete = |compiler: &&str| is_there(compiler) && has_sanitisers(compiler);
    assert!(COMPILERS.iter().any(is_complete), "{INSTALL}");
    if is_there(compiler) {
        all_ways(compiler);
    } else {
        not_possible(&format!("{compiler} is missing (apt-get install {compiler})"));
    }
}

#[test]
fn every_function_with_gcc() {
    every_function("gcc");
}

#[test]
fn every_function_with_clang() {
    every_function("clang");
}

/// The archive is built as kernels build it, so this is what they need.
#[test]
fn bring_up_takes_little_of_the_stack() {
    let compiler = COMPILERS.into_iter().find(|name| is_there(name)).expect(INSTALL);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stack");
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]);
    compile.arg(folder().join("include")).arg(folder().join("tests/c/stack.c"));
    run(compile.arg(archive()).args(["-lpthread", "-o"]).arg(&program));
    for words in [&[][..], &["line"]] {
        println!("{words:?}: {}", run(Command::new(&program).args(words)));
    }
}

/// The header needs nothing but a compiler.
#[test]
fn the_header_stands_alone() {
    let compiler = COMPILERS.into_iter().find(|name| is_there(name)).expect(INSTALL);
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alone.c");
    std::fs::write(&source, "#include \"framewright.h\"\nint fw_nothing(void);\n").expect("a file");
    let mut compile = Command::new(compiler);
    compile.args(["-ffreestanding", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
    run(compile.args(["-fsyntax-only", "-I"]).arg(folder().join("include")).arg(&source));
}

/// Reports what could not be tested, past the test harness, for the summary of all tests.
fn not_possible(what: &str) {
    let line = format!("\nNOT POSSIBLE HERE: {what}\n");
    // Standard error may be closed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
