//! `include/framewright.h` is what cbindgen generates from the sources. After a change to these,
//! `FRAMEWRIGHT_WRITE_HEADER=1 cargo test -p framewright-c --test header` writes it again.

use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language, Style};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const BEGINNING: &str = "\
/* Framewright, a physical memory manager, for kernels in C. Made by cbindgen from
 * crates/framewright-c/src: change it there.
 *
 *     cargo rustc --release -p framewright-c --crate-type staticlib -- --cfg framewright_archive
 *
 * makes target/release/libframewright_c.a, to be linked with the kernel, which has memcpy, memmove,
 * memset, memcmp and bcmp of its own. A kernel whose interrupts use the stack that they interrupt
 * adds --target x86_64-unknown-none: no red zone, no vector registers. The order of work is in
 * examples/c-kernel: fill in an fw_platform, call fw_bring_up with the memory map and with what is
 * in use, allocate.
 *
 * Calls return 0 or an fw_error. They may come from any CPU and any context but an NMI, once
 * fw_bring_up has returned 0. Addresses are physical, pages have 4096 bytes, order n is 2^n pages.
 */";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn made() -> String {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let config = Config {
        language: Language::C,
        style: Style::Tag,
        documentation_style: DocumentationStyle::C99,
        header: Some(BEGINNING.to_owned()),
        include_guard: Some("FRAMEWRIGHT_H".to_owned()),
        cpp_compat: true,
        line_length: 100,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: names(&["stdbool.h", "stddef.h", "stdint.h"]),
        export: ExportConfig {
            // Types that functions take and return as numbers.
            include: names(&["fw_error", "fw_kind", "fw_type"]),
            exclude: names(&["rust_eh_personality"]),
            ..ExportConfig::default()
        },
        ..Config::default()
    };
    // cbindgen follows modules from here.
    let builder = Builder::new().with_config(config).with_src(folder().join("src/lib.rs"));
    let mut text = Vec::new();
    builder.generate().expect("the sources are understood").write(&mut text);
    let text = String::from_utf8(text).expect("C is text");
    // A heading in Rust's documentation.
    text.replace("// # Safety\n", "// The caller promises:\n")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = folder().join("include/framewright.h");
    let made = made();
    if std::env::var_os("FRAMEWRIGHT_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == made,
        "{} is not what the sources say; FRAMEWRIGHT_WRITE_HEADER=1 writes it anew",
        path.display()
    );
}

#[test]
fn every_function_is_declared_and_called_by_the_test_in_c() {
    let header = made();
    let program = fs::read_to_string(folder().join("tests/c/all.c")).expect("the program is there");
    let mut functions = BTreeSet::new();
    for file in fs::read_dir(folder().join("src")).expect("a folder") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a source");
        for line in text.lines().filter(|line| line.contains("extern \"C\" fn fw_")) {
            let name = line.split_once("fn ").expect("as above").1;
            functions.insert(name.split('(').next().expect("a name").to_owned());
        }
    }
    assert!(functions.len() > 10, "{functions:?}");
    for name in functions {
        let starts = [format!(" {name}("), format!("*{name}(")];
        let declarations: usize = starts.iter().map(|start| header.matches(start).count()).sum();
        assert_eq!(declarations, 1, "declarations of {name} in the header");
        assert!(program.contains(&format!("{name}(")), "tests/c/all.c does not call {name}");
    }
}
