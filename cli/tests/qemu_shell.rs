//! The shell in the reference guest: from the kernel's command line, from a pipe and from a
//! terminal, over the serial line.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Outcome, check_sums, finish, program};
use std::io::Write;
use std::process::{Command, Stdio};
use terminal::Terminal;

const MACHINE: [&str; 6] = ["--on", "qemu", "--accel", "tcg", "--memory", "256M"];

fn command(name: &str) -> Command {
    let mut command = program();
    command.arg(name).args(MACHINE);
    command
}

#[test]
fn commands_survive_the_kernels_command_line() {
    let commands = "echo \"it's\"  'a  b' \u{e4}%20 > /nothing; echo \"it's\"  'a  b' \
        \u{e4}%20\nalloc 9 2; cat /proc/buddyinfo; exit 6";
    let outcome = finish(command("boot").args(["--nodes", "2", "--exec", commands]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(6), ""));
    let text = outcome.stdout;
    let (boot, said) = text.split_once("first line ").expect("the tables come first");
    assert!(boot.contains("Zone ranges:") && boot.contains("node  zone"), "{text}");
    let lines: Vec<&str> = said.lines().skip(2).collect();
    assert_eq!(lines[..2], ["echo: /nothing: No such file or directory", "it's a  b \u{e4}%20"]);
    assert!(lines[2].starts_with("1: 2 x 512 pages, 4 MiB, first at 0x"));
    assert!(
        lines[3].starts_with("Node 0, zone      DMA ")
            && lines[5].starts_with("Node 1, zone    DMA32 "),
        "{said}"
    );
    assert!(!text.contains("@s"), "{text}");
}

