//! Patterns with `*`, `?`, `[a-z]`, `[^a]` and `\`, as Redis has them. Linear in the text for each
//! star: no pattern costs more than pattern times text.

/// Whether `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last star must take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
        } else if let Some((next, true)) = text.get(t).and_then(|&byte| one(&pattern[p..], byte)) {
            p += next;
            t += 1;
        } else if t == text.len() && p == pattern.len() {
            return true;
        } else {
            match retry {
                Some((after, from)) if from < text.len() => {
                    retry = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            }
        }
    }
}

/// Matches one byte against the front of a pattern: how long that front is, and whether it fits.
fn one(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    match *pattern.first()? {
        b'?' => Some((1, true)),
        b'\\' if pattern.len() > 1 => Some((2, pattern[1] == byte)),
        b'[' => Some(class(pattern, byte)),
        literal => Some((1, literal == byte)),
    }
}

fn class(pattern: &[u8], byte: u8) -> (usize, bool) {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut fits = false;
    while at < pattern.len() && pattern[at] != b']' {
        if pattern[at] == b'\\' && at + 1 < pattern.len() {
            at += 1;
            fits |= pattern[at] == byte;
        } else if at + 2 < pattern.len() && pattern[at + 1] == b'-' && pattern[at + 2] != b']' {
            let (low, high) = (pattern[at].min(pattern[at + 2]), pattern[at].max(pattern[at + 2]));
            fits |= (low..=high).contains(&byte);
            at += 2;
        } else {
            fits |= pattern[at] == byte;
        }
        at += 1;
    }
    ((at + 1).min(pattern.len()), fits != negated)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("*", "anything", true),
            ("user:*:name", "user:17:name", true),
            ("user:*:name", "user:17:age", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hallo", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
            ("", "a", false),
            ("[", "[", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} on {text}");
        }
    }

    #[test]
    fn no_pattern_explodes() {
        let text = "a".repeat(10_000);
        assert!(!matches("*a".repeat(50).as_bytes(), format!("{text}b").as_bytes()));
    }
}
