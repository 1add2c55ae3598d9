//! Hotplug as Linux's files show it.

use crate::add::{add, machine, node};
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use framewright::manager::{Budget, Group, HotplugSettings};
use framewright::parameters::{OnlinePolicy, OnlineType};
use framewright::procfs::{FileError, FileSystem, Source};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;

pub fn read(manager: &crate::common::Fake, path: &str) -> Result<String, FileError> {
    let table = manager.files();
    let sources: [&dyn Source; 1] = [&table];
    let mut text = String::new();
    FileSystem::new(&sources).read(path, &mut text)?;
    Ok(text)
}

pub fn write(manager: &crate::common::Fake, path: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    let sources: [&dyn Source; 1] = [&table];
    FileSystem::new(&sources).write(path, text)
}

const MEMORY: &str = "/sys/devices/system/memory";

#[test]
fn blocks_have_linuxs_files() {
    let manager = machine(gib(4, 5), "memhp_default_state=offline");
    assert_eq!(read(&manager, &format!("{MEMORY}/block_size_bytes")).as_deref(), Ok("8000000\n"));
    let of = |block: u32, file: &str| read(&manager, &format!("{MEMORY}/memory{block}/{file}"));
    assert_eq!(of(0, "state").as_deref(), Ok("online\n"));
    assert_eq!(of(0, "valid_zones").as_deref(), Ok("none\n"), "of DMA and DMA32");
    assert_eq!(of(1, "valid_zones").as_deref(), Ok("DMA32\n"));
    assert_eq!(of(2, "state"), Err(FileError::NotFound));
    assert_eq!(of(32, "state"), Err(FileError::NotFound));
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add_by_policy(mib(4096, 4224), node(0)) }.expect("added");
    assert_eq!(of(32, "state").as_deref(), Ok("offline\n"));
    assert_eq!(of(32, "phys_index").as_deref(), Ok("00000020\n"));
    assert_eq!(of(32, "removable").as_deref(), Ok("1\n"));
    assert_eq!(of(32, "valid_zones").as_deref(), Ok("Normal Movable\n"));
    let set = |text: &str| write(&manager, &format!("{MEMORY}/memory32/state"), text);
    assert_eq!(set("sleeping"), Err(FileError::Invalid));
    assert_eq!(set("offline"), Err(FileError::Invalid), "it is");
    set("online_movable\n").expect("there");
    assert_eq!(of(32, "state").as_deref(), Ok("online\n"));
    assert_eq!(of(32, "online").as_deref(), Ok("1\n"));
    assert_eq!(of(32, "valid_zones").as_deref(), Ok("Movable\n"));
    assert_eq!(set("online"), Err(FileError::Invalid), "it is");
    check(&manager);
    // A page of it is in use, and nobody can move the page.
    let page = manager.allocate_at(
        framewright::units::Pfn(4096 << 8),
        framewright::units::Order::PAGE,
        framewright::zone::MigrateType::Movable,
    );
    let page = page.expect("free");
    assert_eq!(set("offline"), Err(FileError::Busy));
    manager.give_back(page).expect("ours");
    write(&manager, &format!("{MEMORY}/memory32/online"), "0").expect("free");
    assert_eq!(of(32, "state").as_deref(), Ok("offline\n"));
    write(&manager, &format!("{MEMORY}/memory32/online"), "0").expect("it is, which is no error");
    write(&manager, &format!("{MEMORY}/memory32/online"), "1").expect("there");
    write(&manager, &format!("{MEMORY}/memory32/online"), "1").expect("it is");
    assert_eq!(of(32, "valid_zones").as_deref(), Ok("Normal\n"));
    check(&manager);
}

