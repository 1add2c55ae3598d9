//! What all benchmarks share: the middle of measurements, and text for people.

/// The middle of sorted values; of an even number the mean of the two in the middle.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// `text` in lines that fit a terminal.
pub fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "a few words and a_rather_long_one ".repeat(20);
        let lines = wrapped(text.trim_end());
        assert!(lines.len() > 5 && lines.iter().all(|line| line.len() <= 110));
        assert_eq!(lines.join(" "), text.trim_end());
    }
}
