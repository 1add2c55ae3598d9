//! What a helper takes on from the caller of its job: [`Context`].

use super::system::{self, CpuMask, MemoryPolicy};
use std::cell::RefCell;
use std::sync::Arc;

/// What the caller may use.
#[derive(PartialEq)]
pub(super) struct Context {
    pub cpus: CpuMask,
    policy: Option<MemoryPolicy>,
    /// Looked at where helpers keep a priority.
    pub nice: i32,
}

thread_local! {
    /// What the thread's last job found: mostly it is the same again.
    static LAST: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

impl Context {
    /// That of the calling thread, now; `None` when the system does not say on which CPUs it may run.
    pub fn of_this_thread(with_nice: bool) -> Option<Arc<Self>> {
        let nice = if with_nice { system::nice().ok()? } else { 0 };
        let now = Self { cpus: CpuMask::of_this_thread().ok()?, policy: MemoryPolicy::of_this_thread(), nice };
        let last = LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            if last.as_deref() != Some(&now) {
                *last = Some(Arc::new(Self { cpus: now.cpus.clone(), ..now }));
            }
            last.clone()
        });
        // A thread that is ending has nothing to remember it in.
        last.ok().flatten().or_else(|| Some(Arc::new(now)))
    }

    /// What [`Context::of_this_thread`] found last in this thread.
    pub fn last(with_nice: bool) -> Option<Arc<Self>> {
        let last = LAST.try_with(|last| last.try_borrow().ok()?.clone()).ok().flatten();
        last.or_else(|| Self::of_this_thread(with_nice))
    }
}

/// What a helper has taken on.
#[derive(Default)]
pub(super) struct Adopted {
    context: Option<Arc<Context>>,
    node: Option<u32>,
}

impl Adopted {
    /// Has the calling helper use what `context` may use, preferring the CPUs in `node` for their number. Returns whether it does so; if not, it must not work.
    pub fn adopt(&mut self, context: &Arc<Context>, node: Option<(u32, &CpuMask)>) -> bool {
        let number = node.map(|(number, _)| number);
        if self.node == number && self.context.as_ref().is_some_and(|adopted| Arc::ptr_eq(adopted, context)) {
            return true;
        }
        let policy_is_new = self.context.as_ref().is_none_or(|adopted| adopted.policy != context.policy);
        // Nothing is adopted unless all is.
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
