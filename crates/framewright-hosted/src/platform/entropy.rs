//! Randomness from the operating system.

/// Returns 64 bits of the kernel's generator; `None` if the system has none or it is not ready.
pub(super) fn entropy() -> Option<u64> {
    let mut word = [0_u8; 8];
    let filled =
        // SAFETY: the pointer and the length are those of a local array of bytes.
        unsafe { libc::getrandom(word.as_mut_ptr().cast(), word.len(), libc::GRND_NONBLOCK) };
    (usize::try_from(filled) == Ok(word.len())).then(|| u64::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::entropy;

    #[test]
    fn the_system_gives_another_word_each_time() {
        let words = [(); 4].map(|()| entropy().expect("a system with getrandom"));
        assert!((1..4).all(|at| !words[..at].contains(&words[at])), "{words:x?}");
    }
}
