//! `hotplug`: adds memory, takes it offline or online, and removes it.

use super::arguments;
use crate::host::{Host, SpareMemory};
use crate::io::{Failed, Io};
use crate::shell::Shell;
use crate::size::Size;
use framewright::Platform;
use framewright::manager::Budget;
use framewright::parameters::{OnlineType, parse_size};
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright::zone::{Grade, Presence};

const WORDS: [&str; 4] = ["add", "remove", "online", "offline"];
/// How long vacating memory may take.
const VACATE_NS: u64 = 10_000_000_000;

/// What to do, and with which memory.
struct Wanted {
    range: PhysRange,
    node: NodeId,
    /// The grade; if it is missing, the manager's policy decides.
    grade: Option<Grade>,
    is_offline: bool,
}

impl Wanted {
    /// Parses the arguments; which ones may follow the range depends on `what`.
    fn parse(what: &str, arguments: &[&str], io: &mut Io<'_>) -> Result<Self, Failed> {
        let [takes_node, takes_grade] = [what == "add", what == "add" || what == "online"];
        let [start, size, rest @ ..] = arguments else {
            return Err(io.wrong(format_args!("expected an address and a size")));
        };
        let bytes = |text: &str, io: &mut Io<'_>| {
            parse_size(text).map_err(|error| io.wrong(format_args!("{text:?}: {error}")))
        };
        let (start, size) = (bytes(start, io)?, bytes(size, io)?);
        let end = start.checked_add(size);
        let end =
            end.ok_or_else(|| io.wrong(format_args!("the range ends beyond all addresses")))?;
        let range = PhysRange::new(start, end);
        let (node, grade) = (NodeId::ZERO, None);
        let mut wanted = Self { range, node, grade, is_offline: false };
        for &word in rest {
            let found = arguments::grade(word).filter(|_| takes_grade);
            match (word.split_once('='), found) {
                (Some(("node", number)), _) if takes_node => {
                    wanted.node = arguments::node(number, io)?;
                }
                (None, Some(grade)) => wanted.grade = Some(grade),
                (None, None) if word == "offline" && takes_node => wanted.is_offline = true,
                _ => {
                    let known = match (takes_node, takes_grade) {
                        (true, _) => "any, movable, removable, offline or node=N",
                        (_, true) => "any, movable or removable",
                        _ => "nothing after the size",
                    };
                    return Err(io.wrong(format_args!("{word}: expected {known}")));
                }
            }
        }
        if wanted.is_offline && wanted.grade.is_some() {
            return Err(
                io.wrong(format_args!("offline memory has no grade: `hotplug online` sets it"))
            );
        }
        Ok(wanted)
    }
}

pub(super) fn hotplug<P: Platform, H: Host>(
    shell: &mut Shell<'_, P, H>,
    arguments: &[&str],
    io: &mut Io<'_>,
) -> Result<(), Failed> {
    let Some((what, rest)) = arguments.split_first() else { return show(shell, io) };
    let hotplug = shell.manager.hotplug();
    // The shell's movable memory is moved as by `vacate`.
    let hotplug = shell.movable().map_or(hotplug, |memory| hotplug.by(memory));
    let started = shell.manager.platform().now_ns();
    if !WORDS.contains(what) {
        return Err(io.wrong(format_args!("{what}: expected add, remove, online or offline")));
    }
    let wanted = Wanted::parse(what, rest, io)?;
    let range = wanted.range;
    let budget = started
        .map_or(Budget::UNLIMITED, |now| Budget::until(now.saturating_add(VACATE_NS).max(1)));
    let (done, pages) = match *what {
        "add" => {
            // The manager itself says what is wrong with an empty range.
            let has = |spare: &dyn SpareMemory| range.size() == 0 || spare.has(range);
            if !shell.host.spare_memory().is_some_and(has) {
                return Err(io.wrong(format_args!(
                    "the machine has no memory at {range} that could be added; `mem=SIZE` on the \
                     command line leaves some, of more than 64 GiB only with `pages=none`"
                )));
            }
            let grade = match wanted.grade {
                _ if wanted.is_offline => None,
                Some(grade) => Some(grade),
                None => hotplug.grade_for(range, wanted.node, hotplug.settings().auto_online),
            };
            let added = match grade {
                // SAFETY: the host guarantees that the range is memory which nobody else uses
                // (invariant 1).
                Some(grade) => unsafe { hotplug.add(range, wanted.node, grade) },
                // SAFETY: the host guarantees that the range is memory which nobody else uses
                // (invariant 1).
                None => unsafe { hotplug.add_offline(range, wanted.node) },
            };
            ("added, available", added.map(|added| added.pages))
        }
        "online" => {
            let grade =
                wanted.grade.or_else(|| hotplug.grade_for(range, wanted.node, OnlineType::Online));
            let online = hotplug.online(range, grade.unwrap_or(Grade::Any));
            ("online, available", online.map(|added| added.pages))
        }
        "offline" => {
            let offline = hotplug.offline(range, budget);
            ("offline, was available", offline.map(|gone| gone.pages))
        }
        _ => {
            let of_device = hotplug.group_at(range).filter(|group| group.unit_bytes.is_some());
            if let Some(group) = of_device {
                return Err(io.wrong(format_args!(
                    "{range} belongs to the device at {}, which adds and removes it itself: use \
                     `plug`",
                    group.region
                )));
            }
            // SAFETY: the shell reads no page descriptor while it waits for this call (invariant
            // 49).
            let removed = unsafe { hotplug.remove(range, budget) };
            ("removed, was available", removed.map(|gone| gone.pages))
        }
    };
    let pages = pages.map_err(|error| io.fail(format_args!("{error}")))?;
    write!(io.out, "{range}, {done}: {}", Size::of_pages(pages))?;
    if let Some(ns) = shell.manager.platform().now_ns().zip(started).map(|(now, then)| now - then) {
        write!(io.out, ", {} us", ns / 1000)?;
    }
    Ok(writeln!(io.out)?)
}

/// Lists all memory: its place, its node and its state.
fn show<P: Platform, H: Host>(shell: &Shell<'_, P, H>, io: &mut Io<'_>) -> Result<(), Failed> {
    let hotplug = shell.manager.hotplug();
    writeln!(io.out, "from             to                     size node state")?;
    let mut result = Ok(());
    hotplug.for_each_run(&mut |range, presence, node| {
        let state = match presence {
            Presence::Online => "online",
            Presence::Offline => "offline",
            Presence::Absent => return,
        };
        if result.is_ok() {
            result = writeln!(
                io.out,
                "{:016x} {:016x} {:>10} {node:>4} {state}",
                range.start,
                range.end,
                Size::of_pages(range.size() / PAGE_SIZE),
            );
        }
    });
    result?;
    let left = hotplug.windows_left();
    Ok(writeln!(
        io.out,
        "{left} windows are left; {} pages were released",
        hotplug.released_pages()
    )?)
}
