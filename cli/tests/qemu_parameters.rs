//! Guest parameters that are unknown or ask for something that does not exist. A misspelt parameter
//! of the guest's own must end the boot: otherwise a user would believe that it took effect. Other
//! words are listed and ignored, as in Linux.

mod common;

use common::run;

#[test]
fn wrong_and_misspelt_words_of_the_guest_end_the_boot_with_an_error() {
    for (words, said) in [
        (
            &["fault=double_free"][..],
            &["\"fault=double_free\"", "double-free", ": 1 of the guest's parameters is wrong"][..],
        ),
        (
            &["fautl=panic", "stress=soon", "check=cpu", "stres=5", "stress_operations=x"],
            &[
                "\"fautl=panic\": unknown; did you mean fault?",
                "stress= takes a number of seconds",
                "check= is cpus",
                "did you mean stress?",
                "stress_operations= takes a number",
                ": 5 of the guest's parameters are wrong",
            ],
        ),
        (
            &[
                "quiet",
                "Fault-CPU=1",
                "stress_ops=100",
                "balloon=5",
                "snapshotx=1",
                "exec",
                "reporing=2",
                "shell_plain",
            ],
            &[
                "parameter \"quiet\", ignored",
                "did you mean fault_cpu?",
                "\"stress_ops=100\": unknown; did you mean stress",
                "did you mean balloon_test?",
                "did you mean snapshot?",
                "\"exec\": its value is missing: exec=...",
                "did you mean reporting?",
                "did you mean shell?",
                ": 7 of the guest's parameters are wrong",
            ],
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
    let words = [
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "256M",
        "min_free_kbytes=many",
        "numa=off",
    ];
    let outcome = run(&words);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(0), "{text}");
}

/// Words that Linux command lines often hold.
const FOREIGN: &str = "console=ttyS0,115200n8 quiet root=/dev/vda1 ro init=/sbin/init panic=-1 \
    nokaslr reboot=k \
                       earlyprintk=serial loglevel=7 acpi=off pci=off noexec=off crashkernel=256M \
                       resume=UUID=0 splash \
                       checkreqprot=1 fail_page_alloc=1,2 selinux=0 \
                       rcupdate.rcu_cpu_stall_timeout=9 = -- =5 x";

#[test]
fn words_for_others_are_listed_and_the_boot_goes_on() {
    let fixed = ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "--"];
    let words: Vec<&str> = FOREIGN.split_ascii_whitespace().filter(|&word| word != "--").collect();
    let outcome = run(&[&fixed[..], &words].concat());
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(0), "{text}");
    for word in words {
        let line = format!("Unknown kernel command line parameter \"{word}\", ignored");
        assert_eq!(text.matches(&line).count(), 1, "{word}:\n{text}");
    }
    assert!(text.contains("verified"), "{text}");
}
