//! Values that are made once, under every interleaving: one claim at a time, one value, seen whole.

use framewright::internals::Made;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// What is made, and a count of claims that does not rely on the claim.
struct Shared {
    made: Made<usize, [usize; 2]>,
    claims: AtomicUsize,
}

/// Adds one to what is collected; who finds two makes the value of it.
fn take_part(shared: &Shared) -> bool {
    let Some(mut claim) = shared.made.claim() else {
        // Somebody else is at it: nothing is given up that was not had.
        return false;
    };
    assert_eq!(shared.claims.fetch_add(1, Ordering::Relaxed), 0, "two have it");
    *claim.collected() += 1;
    let count = *claim.collected();
    if count == 2 {
        let value = claim.make(
            |place| Ok::<_, ()>(place.write([count; 2])),
            |value, collected| assert_eq!(value[0], *collected),
        );
        let value = value.expect("nothing fails");
        assert_eq!(*value, [2, 2]);
    }
    shared.claims.fetch_sub(1, Ordering::Relaxed);
    true
}

fn look(made: &Made<usize, [usize; 2]>) -> bool {
    made.get().is_some_and(|value| {
        assert_eq!(*value, [2, 2], "seen before it was made");
        true
    })
}

#[test]
fn one_claims_at_a_time_and_all_see_what_was_made() {
    loom::model(|| {
        let shared = Arc::new(Shared { made: Made::new(0), claims: AtomicUsize::new(0) });
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || take_part(&shared))
            })
            .collect();
        look(&shared.made);
        let mine = take_part(&shared);
        let took_part = others.into_iter().map(|other| other.join().expect("no panic"));
        let count = usize::from(mine) + took_part.filter(|&took_part| took_part).count();
        assert!(count >= 1, "the first finds nobody");
        assert_eq!(look(&shared.made), count >= 2);
        let mut claim = shared.made.claim().expect("all have given it up");
        assert_eq!(*claim.collected(), count);
    });
}
