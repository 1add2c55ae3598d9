//! Files written to a named path: a file that is not a result of ours is kept, links stay links,
//! and no reader sees half a file.

#[path = "../../cli/tests/common/mod.rs"]
mod common;
mod fixture;

use common::{Outcome, Scratch, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn words(path: &Path) -> String {
    path.display().to_string()
}

fn report(results: &Path, page: &Path) -> Outcome {
    run(&["report", &words(results), "-o", &words(page)])
}

#[test]
fn results_are_not_replaced_by_the_page_about_them() {
    let folder = Scratch::new("own-results");
    let results = folder.path("results.json");
    let text = fixture::results().to_string();
    fs::write(&results, &text).expect("a file");
    let outcome = report(&results, &results);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("is not a page of `framewright report`"), "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(&results).expect("it is there"), text);
    // A page from another program is kept, too, and a page of ours is overwritten by the next one.
    let page = folder.path("page.html");
    fs::write(&page, "<!doctype html><title>mine</title>").expect("a file");
    assert_eq!(report(&results, &page).code, Some(2));
    fs::write(&page, "").expect("a file");
    for _ in 0..2 {
        let outcome = report(&results, &page);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert!(fs::read_to_string(&page).expect("it was written").contains("</html>"));
    }
}

#[test]
fn links_stay_and_what_they_lead_to_is_written() {
    let folder = Scratch::new("links");
    let (results, deep) = (folder.path("results.json"), folder.path("deep"));
    fs::write(&results, fixture::results().to_string()).expect("a file");
    fs::create_dir(&deep).expect("a folder");
    let page = folder.path("page.html");
    // Two links, the second relative, whose target does not exist at first.
    symlink("deep/second", &page).expect("a link");
    symlink("../real.html", deep.join("second")).expect("a link");
    for _ in 0..2 {
        let outcome = report(&results, &page);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        for link in [&page, &deep.join("second")] {
            assert!(
                fs::symlink_metadata(link).expect("it is there").is_symlink(),
                "{}",
                link.display()
            );
        }
        assert!(fs::symlink_metadata(folder.path("real.html")).expect("it was written").is_file());
    }
    // Results are written through the link, too.
    let link = folder.path("link.html");
    symlink("results.json", &link).expect("a link");
    assert_eq!(report(&results, &link).code, Some(2));
    // A circle of links is refused and changes nothing.
    let (one, other) = (folder.path("one"), folder.path("other"));
    symlink("other", &one).expect("a link");
    symlink("one", &other).expect("a link");
    let outcome = report(&results, &one);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("cannot be written"),
        "{}",
        outcome.stderr
    );
    assert!(!fs::read_dir(folder.path("")).expect("a folder").any(|entry| {
        entry.expect("an entry").file_name().to_string_lossy().ends_with(".part")
    }));
}

#[test]
fn only_files_of_the_kind_that_is_written_give_way() {
    let folder = Scratch::new("kinds");
    let (results, memory, mine) =
        (folder.path("results.json"), folder.path("memory.json"), folder.path("mine.txt"));
    let made = fixture::results().to_string();
    fs::write(&results, &made).expect("a file");
    fs::write(&mine, "years of work").expect("a file");
    let before = fixture::snapshot().to_string();
    fs::write(&memory, &before).expect("a file");
    for path in [&memory, &mine] {
        let path = words(path);
        for words in [
            &["compare", "linux", "--kernel", "/nonexistent", "--json", path.as_str()][..],
            &["model", "--memory", "1G", "--json", path.as_str()],
        ] {
            let outcome = run(words);
            assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
            assert!(
                outcome.stderr.contains("is not a file of results"),
                "{words:?}: {}",
                outcome.stderr
            );
        }
    }
    // If one picture belongs to another program, neither pictures nor page are written.
    let (pictures, page) = (folder.path("pictures"), folder.path("page.html"));
    fs::create_dir(&pictures).expect("a folder");
    fs::write(pictures.join("jobs-1.svg"), "<svg>a drawing</svg>").expect("a file");
    let draw =
        || run(&["report", &words(&results), "-o", &words(&page), "--pictures", &words(&pictures)]);
    let outcome = draw();
    assert!(outcome.code == Some(2) && outcome.stderr.contains("jobs-1.svg"), "{}", outcome.stderr);
    assert!(!page.exists() && fs::read_dir(&pictures).expect("a folder").count() == 1);
    fs::remove_file(pictures.join("jobs-1.svg")).expect("it is there");
    for _ in 0..2 {
        assert_eq!(draw().code, Some(0));
    }
    for (path, text) in [(&results, made.as_str()), (&memory, &before), (&mine, "years of work")] {
        assert_eq!(fs::read_to_string(path).expect("it is there"), text, "{}", path.display());
    }
}

#[test]
fn what_earlier_versions_made_gives_way_too() {
    let folder = Scratch::new("old-pages");
    let (results, page, pictures) =
        (folder.path("results.json"), folder.path("page.html"), folder.path("pictures"));
    fs::write(&results, fixture::results().to_string()).expect("a file");
    fs::create_dir(&pictures).expect("a folder");
    let old = "<!doctype html>\n<html lang=\"en\"><head><meta \
        charset=\"utf-8\"><title>Framewright: results</title></head></html>";
    fs::write(&page, old).expect("a file");
    // One picture was made before pictures had marks; the mark of the other follows a long label.
    let unmarked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images/memory.svg");
    fs::copy(unmarked, pictures.join("jobs-1.svg")).expect("the picture of the README");
    let long = format!("<svg aria-label=\"{}\"><!--framewright report--></svg>", "x".repeat(5000));
    fs::write(pictures.join("scaling-1.svg"), long).expect("a file");
    let outcome =
        run(&["report", &words(&results), "-o", &words(&page), "--pictures", &words(&pictures)]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    for path in [&page, &pictures.join("jobs-1.svg"), &pictures.join("scaling-1.svg")] {
        assert!(
            fs::read_to_string(path).expect("it is there").contains("framewright report\""),
            "{}",
            path.display()
        );
    }
}
