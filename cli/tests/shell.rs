//! The shell on a machine in the program's own process: from a pipe, from a terminal, and after a
//! boot.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Outcome, program, run, signal};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use terminal::Terminal;

/// Runs `framewright shell` with these arguments and this input.
fn shell(words: &[&str], input: &[u8]) -> Outcome {
    let mut command = program();
    command.args(["shell", "--cpus", "2"]).args(words);
    if !words.contains(&"--memory") {
        command.args(["--memory", "1G"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // The shell may end before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn commands_come_from_a_pipe() {
    let outcome = shell(
        &[],
        b"echo a 'b  c'; echo $?\n# nothing\n\nalloc 9 2\r\nfree 1\necho 4096 > \
            /proc/sys/vm/min_free_kbytes;cat /proc/sys/vm/min_free_kbytes",
    );
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[..2], ["a b  c", "0"]);
    assert!(lines[2].starts_with("1: 2 x 512 pages, 4 MiB, first at 0x"), "{}", outcome.stdout);
    assert_eq!(lines[3], "freed 4 MiB");
    assert_eq!(lines[4], "4096");
}

#[test]
fn the_last_status_is_that_of_the_program() {
    for (input, status) in [
        ("", 0),
        ("cat /x", 1),
        ("cat /x\necho on\n", 0),
        ("nonsense", 127),
        ("echo 'a", 2),
        ("exit 9\necho never\n", 9),
        ("cat /x; exit", 1),
    ] {
        let outcome = shell(&[], input.as_bytes());
        assert_eq!(outcome.code, Some(status), "{input:?}: {}", outcome.stderr);
        assert!(!outcome.stdout.contains("never"));
    }
}

#[test]
fn complaints_go_to_standard_error_and_the_shell_goes_on() {
    let mut input = vec![b'x'; 5000];
    input.extend(
        b"\n\xff\xfe\necho still here | cat\ncat /proc\necho 1 > /proc/vmstat\necho here\n",
    );
    let outcome = shell(&[], &input);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "here\n"));
    let complaints: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(
        complaints,
        [
            "framewright: a line has at most 1000 bytes; this one was not run",
            "framewright: a line must be UTF-8 text; this one was not run",
            "framewright: `|` has no meaning here; quote it to use it as text",
            "cat: /proc: Is a directory",
            "echo: /proc/vmstat: Permission denied",
        ]
    );
}

