//! Detects that cargo failed because it cannot reach a registry, which says nothing about our code.

use crate::step::Failure;
use crate::workspace;
use std::path::Path;
use std::{fs, io};

/// Messages of cargo when nothing answers, or when it is offline.
const OUT_OF_REACH: [&str; 6] = [
    "failed to download",
    "download of config.json failed",
    "Could not resolve host",
    "spurious network error",
    "failed to query replaced source",
    "nable to update registry",
];
/// Part of the message when a server answers but does not have the name or the version.
const ANSWERED: &str = "got 404";
/// Cargo's message about a package that no index has, up to the name.
const UNKNOWN: &str = "no matching package named `";
/// The file beside a manifest with the versions that cargo has resolved.
const LOCK: &str = "Cargo.lock";

/// Whether `failure`, of cargo on this manifest, is due to a registry that cannot be reached.
///
/// A package that no index has is a mistake, unless the lock file has it from a registry: then the
/// index is missing, for example because cargo is offline or has only a part of the index in a
/// folder.
///
/// # Errors
/// The errors of reading the lock file.
pub fn is_out_of_reach(failure: &Failure, manifest: &str) -> io::Result<bool> {
    let lock = workspace::root().join(Path::new(manifest).with_file_name(LOCK));
    let lock = fs::read_to_string(lock)?;
    Ok(says_out_of_reach(&failure.output, &lock))
}

fn says_out_of_reach(output: &str, lock: &str) -> bool {
    // Warnings may report attempts that failed before one that succeeded.
    let mut lines = output.lines().skip_while(|line| !line.starts_with("error"));
    let error = lines.by_ref().collect::<Vec<_>>().join("\n");
    if let Some((_, rest)) = error.split_once(UNKNOWN) {
        return rest.split_once('`').is_some_and(|(name, _)| is_from_registry(lock, name));
    }
    !error.contains(ANSWERED) && OUT_OF_REACH.iter().any(|words| error.contains(words))
}

/// Whether a lock file has a package that others published.
fn is_from_registry(lock: &str, name: &str) -> bool {
    let name = format!("name = \"{name}\"");
    let mut packages = lock.split("[[package]]");
    packages.any(|package| {
        let has = |start: &str| package.lines().any(|line| line.starts_with(start));
        has(&name) && has("source = ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n\
        [[package]]\nname = \"libc\"\nversion = \"0.2.0\"\nsource = \"registry+https://x\"\n";

    #[test]
    fn a_registry_that_does_not_answer_is_out_of_reach() {
        let retry = "warning: spurious network error (2 tries remaining): [6] Could not resolve \
            hostname (Could not resolve host: registry.example)\n";
        let unreachable = "error: failed to get `libc` as a dependency of package `a v0.1.0`\n\n\
            Caused by:\n  download of config.json failed\n\nCaused by:\n  failed to download from \
            `https://registry.example/config.json`\n";
        let told = "error: no matching package named `libc` found\nlocation searched: an index \
            index\nAs a reminder, you're using offline mode (--offline)\n";
        for output in
            [unreachable.to_owned(), format!("$ cargo\n{retry}{unreachable}"), told.into()]
        {
            assert!(says_out_of_reach(&output, LOCK), "{output}");
        }
    }

    #[test]
    fn mistakes_of_ours_are_not() {
        let retry = "warning: spurious network error (1 try remaining): [6] Could not resolve\n";
        for mistake in [
            "error: cannot update the lock file Cargo.lock because --locked was passed\n",
            "error: no matching package named `ours` found\nlocation searched: an index\n",
            "error: no matching package named `libcc` found\nlocation searched: an index\n",
            "error: failed to parse manifest at `Cargo.toml`\n",
            "error: failed to download from `https://x/a/1.0.0/download`\n\nCaused by:\n  failed \
             to get successful HTTP response from `https://x/a`, got 404\n",
            "error: failed to select a version for the requirement `libc = \"^77\"`\n",
        ] {
            let output = format!("$ cargo fetch\n{retry}{mistake}");
            assert!(!says_out_of_reach(&output, LOCK), "{output}");
        }
    }
}