#[test]
fn the_object_has_what_commands_said() {
    let outcome =
        finish(command("boot").args(["--json", "--exec", "stress 1; cat /x; echo -n end"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report = outcome.json();
    check_sums(&report);
    let said = report["exec"]["output"].as_str().expect("text");
    assert!(
        said.contains("every page accounted for")
            && said.ends_with("cat: /x: No such file or directory\nend\n"),
        "{said}"
    );
    assert_eq!(
        (report["exec"]["status"].as_u64(), report["platform"].as_str()),
        (Some(0), Some("qemu"))
    );
}

#[test]
fn all_cpus_take_part_and_what_they_count_can_be_read() {
    let commands = "cpus; stress 2; verify; cat /proc/interrupts /proc/vmstat";
    let outcome =
        finish(command("boot").args(["--cpus", "4", "--nodes", "2", "--json", "--exec", commands]));
    let report = outcome.json();
    let said = report["exec"]["output"].as_str().expect("text");
    assert_eq!(report["exec"]["status"].as_u64(), Some(0), "{said}");
    assert!(said.contains("every page accounted for") && said.contains("verified: "), "{said}");
    assert!(said.contains("   3     1  node 1 DMA32"), "{said}");
    let head = format!("{:11}CPU0       CPU1       CPU2       CPU3       ", "");
    assert!(said.lines().any(|line| line == head), "{said}");
    let row = |name: &str| {
        said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{said}"))
    };
    let numbers = |name: &str| {
        row(name).split_whitespace().map_while(|word| word.parse::<u64>().ok()).collect::<Vec<_>>()
    };
    assert_eq!(numbers("LOC: ").len(), 4);
    assert!(numbers("IPI: ").iter().sum::<u64>() > 0, "{said}");
    for name in
        ["nr_free_pages ", "nr_tlb_remote_flush ", "tlb_remote_flush_cycles ", "memmap_flush "]
    {
        assert_eq!(numbers(name).len(), 1, "{name}");
    }
}

/// Returns the number after a name in each copy of a file that was shown.
fn shown(said: &str, name: &str) -> Vec<u64> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']));
    lines
        .map(|rest| {
            rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
        })
        .collect()
}

/// Returns the free memory in KiB, including pages in per-CPU caches.
fn free(said: &str) -> Vec<u64> {
    let cached = shown(said, "PcpFree");
    shown(said, "MemFree").into_iter().zip(cached).map(|(free, cached)| free + cached).collect()
}

#[test]
fn pools_grow_shrink_and_give_their_memory_map_back() {
    let commands = "cat /proc/meminfo; echo 64 > /proc/sys/vm/nr_hugepages; cat /proc/meminfo; \
        echo 0 > /proc/sys/vm/nr_hugepages; \
                    echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap; resize 2M 64; cat \
                    /proc/meminfo /proc/vmstat; hugetlb 2M 64; \
                    hugetlb 2M 32 node 1; resize 2M 8 node 0; resize 2M 0; cat /proc/meminfo; \
                    page_fault1 1 cpus 2; page_fault2 1 cpus 2; churn 1; fragment 32M; verify; \
                    echo x > /proc/sys/vm/nr_hugepages; echo $?";
    let machine =
        ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "1G", "--cpus", "2", "--nodes", "2"];
    let outcome =
        finish(program().args(machine).args(["memmap_init=eager", "--json", "--exec", commands]));
    let report = outcome.json();
    let said = report["exec"]["output"].as_str().expect("text");
    assert_eq!(shown(said, "HugePages_Total"), [0, 64, 64, 0], "{said}");
    assert_eq!(shown(said, "HugePages_Free"), [0, 64, 64, 0]);
    assert_eq!(shown(said, "Hugetlb"), [0, 131_072, 131_072, 0]);
    let [before, plain, reclaimed, after] = free(said)[..] else { panic!("{said}") };
    assert_eq!(before - plain, 131_072);
    // HVO saves 32 KiB for each page, less page tables.
    let saved = shown(said, "memmap_saved_pages")[0];
    assert!((480..=512).contains(&saved) && reclaimed == plain + saved * 4, "{saved}: {said}");
    assert_eq!(shown(said, "memmap_reclaimed_blocks"), [64]);
    assert!((2..=4).contains(&shown(said, "memmap_pool_flush")[0]), "{said}");
    // The memory map stays absent until it is needed.
    assert_eq!(after, before + saved * 4);
    for expected in [
        "\n64 pages of 2.00 MiB: each 4 KiB written and read back",
        "\n32 pages of 2.00 MiB: each 4 KiB written and read back",
        "\n2.00 MiB: 40 pages to stay, 0 surplus, ",
        "\npage_fault1 cpus 2: ",
        "\npage_fault2 cpus 2: ",
        " runs allocated and freed, ",
        "\nverified: ",
        "echo: /proc/sys/vm/nr_hugepages: Invalid argument",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn huge_pages_are_used_at_addresses_of_their_own() {
    // Huge pages of both sizes, with and without HVO, on four CPUs that all access them; page
    // tables come and go with them.
    let commands = "cat /proc/meminfo; hugetlb 2M 40 1; hugetlb 1G; hugetlb; cat /proc/meminfo; \
                    echo 0 > /proc/sys/vm/nr_hugepages; resize 2M 12; hugetlb 2M 12 1; hugetlb 2M \
                    13; verify";
    let machine = [
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "4G",
        "--cpus",
        "4",
        "--timeout",
        "600",
    ];
    let words = [
        "hugetlb_free_vmemmap=on",
        "hugepagesz=1G",
        "hugepages=1",
        "hugepagesz=2M",
        "hugepages=70",
    ];
    let outcome = finish(program().args(machine).args(["--json", "--exec", commands]).args(words));
    let report = outcome.json();
    let said = report["exec"]["output"].as_str().expect("text");
    for expected in [
        "\n40 pages of 2.00 MiB: ",
        "\n1 page of 1.00 GiB: ",
        "\n70 pages of 2.00 MiB: ",
        "\n12 pages of 2.00 MiB: ",
    ] {
        let line = said.split(expected).nth(1).and_then(|rest| rest.lines().next());
        assert!(
            line.is_some_and(|line| line.contains(", used at addresses of their own")),
            "{expected}: {said}"
        );
    }
    // Both commands with a time limit report their rounds; on a busy machine that is one.
    let rounds =
        said.lines().filter(|line| line.ends_with(" round") || line.ends_with(" rounds")).count();
    assert_eq!(rounds, 2, "{said}");
    assert!(
        said.contains("13 pages: no unreserved 2.00 MiB page is free")
            && said.contains("\nverified: "),
        "{said}"
    );
    for (name, pages) in [
        ("HugePages_Total", 70),
        ("HugePages_Free", 70),
        ("HugePages_Rsvd", 0),
        ("HugePages_Surp", 0),
    ] {
        assert_eq!(shown(said, name), [pages, pages], "{said}");
    }
    let [before, after] = free(said)[..] else { panic!("{said}") };
    assert!(after.abs_diff(before) <= 256, "tables came back: {said}");
}

#[test]
fn what_does_not_fit_on_the_command_line_is_refused() {
    let outcome = finish(command("boot").args(["--exec", &"echo ; ".repeat(1000)]));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("at most 4095 are possible"), "{}", outcome.stderr);
}

#[test]
fn commands_come_over_the_serial_line() {
    let mut command = command("shell");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let long = "x".repeat(3000);
    let input = format!(
        "echo '@end'; echo @status 3; echo @@\n{long}\nmemhog 100M\nverify\n\
         echo 'a\x03b\x04c\x10'\necho 5000 > \
         /proc/sys/vm/min_free_kbytes\ncat /proc/sys/vm/min_free_kbytes\nls /proc\nnonsense"
    );
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    let outcome = Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(outcome.code, Some(127), "{} {}", outcome.stdout, outcome.stderr);
    // Output that looks like the guest's messages to the program is not taken for one.
    assert_eq!(lines[..3], ["@end", "@status 3", "@@"]);
    assert_eq!(lines[3], "framewright: a line has at most 1000 bytes; this one was not run");
    assert!(
        lines[4].starts_with("wrote to 100 MiB in ") && lines[5].starts_with("verified: "),
        "{}",
        outcome.stdout
    );
    // No byte from a pipe is treated as a key.
    assert_eq!(lines[6..9], ["a\x03b\x04c\x10", "5000", "buddyinfo"]);
    assert!(
        lines.last().is_some_and(|last| last.contains("nonsense: command not found")),
        "{}",
        outcome.stdout
    );
}

#[test]
fn a_terminal_reaches_the_guest() {
    let mut terminal = Terminal::run(&[&["shell"], &MACHINE[..]].concat());
    terminal.expect("framewright> ");
    terminal.send(b"ecko one\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7fh\x05 two\r");
    terminal.expect("\none two\r\nframewright> ");
    terminal.send(b"sleep 1000\r");
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.send(b"\x03");
    terminal.expect("sleep: interrupted\r\nframewright> ");
    // Ctrl-C works however much was typed ahead.
    terminal.send(b"sleep 1001\r");
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.send(&[&[b'x'; 300][..], b"\x03"].concat());
    terminal.expect("sleep: interrupted\r\nframewright> ");
    terminal.send(b"\x1b[A\x1b[A\x1b[A three; exit 4\r");
    terminal.expect("\none two three\r\n");
    assert_eq!(terminal.end(), Some(4));
}
