//! Marks: what happened while a load ran, told by others.
//!
//! A file of lines `UNIX-SECONDS WORDS`, such as `1700000000.25 killed node 2`, that others append to.

use std::path::Path;

/// More are left out.
const MARKS_MAX: usize = 200;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// When, as Unix time.
    pub at: f64,
    /// What.
    pub words: String,
}

/// The marks of a file. None is there if nothing was marked.
pub fn read(path: &Path) -> Result<Vec<Mark>, String> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("cannot read {}: {error}", path.display()))?,
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MARKS_MAX);
    lines
        .map(|line| {
            parse(line)
                .ok_or_else(|| format!("{}: '{line}' is no mark; write UNIX-SECONDS WORDS", path.display()))
        })
        .collect()
}

fn parse(line: &str) -> Option<Mark> {
    let (at, words) = line.split_once(' ')?;
    Some(Mark { at: at.parse().ok()?, words: words.trim().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_time_and_words() {
        let wanted = Mark { at: 1700000000.25, words: "killed node 2".into() };
        assert_eq!(parse("1700000000.25 killed node 2"), Some(wanted));
        assert_eq!(parse("killed node 2"), None);
        assert_eq!(read(Path::new("/nonexistent/marks")), Ok(Vec::new()));
    }
}
