//! Programs that safe code must not be able to write. Next to each stands a permitted program,
//! which shows that the first one is refused for the right reason.
//!
//! Each refused program did harm once: it forbids itself unsafe code and took memory from its
//! owner.
//!
//! Freeing by number memory that somebody else may own:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::PfnRange};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.free(PfnRange::new(512, 1024));
//! }
//! ```
//! ```
//! use framewright::{Manager, Platform, units::PfnRange};
//! unsafe fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = unsafe { manager.free(PfnRange::new(512, 1024)) };
//! }
//! ```
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::{Order, Pfn}};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.free_order(Pfn(512), Order::BLOCK);
//! }
//! ```
//! ```
//! use framewright::{Manager, Platform, units::{Order, Pfn}};
//! unsafe fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = unsafe { manager.free_order(Pfn(512), Order::BLOCK) };
//! }
//! ```
//!
//! Inventing a reference count, or putting somebody else's reference; freezing and unfreezing
//! amount to one or the other:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::PfnRange};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.references().start(PfnRange::new(512, 1024));
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::Pfn};
//! fn take_away<P: Platform>(manager: &Manager<P>) { let _ = manager.references().put(Pfn(512)); }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::Pfn};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.references().put_testzero(Pfn(512));
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::Pfn};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.references().free_frozen(Pfn(512));
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::Pfn};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.references().freeze(Pfn(512), 2);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::Pfn};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.references().unfreeze(Pfn(512), 2);
//! }
//! ```
//! ```
//! use framewright::{Manager, Platform, units::{Pfn, PfnRange}};
//! unsafe fn take_away<P: Platform>(manager: &Manager<P>) {
//!     unsafe {
//!         let _ = manager.references().start(PfnRange::new(512, 1024));
//!         let _ = manager.references().put(Pfn(512));
//!         let _ = manager.references().put_testzero(Pfn(512));
//!         let _ = manager.references().free_frozen(Pfn(512));
//!         let _ = manager.references().freeze(Pfn(512), 2);
//!         let _ = manager.references().unfreeze(Pfn(512), 2);
//!     }
//! }
//! ```
//!
//! Freeing a pool's page that somebody uses, and taking away the descriptors of such a page:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Platform, manager::Pool, units::Pfn};
//! fn take_away<P: Platform>(pool: &Pool<'_, P>) { let _ = pool.free(Pfn(512)); }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::PfnRange};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.vmemmap().optimize(&[PfnRange::new(512, 1024)]);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Manager, Platform, units::PfnRange};
//! fn take_away<P: Platform>(manager: &Manager<P>) {
//!     let _ = manager.vmemmap().restore(&[PfnRange::new(512, 1024)]);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::manager::{PoolBatch, PoolVmemmap};
//! fn take_away(maps: &dyn PoolVmemmap, batch: &PoolBatch<'_>) { maps.before_publish(batch); }
//! ```
//! ```
//! use framewright::manager::{Pool, PoolBatch, PoolVmemmap};
//! use framewright::{Manager, Platform, units::{Pfn, PfnRange}};
//! unsafe fn take_away<P: Platform>(
//!     manager: &Manager<P>,
//!     pool: &Pool<'_, P>,
//!     maps: &dyn PoolVmemmap,
//!     batch: &PoolBatch<'_>,
//! ) {
//!     unsafe {
//!         let _ = pool.free(Pfn(512));
//!         let _ = manager.vmemmap().optimize(&[PfnRange::new(512, 1024)]);
//!         let _ = manager.vmemmap().restore(&[PfnRange::new(512, 1024)]);
//!         maps.before_publish(batch);
//!     }
//! }
//! ```
//!
//! Having a device discard memory in use, which wiped the manager's own tables, and exchanging a
//! device that has memory for another one:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{reporting::ReportDevice, units::PhysRange};
//! fn wipe(device: &mut dyn ReportDevice) { let _ = device.submit(&[PhysRange::new(0, 1 << 30)]); }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Platform, reporting::{ReportDevice, Reporter}};
//! fn exchange<P: Platform, D: ReportDevice>(a: &mut Reporter<'_, P, D>, b: &mut D) {
//!     core::mem::swap(a.device_mut(), b);
//! }
//! ```
//! ```
//! use framewright::{Platform, reporting::{ReportDevice, Reporter}, units::PhysRange};
//! unsafe fn wipe(device: &mut dyn ReportDevice) {
//!     let _ = unsafe { device.submit(&[PhysRange::new(0, 1 << 30)]) };
//! }
//! unsafe fn exchange<P: Platform, D: ReportDevice>(a: &mut Reporter<'_, P, D>, b: &mut D) {
//!     core::mem::swap(unsafe { a.device_mut() }, b);
//! }
//! ```
//!
//! Moving contents over memory that somebody owns, or ending somebody else's move:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{MoveToken, Mover, units::PfnRange};
//! fn overwrite(mover: &dyn Mover, run: PfnRange, to: PfnRange) {
//!     let _ = mover.relocate(MoveToken(0), run, to);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{MoveToken, Mover, units::PfnRange};
//! fn end(mover: &dyn Mover, run: PfnRange) { mover.abort(MoveToken(0), run); }
//! ```
//! ```
//! use framewright::{MoveToken, Mover, units::PfnRange};
//! unsafe fn both(mover: &dyn Mover, run: PfnRange, to: PfnRange) {
//!     let _ = unsafe { mover.relocate(MoveToken(0), run, to) };
//!     unsafe { mover.abort(MoveToken(0), run) };
//! }
//! ```
//!
//! Taking parts of the vmemmap away, or frames out of page tables that still name them:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::vmemmap_space::{BlockRange, VmemmapSpace, Unflushed};
//! fn evict(space: &dyn VmemmapSpace, unflushed: &mut Unflushed) {
//!     let _ = space.evict(BlockRange::new(1, 2), unflushed);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::vmemmap_space::{FrameList, VmemmapSpace, Unflushed};
//! fn flush(space: &dyn VmemmapSpace, unflushed: Unflushed) -> FrameList { space.flush(unflushed) }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::vmemmap_space::{BlockRange, FrameSource, VmemmapSpace, Unflushed};
//! fn populate(space: &dyn VmemmapSpace, frames: &mut dyn FrameSource, unflushed: &mut Unflushed) {
//!     let _ = space.populate(BlockRange::new(1, 2), frames, unflushed);
//! }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{vmemmap_space::FrameSource, units::{Order, Pfn}};
//! fn put_back(frames: &mut dyn FrameSource) { frames.put_back(Pfn(512), Order::BLOCK); }
//! ```
//! ```
//! use framewright::units::{Order, Pfn};
//! use framewright::vmemmap_space::{BlockRange, FrameSource, Unflushed, VmemmapSpace};
//! unsafe fn change(
//!     space: &dyn VmemmapSpace,
//!     frames: &mut dyn FrameSource,
//!     mut unflushed: Unflushed,
//! ) {
//!     unsafe {
//!         let _ = space.evict(BlockRange::new(1, 2), &mut unflushed);
//!         let _ = space.populate(BlockRange::new(1, 2), frames, &mut unflushed);
//!         let _ = space.flush(unflushed);
//!         frames.put_back(Pfn(512), Order::BLOCK);
//!     }
//! }
//! ```
//!
//! Giving up a CPU that another task relies on, turning interrupts on under a lock, and carrying a
//! pin to another thread:
//!
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{PinnedCpu, Platform};
//! fn unpin<P: Platform>(platform: &P) { platform.unpin(PinnedCpu::new(0)); }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{IrqState, Platform};
//! fn turn_on<P: Platform>(platform: &P) { platform.irq_restore(IrqState(0x200)); }
//! ```
//! ```compile_fail,E0277
//! #![forbid(unsafe_code)]
//! use framewright::PinnedCpu;
//! fn travel(cpu: PinnedCpu) { std::thread::spawn(move || drop(cpu)); }
//! ```
//! ```compile_fail,E0277
//! #![forbid(unsafe_code)]
//! use framewright::PinnedCpu;
//! fn lend(cpu: &PinnedCpu) { std::thread::scope(|scope| { scope.spawn(|| cpu.index()); }); }
//! ```
//! ```
//! use framewright::{IrqState, PinnedCpu, Platform};
//! unsafe fn undo<P: Platform>(platform: &P, cpu: PinnedCpu, state: IrqState) {
//!     unsafe {
//!         platform.irq_restore(state);
//!         platform.unpin(cpu);
//!     }
//! }
//! fn tell(cpu: &PinnedCpu) {
//!     let index = cpu.index();
//!     std::thread::scope(|scope| { scope.spawn(|| index); });
//! }
//! ```
//!
//! Freeing one's frames and keeping them too:
//!
//! ```compile_fail,E0382
//! #![forbid(unsafe_code)]
//! use framewright::{Frames, Platform, units::PfnRange};
//! fn twice<P: Platform>(frames: Frames<'_, P>) -> PfnRange { drop(frames); frames.into_range() }
//! ```
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright::{Frames, Manager, Platform, units::PfnRange};
//! fn own<P: Platform>(manager: &Manager<P>) -> Option<Frames<'_, P>> {
//!     Frames::from_range(manager, PfnRange::new(0, 1))
//! }
//! ```
//! ```
//! use framewright::{Frames, Manager, Platform, units::PfnRange};
//! fn once<P: Platform>(frames: Frames<'_, P>) -> PfnRange { frames.into_range() }
//! unsafe fn own<P: Platform>(manager: &Manager<P>) -> Option<Frames<'_, P>> {
//!     unsafe { Frames::from_range(manager, PfnRange::new(0, 1)) }
//! }
//! ```
