//! Tests of what happens to an earlier file.

use super::*;

fn header() -> Header {
    let machine = json!({ "cpu": "x", "cpus": 2, "memory_bytes": 1, "kernel": "Linux \
        6", "qemu": null, "build": "release", "load_average": 0.5 });
    Header { program: "1a2b".into(), command: "bench all".into(), machine }
}

fn section(rows: usize) -> Outcome {
    let rows = (0..rows).map(|index| json!({ "bench": "alloc", "index": index })).collect();
    Outcome::Measured { section: Section::new("alloc", 3, "time", rows), seconds: 1.5 }
}

/// A file with one section that was measured and one that failed.
fn some() -> ResultsFile {
    let mut file = ResultsFile::new(header());
    file.add("alloc", "alloc", None, &section(2)).expect("goes nowhere");
    file.add("init", "init", None, &Outcome::Failed("no memory".into())).expect("goes nowhere");
    file
}

#[test]
fn the_same_run_goes_on_without_what_failed() {
    let file = some();
    assert_eq!(file.failed(), ["init"]);
    let mut other_load = header();
    other_load.machine["load_average"] = json!(7.0);
    match earlier(&file.to_json().to_string(), &other_load).expect("is a file of results") {
        Earlier::GoOn { started, sections, rows } => {
            assert_eq!((started, sections.len(), rows.len()), (file.started, 1, 2));
            assert_eq!(
                (&sections[0]["section"], &sections[0]["seconds"]),
                (&json!("alloc"), &json!(1.5))
            );
        }
        Earlier::Anew(why) => panic!("{why}"),
    }
}

#[test]
fn another_run_begins_anew_and_says_why() {
    let with = |name: &str, value: Value| {
        let mut json = some().to_json();
        json[name] = value;
        json.to_string()
    };
    let mut machine = header().machine;
    machine["cpus"] = json!(4);
    for (text, expected) in [
        (with("framewright", json!("0.0.9")), "version 0.0.9"),
        (with("program", json!("1a2c")), "another build"),
        (with("command", json!("bench all --quick")), "another command"),
        (with("machine", machine), "another machine (cpus: 4, now 2)"),
        (with("machine", json!(null)), "another machine (cpu: null"),
    ] {
        match earlier(&text, &header()) {
            Ok(Earlier::Anew(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn a_whole_file_is_not_gone_on_with() {
    let mut file = ResultsFile::new(header());
    for part in PARTS {
        let outcome =
            if part.needs_qemu() { Outcome::LeftOut("no QEMU".into()) } else { section(1) };
        file.add(&part.name(), part.bench, part.on, &outcome).expect("goes nowhere");
    }
    assert!(file.failed().is_empty() && PARTS.into_iter().all(|part| file.has(&part.name())));
    let found = earlier(&file.to_json().to_string(), &header());
    assert!(matches!(&found, Ok(Earlier::Anew(why)) if why == "nothing is missing"), "{found:?}");
}

#[test]
fn what_is_no_file_of_results_is_not_written_over() {
    let whole = some().to_json().to_string();
    for text in [
        "",
        "[]",
        "{}",
        "hello",
        r#"{"format":2,"sections":[],"rows":[]}"#,
        r#"{"format":1,"sections":3,"rows":[]}"#,
    ] {
        assert!(earlier(text, &header()).is_err(), "{text}");
    }
    // No prefix of a file is accepted as a file.
    for length in 0..whole.len() {
        assert!(earlier(&whole[..length], &header()).is_err(), "{length}");
    }
}

/// Nothing is read from devices, which have no end, and an empty file is as good as none.
#[test]
fn what_holds_nothing_to_go_on_with_is_begun() {
    let empty = std::env::temp_dir().join(format!("framewright-empty-{}", std::process::id()));
    fs::write(&empty, "").expect("a file");
    for path in
        ["/dev/null", "/dev/zero", "/dev/stdout"].map(Path::new).into_iter().chain([&*empty])
    {
        let (file, why) = ResultsFile::open(path, header(), false).expect("a place");
        assert!(why.is_none() && file.sections.is_empty(), "{}", path.display());
    }
    fs::File::create(&empty).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    let error = ResultsFile::open(&empty, header(), false).expect_err("too large");
    assert!(matches!(&error, Error::Usage(why) if why.contains("file too large")), "{error:?}");
    fs::remove_file(&empty).expect("ours");
}

#[test]
fn what_was_kept_before_stays() {
    let folder = std::env::temp_dir().join(format!("framewright-old-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("all.json");
    let mut kept = Vec::new();
    for command in ["one", "two", "three"] {
        let mut file = some();
        file.header.command = command.into();
        fs::write(&path, file.to_json().to_string()).expect("a file");
        let (_, why) = ResultsFile::open(&path, header(), false).expect("a place");
        kept.push(why.and_then(|why| why.rsplit('/').next().map(ToOwned::to_owned)));
    }
    assert_eq!(kept, ["all.json.old", "all.json.old.1", "all.json.old.2"].map(|x| Some(x.into())));
    for (name, command) in [("old", "one"), ("old.1", "two"), ("old.2", "three")] {
        let text = fs::read_to_string(folder.join(format!("all.json.{name}"))).expect("kept");
        assert!(text.contains(&format!("\"command\":\"{command}\"")), "{name}: {text}");
    }
    fs::remove_dir_all(&folder).expect("ours");
}