#[test]
fn parameters_and_machines_are_those_of_boot() {
    let outcome = shell(
        &["pages=inside", "min_free_kbytes=2000"],
        b"cat /sys/module/framewright/parameters/pages /proc/sys/vm/min_free_kbytes",
    );
    assert_eq!(outcome.stdout, "inside\n2000\n");
    let outcome = shell(&["--nodes", "2"], b"cat /sys/devices/system/node/node1/distance; cpus");
    assert!(outcome.stdout.starts_with("20 10\n"), "{}", outcome.stdout);
    let outcome = shell(&["--map", "/dev/null", "--memory", "1G"], b"");
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("--memory cannot be used with --map"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn the_longest_list_of_nodes_is_shown_whole() {
    let odd = |end: usize| (1..end).step_by(2);
    let slow: String = odd(160).map(|node| format!("numa tier {node} 22\n")).collect();
    let words = ["--memory", "6G", "--nodes", "160"];
    let outcome = shell(&words, format!("{slow}numa").as_bytes());
    let list: Vec<String> = odd(160).map(|node| node.to_string()).collect();
    let shown = outcome.stdout.lines().find(|line| line.starts_with("   0 "));
    let shown = shown.and_then(|line| line.split_whitespace().nth(3));
    assert_eq!(shown, Some(list.join(",").as_str()), "{}", outcome.stderr);
}

#[test]
fn no_tip_leads_to_options_as_boot_parameters() {
    let outcome = shell(&["--exec", "cpus"], b"");
    assert_eq!(outcome.code, Some(2));
    assert_eq!(outcome.stderr, "framewright: unexpected argument '--exec' found\n");
}

#[test]
fn memory_that_is_gone_has_no_grade_and_no_area() {
    let input = "hotplug add 4G 1G movable\nhotplug remove 4G 128M\ngrade 2M@0x100000000 \
        movable\ngrade 2M@0x100000000 any\ncma create one 2M@0x100000000\ngrade \
        256M@0x100000000 movable\n";
    let outcome = shell(&["--memory", "4G", "mem=1G"], input.as_bytes());
    let complaints: Vec<&str> = outcome.stderr.lines().collect();
    let expected = [
        "grade: no memory is online there; no grade was changed",
        "grade: no memory is online there; no grade was changed",
        "cma: no memory is online there; no area was made",
        "grade: no memory is at pfn 0x100000; no grade was changed",
    ];
    assert_eq!(complaints, expected, "{}", outcome.stdout);
}

#[test]
fn more_than_64_gib_leave_memory_to_add_without_a_memory_map() {
    for (line, status) in [("", 2), ("pages=none", 0)] {
        let words = ["--memory", "128G", "mem=64G", line];
        let words = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
        let outcome = shell(&words, b"hotplug add 128G 1G\n");
        let says = outcome.stderr.contains("of more than 64 GiB only with `pages=none`");
        assert_eq!((outcome.code, says), (Some(status), status != 0), "{}", outcome.stderr);
    }
}

#[test]
fn movable_memory_of_what_came_later_leaves_it_again() {
    // More memory is in use than the first part has, so the vacated pages go to the second.
    let input = "movable fill 95\nhotplug add 4G 256M movable\nvacate 64M@0x8000000\nmovable \
        check\nfree 1\nhotplug remove 4G 256M\nmovable check\nhotplug add 4G 256M \
        movable\nmovable fill 80\nmovable fill 30\nhotplug remove 4G 256M\nmovable \
        check\nmovable free\nverify\n";
    let outcome = shell(&["--memory", "4G", "mem=256M"], input.as_bytes());
    let said = &outcome.stdout;
    assert_eq!(said.matches("removed, was available: 256 MiB").count(), 2, "{said}");
    assert_eq!(said.matches(": all intact").count(), 3, "{said}");
    assert_eq!(
        outcome.stderr,
        "movable: no handles are left; `movable free` and another fill make tables for all \
         memory\n"
    );
}

#[test]
fn memory_that_the_host_does_not_have_is_not_filled() {
    let outcome = shell(&["--memory", "24T"], b"movable fill 5\nmovable fill 5\nmovable\n");
    let refused = "movable: it writes to 23.";
    assert_eq!(outcome.stderr.matches(refused).count(), 2, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("but this host has ")
            && outcome
                .stderr
                .ends_with("no memory is held by handles; `movable fill` takes some\n"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn memory_far_apart_can_be_filled_and_moved() {
    // The second range is 4 TiB away, or 300 GiB.
    for start in [1_u64 << 42, 300 << 30] {
        let folder = common::Scratch::new("far-apart");
        let map = folder.path("map");
        let last = start + (64 << 20) - 1;
        let text = format!(
            "BIOS-e820: [mem 0x0000000000000000-0x0000000003ffffff] usable\n\
             BIOS-e820: [mem {start:#018x}-{last:#018x}] usable\n"
        );
        std::fs::write(&map, text).expect("a file");
        let mut command = program();
        command
            .args(["boot", "--cpus", "2", "--map"])
            .arg(&map)
            .args(["--exec", "movable fill 40; compact; movable check; movable free; verify"]);
        let outcome = common::finish(&mut command);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let said = &outcome.stdout;
        assert!(said.contains(" is in use (40 %)") && said.contains(": all intact"), "{said}");
    }
}

#[test]
fn workloads_run_on_all_cpus_and_lose_nothing() {
    let outcome =
        shell(&[], b"stress 1 seed 3; memhog 64M; memhog 100M hold 1 untouched; verify; stat\n");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    for expected in [
        " operations: ",
        "every page accounted for",
        "wrote to 64 MiB",
        "hold 100 MiB",
        "verified: ",
    ] {
        assert!(outcome.stdout.contains(expected), "{expected}: {}", outcome.stdout);
    }
    assert!(
        outcome.stdout.contains("allocated           0 KiB            0 pages"),
        "{}",
        outcome.stdout
    );
}

/// A thread of the program compacts fragmented memory without a command that asks for it.
#[test]
fn memory_is_compacted_in_the_background() {
    let outcome = shell(
        &["--memory", "128M"],
        b"movable fill 60; churn 2; movable check; cat /proc/vmstat; verify\n\
          echo 0 > /proc/sys/vm/compaction_proactiveness; movable fill 60; cat \
          /proc/vmstat; churn 2; cat /proc/vmstat\n",
    );
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let wakes = outcome.stdout.lines().filter_map(|line| line.strip_prefix("compact_daemon_wake "));
    let wakes: Vec<u64> = wakes.map(|count| count.parse().expect("a count")).collect();
    assert!(wakes.len() == 3 && wakes[0] > 0 && wakes[1] == wakes[2], "{}", outcome.stdout);
    assert!(outcome.stdout.contains(": all intact"), "{}", outcome.stdout);
}

/// Pages that are moved or reclaimed meanwhile are not lost.
#[test]
fn traffic_is_accounted_for_while_memory_is_compacted_and_reclaimed() {
    let commands: &[u8] = b"movable fill 60; stress 2; stress 1 seed 2; movable check\n\
        movable free; cache read 512M; stress 1; cache\n\
        cpu storm 100; stress 1 seed 2; cat /proc/vmstat; verify\n";
    let outcome = shell(&["--memory", "256M", "--reporting"], commands);
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.stdout.matches(", every page accounted for").count(), 5);
    assert!(outcome.stdout.contains(": all intact"), "{}", outcome.stdout);
    let counts = ["pgmigrate_success", "reclaim_hook_pages"].map(|name| {
        let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count")
    });
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}: {}", outcome.stdout);
}

#[test]
fn pools_are_files_and_huge_pages_are_used() {
    let commands = b"echo 64 > /proc/sys/vm/nr_hugepages\ncat /proc/meminfo\nhugetlb 2M \
        64\nhugetlb 2M 32 node 1
cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap; resize 2M 100; cat /proc/vmstat
echo many > /proc/sys/vm/nr_hugepages; cat /proc/sys/vm/nr_hugepages
resize 1G 1; echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/demote; cat \
/proc/sys/vm/nr_hugepages
resize 2M 0; page_fault1 1; page_fault2 1 cpus 2; churn 1; fragment 64M; verify\n";
    let outcome = shell(&["--memory", "4G", "--nodes", "2", "memmap_init=eager"], commands);
    assert_eq!(outcome.code, Some(0), "{} {}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.stderr, "echo: /proc/sys/vm/nr_hugepages: Invalid argument\n");
    for expected in [
        "HugePages_Total:      64\nHugePages_Free:       64\nHugePages_Rsvd:        \
         0\nHugePages_Surp:        0\n\
         Hugepagesize:       2048 kB\nHugetlb:          131072 kB\n64 pages of 2.00 MiB: each 4 \
         KiB written and read back",
        "\n32 pages of 2.00 MiB: each 4 KiB written and read back",
        "\n32\n2.00 MiB: 100 pages to stay, 0 surplus, ",
        // 64 blocks had entered before.
        "\nmemmap_reclaimed_blocks 36\n",
        "\n100\n1.00 GiB: 1 page to stay",
        "\n612\n2.00 MiB: 0 pages to stay",
        "page_fault1 cpus 1: ",
        "page_fault1 cpus 2: ",
        "page_fault2 cpus 2: ",
        " runs allocated and freed, ",
        "all freed: ",
        "verified: ",
    ] {
        assert!(outcome.stdout.contains(expected), "{expected}: {}", outcome.stdout);
    }
}

#[test]
fn a_signal_ends_a_command_and_the_shell() {
    let mut command = program();
    command
        .args(["shell", "--memory", "1G"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"echo ready\nsleep 1000\necho never\n").expect("it reads");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    // Before its first command the shell may not yet be watching for signals.
    assert_eq!(said.next().and_then(Result::ok).as_deref(), Some("ready"));
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "INT");
    let (_, stderr) = common::rest(&mut child);
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{stderr}");
    assert!(said.next().is_none() && stderr.contains("sleep: interrupted"), "{stderr}");
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    // Starts the program as nohup does.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    command.args([common::PROGRAM, "shell", "--cpus", "1", "--memory", "256M"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for round in 0..2 {
        writeln!(stdin, "echo {round}").expect("it reads");
        assert_eq!(said.next().and_then(Result::ok), Some(round.to_string()));
        signal(&child, "HUP");
    }
    drop(stdin);
    let (_, stderr) = common::rest(&mut child);
    assert_eq!((child.wait().expect("it ends").code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = program();
    command
        .args(["shell", "--memory", "1G"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"cat /proc/zoneinfo\nsleep 1000\n").expect("it reads");
    let (_, stderr) = common::rest(&mut child);
    assert_eq!((child.wait().expect("it ends").code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn commands_run_after_a_boot() {
    let outcome = run(&["boot", "--memory", "1G", "--exec", "echo 'the  end'; cat /x; exit 7"]);
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (Some(7), "cat: /x: No such file or directory\n")
    );
    assert!(
        outcome.stdout.contains("Zone ranges:") && outcome.stdout.ends_with("\n\nthe  end\n"),
        "{}",
        outcome.stdout
    );
    let outcome = run(&["boot", "--memory", "1G", "--json", "--exec", "echo \"it's\"; cat /x"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("one object");
    common::check_sums(&report);
    assert_eq!(
        report["exec"],
        serde_json::json!({ "status": 1, "output": "it's\n", "errors": "cat: /x: No such file or \
            directory\n" })
    );
}

#[test]
fn a_terminal_edits_remembers_and_interrupts() {
    let mut terminal = Terminal::run(&["shell", "--memory", "1G"]);
    terminal.expect("`help` shows commands");
    terminal.expect("framewright> ");
    terminal.send(b"ecko one\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7fh\x05 two\r");
    terminal.expect("\none two\r\nframewright> ");
    terminal.send(b"not this\x15\x1b[A three\r");
    terminal.expect("\none two three\r\nframewright> ");
    terminal.send(b"half a line\x03");
    terminal.expect("^C\r\nframewright> ");
    // While a command runs, the key is a signal.
    terminal.send(b"sleep 1000; echo never\r");
    std::thread::sleep(Duration::from_millis(500));
    terminal.send(b"\x03");
    terminal.expect("sleep: interrupted\r\nframewright> ");
    terminal.send(b"echo $?\r");
    terminal.expect("\n130\r\nframewright> ");
    terminal.send(b"nonsense\r");
    terminal.expect("command not found");
    terminal.expect("framewright> ");
    terminal.send(b"\x04");
    assert_eq!(terminal.end(), Some(127));
}

#[test]
fn a_terminal_that_hangs_up_ends_the_shell() {
    let mut terminal = Terminal::run(&["shell", "--memory", "1G"]);
    terminal.expect("framewright> ");
    signal(&terminal.child, "HUP");
    assert_eq!(terminal.end(), Some(129));
}
