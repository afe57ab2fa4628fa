//! Changes that take their time: asked for again and again until they are done, with what is missing told meanwhile.

use crate::{Failed, resp, say};
use std::time::{Duration, Instant};

/// How long one request to the node waits; after it, what is missing is told.
const STEP_MS: u64 = 1000;

/// Sends a command that takes `TIMEOUT ms` at its end and answers TRYAGAIN until it is done.
pub fn until_done(endpoint: &str, command: &[&str], timeout_s: u64) -> Result<(), Failed> {
    until_done_or(endpoint, command, timeout_s, |_| false)
}

/// The same; these errors, to any but the first request, say that it is done.
pub fn until_done_or(
    endpoint: &str,
    command: &[&str],
    timeout_s: u64,
    is_done: impl Fn(&str) -> bool,
) -> Result<(), Failed> {
    let mut asked = false;
    let (started, step) = (Instant::now(), STEP_MS.to_string());
    let words: Vec<&str> = command.iter().copied().chain(["TIMEOUT", &step]).collect();
    loop {
        match resp::ask_within(endpoint, &words, Duration::from_millis(STEP_MS + 5000)) {
            Ok(_) => return Ok(()),
            Err(text) if asked && is_done(&text) => return Ok(()),
            Err(text) if !text.starts_with("TRYAGAIN") => {
                return Err(Failed::other(text.trim_start_matches("ERR ")));
            }
            Err(text) if started.elapsed().as_secs() >= timeout_s => {
                return Err(Failed::other(format!("not waited for any longer after {timeout_s} s: {text}")));
            }
            Err(text) => {
                let text = text.trim_start_matches("TRYAGAIN ").trim_start_matches("it is not done yet: ");
                asked = true;
                say(format_args!("waiting: {}", text.trim_end_matches("; send it again")));
            }
        }
    }
}
