//! Tests of where costs come from and of what a prediction consists of.

use super::*;
use crate::targets::Verdict;
use serde_json::json;

fn costs() -> Costs {
    Costs {
        bring_up: costs::Line { call_ns: 1000.0, unit_ns: 10.0 },
        write: costs::Rate { each: 1e10, limit: None },
        ..Costs::NONE
    }
}

#[test]
fn costs_are_found_in_either_form() {
    let row = json!({ "bench": "model", "source": "here", "what": "eager", "error_percent": -7.0 });
    let other = json!({ "bench": "alloc", "source": "here" });
    let mut section = section(&costs(), 3, "t", &Rows::of(std::slice::from_ref(&row)).model);
    section.rows = vec![row.clone(), other.clone()];
    let alone = section.to_json();
    let file = json!({ "format": 1, "sections": [{ "bench": "alloc" }, { "bench": "model",
        "costs": costs().to_json() }], "rows": [other, row] });
    for json in [alone, file] {
        let (found, rows) = costs_in(&json).expect("has costs");
        assert_eq!((found, rows.len()), (costs(), 1));
        assert_eq!((worst(&rows, "eager"), worst(&rows, "deferred")), (Some(-7.0), None));
    }
}

#[test]
fn files_without_costs_say_so() {
    let mut spoilt = json!({ "bench": "model", "costs": costs().to_json() });
    spoilt["costs"]["section_ns"] = json!("fast");
    let failed =
        json!({ "format": 1, "sections": [{ "bench": "model", "failed": "x" }], "rows": [] });
    for (file, expected) in [(failed, "no costs"), (spoilt, "section_ns"), (json!([]), "no costs")]
    {
        let error = costs_in(&file).map(|_| ()).expect_err("has none");
        assert!(error.contains(expected), "{error}");
    }
    let error = read(Path::new("/dev/zero")).map(|_| ()).expect_err("it has no end");
    let expected = "/dev/zero: is a device, not a file";
    assert!(matches!(&error, Error::Usage(why) if why == expected), "{error:?}");
}

#[test]
fn a_machine_is_predicted_node_by_node() {
    let machine = Machine::synthetic(24 << 40, 16, 256).expect("is one");
    let shape = Shape::of(&machine).expect("can be brought up");
    let checked = [
        json!({ "bench": "model", "what": "deferred", "error_percent": 5.0 }),
        json!({ "bench": "model", "what": "deferred", "error_percent": -9.0 }),
    ];
    let checked = Rows::of(&checked).model;
    let rows = predictions(&costs(), &shape, &checked);
    let nodes: Vec<&Model> =
        rows.iter().filter(|row| row.what.starts_with("deferred, node")).collect();
    assert_eq!(nodes.len(), 16);
    for node in nodes {
        assert_eq!((node.threads, node.error_percent.0.get()), (16, Some(-9.0)));
        // 12288 sections on 16 threads make chunks of 192 sections, or 191 if the first section is
        // not deferred.
        assert!(sections(node).is_some_and(|chunk| (190..=192).contains(&chunk)), "{node:?}");
        // 24 GiB of descriptors at 160 GB/s.
        assert!(node.predicted_ms.get().is_some_and(|ms| (150.0..190.0).contains(&ms)), "{node:?}");
    }
    assert!(
        rows.iter().all(|row| row.predicted_ms.get().is_some_and(|ms| ms.is_finite() && ms >= 0.0))
    );
    for what in ["bring-up", "eager", "deferred", "flush of all CPUs"] {
        assert_eq!(rows.iter().filter(|row| row.what == what).count(), 1, "{what}");
    }
}

#[test]
fn rows_that_are_left_out_leave_the_error_open() {
    let row = checks::checked("eager", "8G/1 node", 1, 1.0, (1.0, 1.1));
    let row = Model { source: "here".into(), ..row };
    let verdict = |rows: &[Model]| {
        let all = crate::registry::evaluate(&Rows::of(&crate::rows::to_json(rows)));
        let outcome = all.into_iter().find(|outcome| outcome.target.id == "model-error");
        outcome.expect("a target").verdict
    };
    assert_eq!(verdict(std::slice::from_ref(&row)), Verdict::Met);
    assert_eq!(verdict(&[checks::not_measured(2), row]), Verdict::NotMeasured);
}
