//! Encodes source lines as small numbers, so that a page's record is two words.
//!
//! Orders of memory: Relaxed: a source line is constant data of the program, which exists before
//! any thread does.

use crate::sync::table_atomic::{AtomicPtr, Ordering};
use core::panic::Location;
use core::ptr;

/// A source line.
pub(crate) type Place = &'static Location<'static>;

/// How many lines can be told apart; any more are unknown.
pub(crate) const PLACES: usize = 4096;
/// How many slots are tried for one line.
const PROBES: usize = 64;

/// A hash table of all lines that allocated or freed memory. A slot is written once.
#[derive(Clone, Copy)]
pub(crate) struct Places(pub(crate) &'static [AtomicPtr<Location<'static>>]);

impl Places {
    /// The number of a place: its slot plus one, or 0 when there is no room.
    pub(crate) fn number(self, place: Place) -> u16 {
        let wanted = ptr::from_ref(place).cast_mut();
        // Hashes the content, not the address: a compiler may emit several copies of a line's
        // `Location`.
        let hash =
            (place.line() as usize * 64 + place.column() as usize).wrapping_mul(0x9e37_79b9) >> 7;
        for probe in 0..PROBES.min(self.0.len()) {
            let index = (hash + probe) % self.0.len();
            let slot = &self.0[index];
            let mine = slot.compare_exchange(
                ptr::null_mut(),
                wanted,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            let number = u16::try_from(index + 1).unwrap_or(0);
            if mine.is_ok() || mine == Err(wanted) || self.place(number) == Some(place) {
                return number;
            }
        }
        0
    }

    /// The place of a number.
    pub(crate) fn place(self, number: u16) -> Option<Place> {
        let slot = self.0.get(usize::from(number.checked_sub(1)?))?;
        // SAFETY: the slot is null, or one of the references that `number` was given, which live
        // for ever and are never written (invariant 20).
        unsafe { slot.load(Ordering::Relaxed).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[track_caller]
    fn here() -> Place {
        Location::caller()
    }

    fn places(count: usize) -> Places {
        let slots: Vec<_> = (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Places(slots.leak())
    }

    #[test]
    fn a_place_keeps_its_number_until_there_is_no_room() {
        let places = places(2);
        let (one, two, three) = (here(), here(), here());
        let numbers = [one, two, three, one].map(|place| places.number(place));
        assert!(numbers[0] != numbers[1] && numbers[0] == numbers[3], "{numbers:?}");
        assert_eq!(numbers[2], 0);
        assert_eq!(places.place(numbers[0]), Some(one));
        assert_eq!(places.place(numbers[1]), Some(two));
        assert_eq!((places.place(0), places.place(9)), (None, None));
        assert_eq!(Places(&[]).number(one), 0);
    }

    #[test]
    fn copies_of_a_line_are_one_place() {
        let (places, one) = (places(4), here());
        let copy: Place = std::boxed::Box::leak(std::boxed::Box::new(*one));
        assert!(!core::ptr::eq(one, copy));
        assert_eq!(places.number(one), places.number(copy));
    }
}
