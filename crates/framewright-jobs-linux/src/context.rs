//! What a helper adopts from the caller of its job: [`Context`].

use super::system::{self, CpuMask, IDLE_LEVEL, MemoryPolicy};
use std::cell::RefCell;
use std::sync::Arc;

/// What the caller may use.
#[derive(PartialEq)]
pub(super) struct Context {
    pub cpus: CpuMask,
    policy: Option<MemoryPolicy>,
    /// The scheduling level. If helpers run at lowered priority, `IDLE_LEVEL` is the only level
    /// that is distinguished from the others.
    pub level: i32,
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
    pub fn last(with_level: bool) -> Option<Arc<Self>> {
        let last = LAST.try_with(|last| last.try_borrow().ok()?.clone()).ok().flatten();
        last.or_else(|| Self::of_this_thread(with_level))
    }

    /// Returns this context with other CPUs.
    #[cfg(test)]
    pub fn with_cpus(&self, cpus: CpuMask) -> Self {
        Self { cpus, policy: self.policy, level: self.level }
    }
}

/// What a helper has adopted.
#[derive(Default)]
pub(super) struct Adopted {
    context: Option<Arc<Context>>,
    node: Option<u32>,
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
        let adopted = near.is_some_and(|near| near.adopt().is_ok()) || context.cpus.adopt().is_ok();
        let policy = context.policy.filter(|_| policy_is_new);
        if adopted && policy.is_none_or(|policy| policy.adopt().is_ok()) {
            *self = Self { context: Some(Arc::clone(context)), node: number };
        }
        self.context.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                // The CPUs do not exist.
                assert!(!adopted.adopt(&with(CpuMask::of([8191])), None, false));
                assert!(adopted.adopt(&all, None, false));
            });
        });
    }
}
