//! How the guest's shell handles keys that arrive while a command runs. This compiles the guest's
//! own source file, which needs nothing of the machine.

#[path = "../../guest/src/typed.rs"]
mod typed;

use typed::Typed;

fn all(typed: &mut Typed) -> String {
    std::iter::from_fn(|| typed.next()).map(char::from).collect()
}

fn take(typed: &mut Typed, text: &str) {
    text.bytes().for_each(|byte| typed.take(byte));
}

#[test]
fn an_interrupt_needs_no_room() {
    let mut typed = Typed::NOTHING;
    take(&mut typed, &"x".repeat(1000));
    assert!(!typed.is_interrupted());
    take(&mut typed, "\x03now\r");
    assert!(typed.is_interrupted() && !typed.has_lost());
    typed.forget_interrupt();
    assert!(!typed.is_interrupted());
    assert_eq!(all(&mut typed), "now\r");
}

#[test]
fn lines_without_room_are_lost_whole() {
    let mut typed = Typed::NOTHING;
    let (short, long) = ("echo one\r".repeat(20), "y".repeat(300));
    // Moves the start of the ring buffer away from 0.
    take(&mut typed, &short);
    assert_eq!(all(&mut typed), short);
    take(&mut typed, &format!("{short}echo {long}; exit\recho two\r"));
    assert!(typed.has_lost() && !typed.has_lost());
    assert_eq!(all(&mut typed), format!("{short}echo two\r"));
    // After a line was lost, further keys are accepted again.
    take(&mut typed, &long);
    assert!(typed.has_lost());
    take(&mut typed, "echo three\r");
    assert_eq!(all(&mut typed), "echo three\r");
    // A line that just fits is not too long.
    let fits = "z".repeat(256);
    take(&mut typed, &fits);
    assert!(typed.is_full() && !typed.has_lost());
    assert_eq!(all(&mut typed), fits);
}
