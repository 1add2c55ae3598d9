//! Programs in C with the archive, made by every compiler that is there, under the address
//! sanitiser and the one for undefined behaviour.

mod common;

use common::{archive, folder, is_there, run};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const INSTALL: &str = "\
no C compiler is there, and the interface for C cannot be tested without. Install one with
  apt-get install gcc libc6-dev    (Debian, Ubuntu)
  dnf install gcc libasan libubsan (Fedora)
  pacman -S gcc                    (Arch)";

/// Compiles and runs `all.c` as this standard of C.
fn all(compiler: &str, standard: &str, sanitised: bool, words: &[&str]) {
    let name = format!("all-{compiler}-{standard}-{sanitised}-{}", words.concat());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compile = Command::new(compiler);
    compile.arg(format!("-std={standard}")).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]);
    if sanitised {
        compile.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    compile.arg("-I").arg(folder().join("include")).arg(folder().join("tests/c/all.c"));
    // Low addresses could be physical ones.
    run(compile.arg(archive()).args(["-no-pie", "-lpthread", "-o"]).arg(&program));
    let output = run(Command::new(&program).args(words));
    assert!(output.ends_with(" pages free\n"), "{output}");
}

/// All standards and sanitisers, with one CPU and with two.
fn all_ways(compiler: &str) {
    for words in [&[][..], &["two"], &["identity"]] {
        all(compiler, "gnu11", true, words);
    }
    all(compiler, "c99", false, &["two"]);
}

#[test]
fn every_function_with_gcc() {
    assert!(is_there("gcc") || is_there("clang"), "{INSTALL}");
    if is_there("gcc") {
        all_ways("gcc");
    } else {
        not_possible("gcc is missing: only clang was tried (apt-get install gcc)");
    }
}

#[test]
fn every_function_with_clang() {
    assert!(is_there("gcc") || is_there("clang"), "{INSTALL}");
    if is_there("clang") {
        all_ways("clang");
    } else {
        not_possible("clang is missing: only gcc was tried (apt-get install clang)");
    }
}

/// The header is one for C++ as well, and stands alone.
#[test]
fn the_header_stands_alone() {
    let compiler = ["gcc", "clang"].into_iter().find(|name| is_there(name)).expect(INSTALL);
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alone.c");
    std::fs::write(&source, "#include \"framewright.h\"\nint fw_nothing(void);\n").expect("a file");
    let mut compile = Command::new(compiler);
    compile.args(["-ffreestanding", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
    run(compile.args(["-fsyntax-only", "-I"]).arg(folder().join("include")).arg(&source));
}

/// Says past the harness what could not be tried, for the summary of all tests.
fn not_possible(what: &str) {
    let line = format!("NOT POSSIBLE HERE: {what}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