/// Tables of a window in its first block do not make that block online.
#[test]
fn a_block_that_begins_with_tables_is_offline_until_its_memory_is_online() {
    let manager = machine(gib(4, 36), "");
    // SAFETY: the machine has this memory and nobody else uses it.
    unsafe { manager.hotplug().add_offline(gib(4, 36), node(0)) }.expect("added");
    let of = |block: u32, file: &str| read(&manager, &format!("{MEMORY}/memory{block}/{file}"));
    assert_eq!(of(32, "state").as_deref(), Ok("offline\n"));
    assert_eq!(of(32, "online").as_deref(), Ok("0\n"));
    assert_eq!(of(32, "valid_zones").as_deref(), Ok("Normal Movable\n"));
    // It is offline already, which is an error for one of the files.
    assert_eq!(write(&manager, &format!("{MEMORY}/memory32/online"), "0"), Ok(()));
    let again = write(&manager, &format!("{MEMORY}/memory32/state"), "offline");
    assert_eq!(again, Err(FileError::Invalid));
    write(&manager, &format!("{MEMORY}/memory32/state"), "online_movable").expect("offline");
    assert_eq!(of(32, "state").as_deref(), Ok("online\n"));
    assert_eq!(of(32, "valid_zones").as_deref(), Ok("Movable\n"));
    assert_eq!(of(33, "state").as_deref(), Ok("offline\n"));
    check(&manager);
}

#[test]
fn a_block_of_a_reserve_area_is_busy() {
    let machine = FakeMachine::builder().ram(mib(0, 2048)).build();
    let manager = bring_up_with(machine, &[], &parameters("cma=128M@1G")).expect("bring-up");
    let state = format!("{MEMORY}/memory8/state");
    assert_eq!(write(&manager, &state, "offline"), Err(FileError::Busy));
    assert_eq!(read(&manager, &state).as_deref(), Ok("online\n"));
    check(&manager);
}

#[test]
fn a_zone_without_memory_is_not_populated() {
    let manager = machine(gib(4, 5), "");
    let normal = || {
        let text = read(&manager, "/proc/zoneinfo").expect("there");
        let (_, zone) = text.split_once("zone   Normal").expect("a zone");
        zone.split("Node ").next().expect("its lines").to_owned()
    };
    let never = normal();
    add(&manager, gib(4, 5), 0, Grade::Any).expect("added");
    assert!(normal().contains("pagesets") && normal().contains("start_pfn:           1048576"));
    // SAFETY: nobody looks up descriptors meanwhile.
    unsafe { manager.hotplug().remove(gib(4, 5), Budget::UNLIMITED) }.expect("free");
    assert_eq!(normal(), never, "as if it never had any");
}

/// Runs and grades of the memory map ascend, also where the windows came in another order.
#[test]
fn the_memory_map_ascends() {
    let manager = machine(gib(4, 9), "");
    for range in [gib(8, 9), gib(5, 6)] {
        add(&manager, range, 0, Grade::MovableOnly).expect("added");
    }
    let text = read(&manager, "/sys/kernel/debug/framewright/memory").expect("there");
    let (_, zone) = text.split_once("zone 0 Normal").expect("a zone");
    let first = |line: &str, begin: &str| {
        let number = line.strip_prefix(begin)?.split(' ').next()?;
        u64::from_str_radix(number, 16).ok()
    };
    for begin in ["0x", "grade movable 0x"] {
        let runs: Vec<u64> = zone.lines().filter_map(|line| first(line, begin)).collect();
        assert!(runs.len() > 1 && runs.is_sorted(), "{zone}");
        assert_eq!(runs[0], 5 << 18);
    }
}

/// A part that goes offline in the middle of movable-only memory is movable-only again when it
/// comes back, as in Linux, also between windows that hold their own tables.
#[test]
fn a_hole_in_movable_memory_is_movable() {
    for grade in [Grade::MovableOnly, Grade::Removable] {
        let manager = machine(gib(4, 40), "");
        add(&manager, gib(4, 6), 0, Grade::Any).expect("added");
        add(&manager, gib(6, 8), 0, grade).expect("added");
        add(&manager, gib(8, 40), 0, grade).expect("added");
        for (number, zones, after) in [
            (55, "Movable Normal\n", Grade::MovableOnly),
            (70, "Movable Normal\n", Grade::MovableOnly),
            (40, "Normal Movable\n", Grade::Any),
        ] {
            let of = |file: &str| format!("{MEMORY}/memory{number}/{file}");
            write(&manager, &of("state"), "offline").expect("free");
            assert_eq!(read(&manager, &of("valid_zones")).as_deref(), Ok(zones), "{number}");
            write(&manager, &of("state"), "online").expect("offline");
            let first = Pfn(number << 15);
            assert_eq!(manager.moving().grade_of(first), Some(after), "{number}");
        }
        check(&manager);
    }
}

