//! `sartor scan`: the keys of a range in their order, over all shards, page by page.

use crate::resp::{Connection, Reply};
use crate::{Failed, say};
use clap::Args;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(15);
const PAGE: u64 = 1000;

/// Arguments of `sartor scan`.
#[derive(Args)]
pub struct ScanArgs {
    /// The first key [default: the first there is]
    #[arg(long, default_value = "")]
    start: String,
    /// The first key that is not wanted any more [default: to the last]
    #[arg(long, default_value = "")]
    end: String,
    /// So many at most [default: all]
    #[arg(long)]
    limit: Option<u64>,
    /// The last key first
    #[arg(long)]
    reverse: bool,
    /// Print values too, behind a tab
    #[arg(long)]
    values: bool,
    /// The table
    #[arg(long, default_value = "default")]
    table: String,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
}

/// Runs the verb. Bytes that cannot be printed are escaped as in `\x00`.
pub fn run(args: &ScanArgs) -> Result<(), Failed> {
    let lost = |error: std::io::Error| Failed::undecided(format!("{}: {error}", args.endpoint));
    let mut node = Connection::open(&args.endpoint, ANSWER_WITHIN).map_err(lost)?;
    if let Reply::Error(error) = node.ask(&[b"SELECT", args.table.as_bytes()]).map_err(lost)? {
        return Err(Failed::input(error.trim_start_matches("ERR ").to_owned()));
    }
    let (mut start, mut end) = (args.start.clone().into_bytes(), args.end.clone().into_bytes());
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = left.min(PAGE).to_string();
        let mut words = vec![&b"SARTOR.RANGE"[..], &start, &end, b"LIMIT", limit.as_bytes()];
        words.extend(args.values.then_some(&b"WITHVALUES"[..]));
        words.extend(args.reverse.then_some(&b"REV"[..]));
        let (next, found) = match node.ask(&words).map_err(lost)? {
            Reply::Error(error) => return Err(Failed::other(error.trim_start_matches("ERR ").to_owned())),
            Reply::Array(parts) => match <[Reply; 2]>::try_from(parts) {
                Ok([next, Reply::Array(found)]) => (next, found),
                _ => return Err(no_range(&args.endpoint)),
            },
            _ => return Err(no_range(&args.endpoint)),
        };
        for line in found.chunks(if args.values { 2 } else { 1 }) {
            left -= 1;
            say(format_args!("{}", line.iter().map(text).collect::<Vec<_>>().join("\t")));
        }
        match next {
            Reply::Text(next) if args.reverse => end = next,
            Reply::Text(next) => start = next,
            _ => break,
        }
    }
    Ok(())
}

fn no_range(endpoint: &str) -> Failed {
    Failed::other(format!("{endpoint} did not answer as a node does"))
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Text(bytes) => bytes.escape_ascii().to_string(),
        _ => String::new(),
    }
}
