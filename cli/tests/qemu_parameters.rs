//! Words on the guest's command line that nobody knows, or that ask for what there is not: a boot that went on without them would be taken for one that did what they ask.

mod common;

use common::run;

#[test]
fn unknown_and_misspelt_words_end_the_boot_with_an_error() {
    for (words, said) in [
        (&["fault=double_free"][..], &["\"fault=double_free\"", "double-free", ": 1 of the command line's words"][..]),
        (
            &["fautl=panic", "stress=soon", "check=cpu", "stres=5"],
            &["\"fautl=panic\" is known neither", "stress= takes a number of seconds", "check= is cpus", ": 4 of the"],
        ),
    ] {
        let fixed = ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M"];
        let outcome = run(&[&fixed[..], words].concat());
        assert_ne!(outcome.code, Some(0), "{words:?}: {}", outcome.stdout);
        let text = format!("{}{}", outcome.stdout, outcome.stderr);
        for part in said {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("verified"), "the boot went on:\n{text}");
    }
}

#[test]
fn words_of_the_manager_with_wrong_values_are_listed_and_passed_over_as_linux_does() {
    let words = ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "min_free_kbytes=many", "numa=off"];
    let outcome = run(&words);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(0), "{text}");
}