/// A mover that reads the state of two blocks when it is asked who occupies a page of one of them.
struct Reader {
    manager: &'static Fake,
    page: Mutex<Pfn>,
    seen: Mutex<Vec<Result<String, FileError>>>,
}

// SAFETY: what `relocate` names is the page of this mover, and is nobody else's.
unsafe impl Mover for Reader {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if *self.page.lock().expect("alive") == pfn {
            Occupant::Movable(PfnRange::new(pfn.0, pfn.0 + 1))
        } else {
            Occupant::Unknown
        }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        let state = |block: u32| read(self.manager, &format!("{MEMORY}/memory{block}/state"));
        *self.seen.lock().expect("alive") = vec![state(32), state(33)];
        Ok(MoveToken(0))
    }

    unsafe fn relocate(&self, _: MoveToken, run: PfnRange, to: PfnRange) -> Result<(), MoveFailed> {
        crate::copy(self.manager, run, to);
        *self.page.lock().expect("alive") = to.start;
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn a_block_on_its_way_says_so() {
    let manager: &'static Fake = Box::leak(Box::new(machine(gib(4, 5), "")));
    add(manager, gib(4, 5), 0, Grade::Any).expect("added");
    let at = Pfn(4100 << 8);
    let page = manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("nobody's");
    let mover = Reader { manager, page: Mutex::new(page.start), seen: Mutex::default() };
    let block = mib(4096, 4224);
    manager.hotplug().by(&mover).offline(block, Budget::UNLIMITED).expect("it can be moved");
    let seen = mover.seen.lock().expect("alive").clone();
    assert_eq!(seen, [Ok("going-offline\n".into()), Ok("online\n".into())]);
    assert!(manager.hotplug().going().is_empty());
    let state = format!("{MEMORY}/memory32/state");
    assert_eq!(read(manager, &state).as_deref(), Ok("offline\n"));
    // A block that cannot be vacated is no longer going offline, either.
    let held = manager.allocate_at(Pfn(4225 << 8), Order::PAGE, MigrateType::Movable);
    let held = held.expect("nobody's");
    let failed = manager.hotplug().offline(mib(4224, 4352), Budget::UNLIMITED);
    assert!(failed.is_err(), "{failed:?}");
    assert!(manager.hotplug().going().is_empty());
    let state = format!("{MEMORY}/memory33/state");
    assert_eq!(read(manager, &state).as_deref(), Ok("online\n"));
    manager.give_back(held).expect("ours");
    let moved = *mover.page.lock().expect("alive");
    manager.give_back_order(moved, Order::PAGE).expect("ours");
    check(manager);
}

#[test]
fn what_is_set_is_read_and_followed() {
    let manager = machine(gib(4, 5), "");
    let auto = format!("{MEMORY}/auto_online_blocks");
    assert_eq!(read(&manager, &auto).as_deref(), Ok("online\n"));
    assert_eq!(write(&manager, &auto, "always"), Err(FileError::Invalid));
    write(&manager, &auto, "online_kernel").expect("known");
    assert_eq!(read(&manager, &auto).as_deref(), Ok("online_kernel\n"));
    let module = "/sys/module/memory_hotplug/parameters";
    for (file, first, wrong, next) in [
        ("online_policy", "contig-zones", "auto", "auto-movable"),
        ("auto_movable_ratio", "301", "many", "400"),
        ("auto_movable_numa_aware", "Y", "perhaps", "N"),
    ] {
        let path = format!("{module}/{file}");
        assert_eq!(read(&manager, &path), Ok(format!("{first}\n")));
        assert_eq!(write(&manager, &path, wrong), Err(FileError::Invalid));
        write(&manager, &path, next).expect("known");
        assert_eq!(read(&manager, &path), Ok(format!("{next}\n")));
    }
    let on_memory = format!("{module}/memmap_on_memory");
    assert_eq!(read(&manager, &on_memory).as_deref(), Ok("Y\n"));
    assert!(write(&manager, &on_memory, "N").is_err(), "at boot alone");
    let settings = manager.hotplug().settings();
    let expected = HotplugSettings {
        auto_online: OnlineType::Kernel,
        policy: OnlinePolicy::AutoMovable,
        auto_movable_ratio: 400,
        auto_movable_numa_aware: false,
        memmap_on_memory: true,
        block_bytes: 128 << 20,
    };
    assert_eq!(settings, expected);
}

/// 256 MiB at boot allow three times as much movable-only memory. A node without boot memory allows
/// none unless only the machine's ratio counts.
#[test]
fn auto_movable_keeps_the_ratio() {
    let manager = machine(gib(4, 8), "memory_hotplug.online_policy=auto-movable");
    let hotplug = manager.hotplug();
    let device = PhysRange::new(4 << 30, 6 << 30);
    hotplug
        .register_group(Group { region: device, node: node(0), unit_bytes: Some(128 << 20) })
        .expect("room");
    let twice = Group { region: mib(5000, 9000), node: node(0), unit_bytes: None };
    assert!(hotplug.register_group(twice).is_err());
    assert!(!hotplug.unregister_group(twice.region));
    assert!(hotplug.unregister_group(device) && !hotplug.unregister_group(device));
    hotplug.register_group(twice).expect("nothing is there any more");
    assert!(hotplug.unregister_group(twice.region));
    hotplug
        .register_group(Group { region: device, node: node(0), unit_bytes: Some(128 << 20) })
        .expect("room");
    let mut sorts = String::new();
    for number in 0..14 {
        let start = (4 << 30) + number * (128 << 20);
        let range = PhysRange::with_size(start, 128 << 20);
        // SAFETY: the machine has this memory and nobody else uses it.
        unsafe { hotplug.add_by_policy(range, node(0)) }.expect("added");
        let shares = hotplug.shares_of(range);
        sorts.push(if shares.movable_pages != 0 { 'm' } else { 'k' });
    }
    // Three times 256 MiB less a little, and one per cent of it.
    assert_eq!(sorts, "mmmmmmkmmmkmmm");
    check(&manager);
    let far = mib(6144, 6272);
    assert_eq!(hotplug.grade_for(far, node(1), OnlineType::Online), Some(Grade::Any));
    let settings = HotplugSettings { auto_movable_numa_aware: false, ..hotplug.settings() };
    hotplug.set_settings(settings);
    // The machine as a whole has no room for it, either, until more memory is added for all
    // requests.
    assert_eq!(hotplug.grade_for(far, node(1), OnlineType::Online), Some(Grade::Any));
    add(&manager, mib(7168, 8192), 0, Grade::Any).expect("added");
    assert_eq!(
        hotplug.grade_for(far, node(1), OnlineType::Online),
        Some(Grade::Any),
        "not at boot"
    );
}

/// The block size is computed as in Linux, and shows in the files and in the blocks' numbers.
#[test]
fn memory_blocks_grow_with_the_machine() {
    const MIB: u64 = 1 << 20;
    for (end_mib, on_metal, block_mib) in [
        (8 << 10, false, 128),
        (64 << 10, false, 2048),
        (65 << 10, false, 1024),
        ((100 << 10) + 256, false, 256),
        ((100 << 10) + 256, true, 2048),
        // The last frame is missing: only the smallest block size divides this memory.
        ((65 << 10) - 1, false, 128),
    ] {
        let mut machine = FakeMachine::builder().ram(mib(0, 64)).ram(mib(end_mib - 2, end_mib));
        if on_metal {
            machine = machine.on_bare_metal();
        }
        let manager = bring_up_with(machine.build(), &[], &parameters("")).expect("bring-up");
        let size = read(&manager, &format!("{MEMORY}/block_size_bytes"));
        assert_eq!(size, Ok(format!("{:x}\n", block_mib * MIB)), "{end_mib} MiB");
        let last = (end_mib - 1) / block_mib;
        let index = read(&manager, &format!("{MEMORY}/memory{last}/phys_index"));
        assert_eq!(index, Ok(format!("{last:08x}\n")));
        let beyond = read(&manager, &format!("{MEMORY}/memory{}/state", last + 1));
        assert_eq!(beyond, Err(FileError::NotFound));
    }
}
