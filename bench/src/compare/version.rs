//! Compares versions of packages in Debian's order.

use std::cmp::Ordering;

/// The newest of some versions.
pub fn newest<'a>(versions: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    versions.max_by(|left, right| compare(left, right))
}

/// Compares two versions. The epoch before `:` counts most, then the part before the last `-`, then
/// the rest.
fn compare(left: &str, right: &str) -> Ordering {
    let parts = |version: &'_ str| {
        let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        (epoch.to_owned(), upstream.to_owned(), revision.to_owned())
    };
    let (left, right) = (parts(left), parts(right));
    pieces(&left.0, &right.0)
        .then_with(|| pieces(&left.1, &right.1))
        .then_with(|| pieces(&left.2, &right.2))
}

/// Compares alternately a part without digits, letter by letter, and a number.
fn pieces(mut left: &str, mut right: &str) -> Ordering {
    while !left.is_empty() || !right.is_empty() {
        let (left_word, left_rest) = split(left, |letter| !letter.is_ascii_digit());
        let (right_word, right_rest) = split(right, |letter| !letter.is_ascii_digit());
        let ordering = words(left_word, right_word);
        let (left_number, left_rest) = split(left_rest, |letter| letter.is_ascii_digit());
        let (right_number, right_rest) = split(right_rest, |letter| letter.is_ascii_digit());
        let (left_digits, right_digits) =
            (left_number.trim_start_matches('0'), right_number.trim_start_matches('0'));
        let by_number =
            left_digits.len().cmp(&right_digits.len()).then_with(|| left_digits.cmp(right_digits));
        let ordering = ordering.then(by_number);
        if ordering != Ordering::Equal {
            return ordering;
        }
        (left, right) = (left_rest, right_rest);
    }
    Ordering::Equal
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|letter| !belongs(letter)).unwrap_or(text.len()))
}

/// `~` comes before the end, the end before letters, letters before everything else.
fn words(left: &str, right: &str) -> Ordering {
    let weight = |letter: Option<char>| match letter {
        Some('~') => (0, '~'),
        None => (1, ' '),
        Some(letter) if letter.is_ascii_alphabetic() => (2, letter),
        Some(letter) => (3, letter),
    };
    let (mut left, mut right) = (left.chars(), right.chars());
    loop {
        let (one, other) = (left.next(), right.next());
        match weight(one).cmp(&weight(other)) {
            Ordering::Equal if one.is_none() => return Ordering::Equal,
            Ordering::Equal => {}
            ordering => return ordering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_debians_order() {
        let ordered = [
            "1.0~~",
            "1.0~rc1",
            "1.0",
            "1.0a",
            "1.0+b",
            "1.0.1",
            "1.1",
            "1.2",
            "1.10",
            "6.1.0-42",
            "6.12.9-1~bpo12+1",
            "6.12.9-1",
            "6.12.95-1~bpo12+1",
            "6.12.95+deb12-1",
            "1:0.1",
        ];
        for (index, left) in ordered.iter().enumerate() {
            for (other, right) in ordered.iter().enumerate() {
                assert_eq!(compare(left, right), index.cmp(&other), "{left} {right}");
            }
        }
        assert_eq!(compare("1.00", "1.0"), Ordering::Equal);
        assert_eq!(newest(ordered.into_iter()), Some("1:0.1"));
        assert_eq!(newest([].into_iter()), None);
    }
}
