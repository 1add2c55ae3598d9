//! What a helper adopts from the caller of its job: [`Context`].

use super::system::{self, CpuMask, IDLE_LEVEL, MemoryPolicy};
use std::cell::RefCell;
use std::sync::Arc;

/// What the caller may use.
#[derive(PartialEq)]
pub(super) struct Context {
    pub cpus: CpuMask,
    policy: Option<MemoryPolicy>,
    /// The scheduling level. Without `with_level`, `IDLE_LEVEL` is the only level that is
    /// distinguished from the others, which are all 0.
    level: i32,
    /// Whether the level was read, which helpers at lowered priority do not need.
    with_level: bool,
}

thread_local! {
    /// What this thread's last job found; kept because it seldom changes.
    static LAST: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

impl Context {
    /// The present context of the calling thread, or `None` if the system does not say on which
    /// CPUs it may run.
    pub fn of_this_thread(with_level: bool) -> Option<Arc<Self>> {
        let level = match with_level {
            true => system::level().ok()?,
            false if system::is_idle() => IDLE_LEVEL,
            false => 0,
        };
        let now = Self {
            cpus: CpuMask::of_this_thread().ok()?,
            policy: MemoryPolicy::of_this_thread(),
            level,
            with_level,
        };
        let last = LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            if last.as_deref() != Some(&now) {
                *last = Some(Arc::new(Self { cpus: now.cpus.clone(), ..now }));
            }
            last.clone()
        });
        // A thread that is ending cannot keep it in its thread-local storage.
        last.ok().flatten().or_else(|| Some(Arc::new(now)))
    }

    /// What [`Context::of_this_thread`] found last in this thread, or its present context if there
    /// is none.
    ///
    /// The last call may have been for another pool, or for this one before it turned to helpers
    /// that keep their priority, and so without the level. With `with_level`, only a context with
    /// the level counts: another one would let a helper work that runs above its caller.
    pub fn last(with_level: bool) -> Option<Arc<Self>> {
        let last = LAST.try_with(|last| last.try_borrow().ok()?.clone()).ok().flatten();
        last.filter(|last| last.with_level || !with_level)
            .or_else(|| Self::of_this_thread(with_level))
    }

    /// Whether the caller runs only when no other thread wants the CPU.
    pub fn is_idle(&self) -> bool {
        self.level == IDLE_LEVEL
    }

    /// Whether a helper that stays at `level` does not run above the caller. False if the caller's
    /// level was not read.
    pub fn allows(&self, level: i32) -> bool {
        self.with_level && self.level <= level
    }

    /// Returns this context with other CPUs.
    #[cfg(test)]
    pub fn with_cpus(&self, cpus: CpuMask) -> Self {
        Self { cpus, ..*self }
    }
}

/// What a helper has adopted.
#[derive(Default)]
pub(super) struct Adopted {
    context: Option<Arc<Context>>,
    node: Option<u32>,
    /// The CPUs, if they are fewer than those of the context.
    near: Option<CpuMask>,
}

impl Adopted {
    /// Makes the calling helper adopt `context`, preferring the CPUs of `node`. `narrowed` says
    /// that its CPUs were changed since it last adopted a context. Returns whether it succeeded; if
    /// not, the helper must not work.
    pub fn adopt(
        &mut self,
        context: &Arc<Context>,
        node: Option<(u32, &CpuMask)>,
        narrowed: bool,
    ) -> bool {
        let number = node.map(|(number, _)| number);
        if !narrowed
            && self.node == number
            && self.context.as_ref().is_some_and(|adopted| Arc::ptr_eq(adopted, context))
        {
            return true;
        }
        let policy_is_new =
            self.context.as_ref().is_none_or(|adopted| adopted.policy != context.policy);
        // The helper adopts all of the context, or it counts as having adopted nothing.
        *self = Self::default();
        let near = node.map(|(_, cpus)| context.cpus.and(cpus)).filter(|near| near.count() != 0);
        let near = near.filter(|near| near.adopt().is_ok());
        let adopted = near.is_some() || context.cpus.adopt().is_ok();
        let policy = context.policy.filter(|_| policy_is_new);
        if adopted && policy.is_none_or(|policy| policy.adopt().is_ok()) {
            *self = Self { context: Some(Arc::clone(context)), node: number, near };
        }
        self.context.is_some()
    }

