//! Checks that comments explain memory orderings: with what each pairs, or why with nothing.
//!
//! A program can only check that a file which uses an ordering mentions it. Tests, examples and
//! programs are left out.

use crate::rust::source;

/// The name of each ordering in code, and the words by which comments may mention it.
const ORDERS: [(&str, &[&str]); 5] = [
    ("Relaxed", &["Relaxed"]),
    ("Acquire", &["Acquire", "acquires"]),
    ("Release", &["Release", "releases"]),
    ("AcqRel", &["AcqRel", "Acquire and Release"]),
    ("SeqCst", &["SeqCst", "equentially consistent"]),
];

/// The files to which the rule applies: sources that run beside other threads or CPUs.
const SOURCES: [&str; 11] = [
    "crates/framewright/src/",
    "crates/framewright-jobs/src/",
    "crates/framewright-jobs-linux/src/",
    "crates/framewright-arch/src/",
    "crates/framewright-virtio/src/",
    "crates/framewright-balloon/src/",
    "crates/framewright-hosted/src/",
    "crates/framewright-workload/src/",
    "crates/framewright-session/src/",
    "crates/framewright-shell/src/",
    "guest/src/",
];

/// The broken rules of a file, which is shown as `path`, with line numbers.
pub fn inspect(path: &str, text: &str) -> Vec<(usize, String)> {
    if !SOURCES.iter().any(|folder| path.starts_with(folder)) || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let code = source::code(text);
    let comments: Vec<&str> =
        text.lines().filter_map(|line| line.find("//").map(|at| &line[at..])).collect();
    let silent = |names: &[&str]| {
        !comments.iter().any(|comment| names.iter().any(|name| comment.contains(name)))
    };
    let mut findings = Vec::new();
    for (order, _) in ORDERS.into_iter().filter(|(_, names)| silent(names)) {
        let is_used =
            |line: &&str| !line.trim_start().starts_with("use ") && super::has_word(line, order);
        if let Some((index, _)) = before_tests(&code).enumerate().find(|(_, line)| is_used(line)) {
            findings.push((
                index + 1,
                format!(
                    "`{order}`, and no comment of the file speaks of it: say with what it pairs, \
                     or why with nothing"
                ),
            ));
        }
    }
    findings
}

/// The lines before the module of tests, which ends a file. Other items may be for tests, too.
fn before_tests(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = code.lines().map(str::trim_start);
    code.lines().take_while(move |_| {
        let is_for_tests = rest.next() == Some("#[cfg(test)]");
        let item = rest.clone().find(|line| !line.starts_with('#')).unwrap_or_default();
        !(is_for_tests && super::has_word(item, "mod") && item.ends_with('{'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/framewright/src/x.rs";

    #[test]
    fn an_order_is_explained_where_it_is_used() {
        let silent = "//! H.\nuse core::Relaxed;\nfn f() {\n    x.load(Ordering::Relaxed);\n}\n";
        assert_eq!(inspect(PATH, silent).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4]);
        assert!(inspect("crates/framewright/tests/x.rs", silent).is_empty(), "a test");
        let explained = silent.replace("fn f", "// Relaxed: a counter.\nfn f");
        assert!(inspect(PATH, &explained).is_empty());
        let wrong = silent.replace("fn f", "// Acquire pairs with nothing.\nfn f");
        assert_eq!(inspect(PATH, &wrong).len(), 1);
    }

    #[test]
    fn tests_and_words_that_only_look_alike_are_left_alone() {
        let text = "//! H.\nfn f(x: Released) {}\n#[cfg(test)]\nmod tests {\n    \
            x.load(Ordering::SeqCst);\n}\n";
        assert!(inspect(PATH, text).is_empty());
        let helper = "//! H.\n#[cfg(test)]\nmod more;\n#[cfg(test)]\nfn f() {}\nfn g() {\n    \
            x.load(Ordering::SeqCst);\n}\n";
        assert_eq!(inspect(PATH, helper).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [7]);
    }
}
