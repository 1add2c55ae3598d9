//! Free page reporting, started by hand, of a machine in the program's own process.

mod common;

use common::run;

fn exec(words: &[&str], commands: &str) -> (Option<i32>, String, String) {
    let fixed =
        ["boot", "--memory", "512M", "--cpus", "2", "--policy-table=no", "--exec", commands];
    let outcome = run(&[&fixed[..], words].concat());
    // The text after the report.
    let said = outcome.stdout.split("first touch:").nth(1).unwrap_or_default().lines().skip(2);
    (outcome.code, said.collect::<Vec<_>>().join("\n"), outcome.stderr)
}

#[test]
fn what_is_free_is_reported_and_what_becomes_free_again() {
    let commands = "reporting flush; reporting flush; alloc order=9 count=64; free all; reporting \
        flush; reporting; stress 1; verify";
    for advice in ["--reporting", "--reporting=free"] {
        let (code, said, errors) = exec(&[advice], commands);
        assert_eq!(code, Some(0), "{said}\n{errors}");
        assert!(errors.contains("Free page reporting enabled, from order 9 on"), "{errors}");
        let flushes: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("reported ") && line.contains(" in "))
            .collect();
        let [_, nothing, some] = flushes[..] else { panic!("{said}") };
        // How much is left for the first flush depends on the device's own pace.
        assert_eq!(nothing, "reported 0 KiB in 0 calls", "{said}");
        assert_eq!(some, "reported 128 MiB in 2 calls");
        assert!(
            said.contains("on, pace adaptive, delay 2000 ms, order as the device says"),
            "{said}"
        );
        // All memory is reported but ranges that are too small: less than 4 MiB of 512 MiB.
        let unreported = said.lines().find(|line| line.starts_with("free, not reported"));
        let unreported = unreported.and_then(|line| line.split_whitespace().nth_back(1));
        let pages = unreported.and_then(|pages| pages.parse::<u64>().ok());
        assert!(pages.is_some_and(|pages| pages < 1024), "{said}");
        assert!(said.contains(" 0 errors, 0 times busy, 0 time-outs"), "{said}");
        assert!(said.contains("verified: "), "{said}");
    }
}

#[test]
fn settings_are_files() {
    let folder = "/sys/module/page_reporting/parameters";
    let commands = format!(
        "echo fixed > {folder}/pace; echo 10 > {folder}/page_reporting_order; reporting pause; \
         reporting"
    );
    let (code, said, errors) = exec(&["--reporting"], &commands);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.contains("paused, pace fixed, delay 2000 ms, order 10"), "{said}");
}

#[test]
fn mistakes_are_told() {
    let (code, _, errors) = exec(&[], "reporting flush");
    assert_eq!((code, errors.as_str()), (Some(1), "reporting: no device takes reports\n"));
    let (code, said, errors) = exec(&[], "reporting; reporting now");
    assert!(said.contains("no device, pace adaptive"), "{said}");
    assert_eq!(
        (code, errors.as_str()),
        (Some(2), "reporting: expected status, flush, pause, resume or pools on|off\n")
    );
    let (code, _, errors) = exec(&["--reporting", "page_poison=1"], "reporting");
    assert!(code != Some(0) && errors.contains("would not leave in free memory"), "{errors}");
    for (words, why) in [
        (
            &["boot", "--memory", "512M", "--reporting"][..],
            "--reporting works only while commands run: add --exec",
        ),
        (&["shell", "--on", "qemu", "--reporting"], "on QEMU, --balloon adds a device for reports"),
        (&["shell", "--reporting=never"], "invalid value 'never' for '--reporting"),
    ] {
        let outcome = run(words);
        assert!(
            outcome.code == Some(2) && outcome.stderr.contains(why),
            "{words:?}: {}",
            outcome.stderr
        );
    }
}