    /// Called after a chunk, which may have changed CPUs or memory policy of the calling helper:
    /// libraries that bind their threads do. What was changed counts as not adopted, so the next
    /// job does not inherit it. Asking costs a fraction of setting both again.
    pub fn check(&mut self) {
        let stays = self.context.as_ref().is_none_or(|context| {
            let cpus = CpuMask::of_this_thread();
            cpus.is_ok_and(|cpus| cpus == *self.near.as_ref().unwrap_or(&context.cpus))
                && MemoryPolicy::of_this_thread() == context.policy
        });
        if !stays {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread may call pools of both priorities, one job inside the other.
    #[test]
    fn a_level_that_was_not_read_is_not_taken_for_one() {
        let check = || {
            system::set_level(10).expect("any thread may go down");
            let without = Context::of_this_thread(false).expect("the system says");
            assert!(!without.allows(0) && !without.allows(10) && !without.is_idle());
            let with = Context::last(true).expect("the system says");
            assert!(with.allows(10) && with.allows(11) && !with.allows(9));
            // What has the level does for both, and is not read again.
            assert!([false, true].into_iter().all(|with_level| {
                Context::last(with_level).is_some_and(|last| Arc::ptr_eq(&last, &with))
            }));
            system::set_level(IDLE_LEVEL).expect("any thread may go down");
            assert!([false, true].into_iter().all(|with_level| {
                Context::of_this_thread(with_level).is_some_and(|now| now.is_idle())
            }));
        };
        std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
    }

    /// A helper that runs on a thread of its own, with fewer CPUs than this machine has.
    #[test]
    fn cpus_are_adopted_all_or_none() {
        let all = Context::of_this_thread(false).expect("the system says");
        let first = (0..8192)
            .find(|&cpu| all.cpus.and(&CpuMask::of([cpu])).count() == 1)
            .expect("there is a CPU");
        let with = |cpus: CpuMask| Arc::new(all.with_cpus(cpus));
        let here = || CpuMask::of_this_thread().expect("the system says");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut adopted = Adopted::default();
                let one = CpuMask::of([first]);
                assert!(adopted.adopt(&with(one.clone()), None, false));
                assert_eq!((here().count(), here().and(&one).count()), (1, 1));
                assert!(adopted.adopt(&all, None, false) && here() == all.cpus);
                // A node narrows the mask, unless the caller may not use that node.
                assert!(adopted.adopt(&all, Some((0, &one)), false) && here().count() == 1);
                assert!(
                    adopted.adopt(&all, Some((1, &CpuMask::of([]))), false) && here() == all.cpus
                );
                // The CPUs were changed from outside.
                assert!(adopted.adopt(&all, None, false));
                one.adopt().expect("it may");
                assert!(adopted.adopt(&all, None, false) && here().count() == 1);
                assert!(adopted.adopt(&all, None, true) && here() == all.cpus);
                // A chunk has changed them, or has not.
                adopted.check();
                assert!(adopted.context.is_some());
                one.adopt().expect("it may");
                adopted.check();
                assert!(adopted.adopt(&all, None, false) && here() == all.cpus);
                assert!(adopted.adopt(&all, Some((0, &one)), false));
                adopted.check();
                assert!(adopted.context.is_some());
                all.cpus.adopt().expect("it may");
                adopted.check();
                assert!(here().count() == 1 || adopted.context.is_none());
                // The CPUs do not exist.
                assert!(!adopted.adopt(&with(CpuMask::of([8191])), None, false));
                assert!(adopted.adopt(&all, None, false));
            });
        });
    }
}
