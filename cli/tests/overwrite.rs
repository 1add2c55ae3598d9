//! Files written to a named path: a file that is not a snapshot or page of ours is kept, links stay
//! links, and no reader sees half a file.

mod common;

use common::{Outcome, Scratch, finish, program, run};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn words(path: &Path) -> String {
    path.display().to_string()
}

/// Boots a machine with little memory and keeps a snapshot.
fn snapshot(path: &Path) -> Outcome {
    run(&["boot", "--memory", "64M", "--json", "--snapshot", &words(path)])
}

#[test]
fn links_stay_and_what_they_lead_to_is_written() {
    let folder = Scratch::new("links");
    let kept = folder.path("kept.json");
    symlink("memory.json", &kept).expect("a link");
    assert_eq!(snapshot(&kept).code, Some(0));
    assert!(fs::symlink_metadata(&kept).expect("it is there").is_symlink());
    assert!(fs::symlink_metadata(folder.path("memory.json")).expect("it was written").is_file());
    assert!(!fs::read_dir(folder.path("")).expect("a folder").any(|entry| {
        entry.expect("an entry").file_name().to_string_lossy().ends_with(".part")
    }));
}

#[test]
fn standard_output_is_written_to_and_not_replaced() {
    let folder = Scratch::new("stdout");
    let (link, all) = (folder.path("link"), folder.path("all.txt"));
    symlink("/dev/stdout", &link).expect("a link");
    for path in [Path::new("/dev/stdout"), Path::new("/dev/fd/1"), &link] {
        let mut boot = program();
        boot.args(["boot", "--memory", "64M", "--exec", "echo said", "--snapshot"]).arg(path);
        boot.stdout(fs::File::create(&all).expect("a file"));
        let outcome = finish(&mut boot);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{}", path.display());
        let text = fs::read_to_string(&all).expect("it was written");
        let (before, snapshot) = text.split_once("\nsaid\n").expect("what the command said");
        assert!(before.starts_with('[') && before.contains("\nhosted, "), "{before}");
        assert!(snapshot.starts_with("{\"format\":") && snapshot.ends_with("}\n"), "{snapshot}");
    }
    // Whatever is there is kept, so it need not be a snapshot.
    let mut boot = program();
    boot.args(["boot", "--memory", "64M", "--json", "--snapshot", "/dev/stdout"]);
    boot.stdout(fs::OpenOptions::new().append(true).open(&all).expect("a file"));
    let before = fs::read_to_string(&all).expect("it was written");
    assert_eq!(finish(&mut boot).code, Some(0));
    let text = fs::read_to_string(&all).expect("it was written");
    let added = text.strip_prefix(&before).expect("nothing was lost");
    assert_eq!(added.lines().count(), 2, "{added}");
    // A file that is open for reading only is refused before anything is done.
    let mut boot = program();
    boot.args(["boot", "--memory", "64M", "--snapshot", "/dev/stdin"]);
    boot.stdin(fs::File::open(&all).expect("a file"));
    let outcome = finish(&mut boot);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    let expected = "--snapshot /dev/stdin: cannot be written: Bad file descriptor";
    assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(&all).expect("it was written"), text);
}

#[test]
fn who_may_read_a_file_stays_as_it_was() {
    let folder = Scratch::new("mode");
    let path = folder.path("memory.json");
    assert_eq!(snapshot(&path).code, Some(0));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    assert_eq!(snapshot(&path).code, Some(0));
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn only_files_of_the_kind_that_is_written_give_way() {
    let folder = Scratch::new("kinds");
    let (results, memory, mine) =
        (folder.path("results.json"), folder.path("memory.json"), folder.path("mine.txt"));
    let made = "{\"bench\": \"alloc\", \"rows\": []}";
    fs::write(&results, made).expect("a file");
    fs::write(&mine, "years of work").expect("a file");
    assert_eq!(snapshot(&memory).code, Some(0));
    let before = fs::read_to_string(&memory).expect("it was written");
    for path in [&results, &mine] {
        let outcome = snapshot(path);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(2), ""),
            "nothing was booted in vain"
        );
        assert!(outcome.stderr.contains("is not a snapshot of memory"), "{}", outcome.stderr);
    }
    for path in [&memory, &results, &mine] {
        let outcome = run(&["report", &words(&memory), "-o", &words(path)]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("is not a page of `framewright report`"),
            "{}",
            outcome.stderr
        );
    }
    let outcome = run(&["report", &words(&memory), "-o", &words(&folder.path("new.html/"))]);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("is a folder"),
        "{}",
        outcome.stderr
    );
    // A page of ours is overwritten by the next one.
    let page = folder.path("page.html");
    for _ in 0..2 {
        assert_eq!(run(&["report", &words(&memory), "-o", &words(&page)]).code, Some(0));
    }
    // The page is kept if its pictures cannot be written.
    let made_before = fs::read_to_string(&page).expect("it was written");
    fs::write(&page, made_before.replace("</html>", "</html><!--old-->")).expect("ours");
    let nowhere = folder.path("nowhere");
    symlink("gone", &nowhere).expect("a link");
    let outcome =
        run(&["report", &words(&memory), "-o", &words(&page), "--pictures", &words(&nowhere)]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(fs::read_to_string(&page).expect("it is there").contains("<!--old-->"));
    for (path, text) in [(&results, made), (&memory, before.as_str()), (&mine, "years of work")] {
        assert_eq!(fs::read_to_string(path).expect("it is there"), text, "{}", path.display());
    }
}
