//! The few words of RESP that the admin verbs need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Sends one command to an endpoint; the text of the answer.
pub fn ask(endpoint: &str, words: &[&str]) -> Result<String, String> {
    ask_within(endpoint, words, Duration::from_secs(5))
}

/// The same, with the time that each step may take.
pub fn ask_within(endpoint: &str, words: &[impl AsRef<str>], timeout: Duration) -> Result<String, String> {
    let unreachable = |error: std::io::Error| format!("no node answers at {endpoint}: {error}");
    let mut addrs = endpoint.to_socket_addrs().map_err(unreachable)?;
    let addr = addrs.next().ok_or_else(|| format!("{endpoint} is no address"))?;
    let mut stream = TcpStream::connect_timeout(&addr, timeout).map_err(unreachable)?;
    stream.set_read_timeout(Some(timeout)).map_err(unreachable)?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words.iter().map(AsRef::as_ref) {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(request.as_bytes()).map_err(unreachable)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).map_err(unreachable)?;
    match line.trim_end().split_at_checked(1) {
        Some(("+", text)) => Ok(text.into()),
        Some(("$", len)) => {
            let len = len.parse().map_err(|_| format!("{endpoint} does not speak RESP"))?;
            let mut text = vec![0; len];
            reader.read_exact(&mut text).map_err(unreachable)?;
            String::from_utf8(text).map_err(|_| format!("{endpoint} answered with bytes that are no text"))
        }
        Some(("-", text)) => Err(text.into()),
        _ => Err(format!("{endpoint} does not speak RESP")),
    }
}
