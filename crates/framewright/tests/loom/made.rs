//! What is made once, under every interleaving: one claim at a time, one value, seen whole.

use framewright::internals::Made;
use loom::sync::Arc;
use loom::thread;

/// Adds one to what is collected; who finds two makes the value of it.
fn take_part(made: &Made<usize, [usize; 2]>) -> bool {
    let Some(mut claim) = made.claim() else {
        // Somebody else is at it: nothing is given up that was not had.
        return false;
    };
    *claim.collected() += 1;
    let count = *claim.collected();
    if count == 2 {
        let value = claim.make([count; 2], |value, collected| assert_eq!(value[0], *collected));
        assert_eq!(*value, [2, 2]);
    }
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
        let made = Arc::new(Made::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let made = Arc::clone(&made);
                thread::spawn(move || take_part(&made))
            })
            .collect();
        look(&made);
        let took_part = others.into_iter().map(|other| other.join().expect("no panic"));
        let count = took_part.filter(|&took_part| took_part).count();
        assert!(count >= 1, "the first finds nobody");
        assert_eq!(look(&made), count == 2);
        let mut claim = made.claim().expect("all have given it up");
        assert_eq!(*claim.collected(), count);
    });
}
