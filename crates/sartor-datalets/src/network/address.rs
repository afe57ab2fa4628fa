//! Where a store over the network is: what users write behind `redis://` and the like.
//!
//! ```text
//!  [[USER]:PASSWORD@]HOST[:PORT][/DATABASE][?timeout_ms=N]    a TCP port
//!  [[USER]:PASSWORD@]/PATH[?db=DATABASE][&timeout_ms=N]       a Unix socket
//! ```
//!
//! In user and password, `%40` stands for `@` and so on.

use core::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A store that is silent for so long is taken for hanging, unless the address says otherwise.
const TIMEOUT_MS: u64 = 5000;
/// What may be said instead.
const TIMEOUTS_MS: std::ops::RangeInclusive<u64> = 10..=600_000;

/// Where a store is, and as whom to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: &'static str,
    pub(super) place: Place,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) database: u32,
    /// Nothing may take longer.
    pub(super) timeout: Duration,
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Host and port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// Without the password: this is shown.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host) if self.database == 0 => write!(f, "{}://{host}", self.kind),
            Place::Tcp(host) => write!(f, "{}://{host}/{}", self.kind, self.database),
            Place::Unix(path) if self.database == 0 => write!(f, "{}://{}", self.kind, path.display()),
            Place::Unix(path) => write!(f, "{}://{}?db={}", self.kind, path.display(), self.database),
        }
    }
}

impl Address {
    /// A socket of a store that everybody may use who reaches it.
    pub(super) fn of_socket(kind: &'static str, path: PathBuf) -> Address {
        let timeout = Duration::from_millis(TIMEOUT_MS);
        let (user, password) = (String::new(), String::new());
        Address { kind, place: Place::Unix(path), user, password, database: 0, timeout }
    }

    /// Takes apart what follows `KIND://`.
    pub(super) fn parse(kind: &'static str, text: &str) -> Result<Address, String> {
        let wrong = |why: &str| format!("{kind} address '{}': {why}", hide_password(text));
        let (place, options) = text.split_once('?').unwrap_or((text, ""));
        let mut address = Address::of_socket(kind, PathBuf::new());
        let rest = address.parse_user(place).map_err(|why| wrong(&why))?;
        match rest {
            "/" => return Err(wrong("the path of the socket is missing")),
            path if path.starts_with('/') => address.place = Place::Unix(path.into()),
            host => address.parse_host(host).map_err(|why| wrong(&why))?,
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("db", number)) => address.database = database(number).map_err(|why| wrong(&why))?,
                Some(("timeout_ms", number)) => {
                    let ms = number.parse().ok().filter(|ms| TIMEOUTS_MS.contains(ms));
                    let ms = ms.ok_or_else(|| wrong("timeout_ms must be from 10 to 600000"))?;
                    address.timeout = Duration::from_millis(ms);
                }
                _ => return Err(wrong(&format!("'{option}' is not known; there is: db=N, timeout_ms=N"))),
            }
        }
        if address.database != 0 && kind != "redis" {
            return Err(wrong("there are no databases to choose from"));
        }
        if kind == "memcached" && !address.password.is_empty() {
            return Err(wrong("passwords are not supported"));
        }
        Ok(address)
    }

    /// Takes user and password off.
    fn parse_user<'a>(&mut self, place: &'a str) -> Result<&'a str, String> {
        let Some((who, behind)) = place.rsplit_once('@') else { return Ok(place) };
        let (user, password) = who.split_once(':').ok_or("before the '@' goes user:password or :password")?;
        (self.user, self.password) = (decoded(user)?, decoded(password)?);
        if self.password.is_empty() {
            return Err("the password is missing".into());
        }
        Ok(behind)
    }

    fn parse_host(&mut self, mut rest: &str) -> Result<(), String> {
        if let Some((host, number)) = rest.split_once('/') {
            self.database = if number.is_empty() { 0 } else { database(number)? };
            rest = host;
        }
        let port = match self.kind {
            "redis" => 6379,
            "ssdb" => 8888,
            _ => 11211,
        };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, number)) if !number.ends_with(']') => {
                let number: u16 = number.parse().map_err(|_| format!("'{number}' is no port"))?;
                (host, number)
            }
            _ => (rest, port),
        };
        if host.is_empty() {
            return Err(format!("the host is missing, as in {}://127.0.0.1:{port}", self.kind));
        }
        self.place = Place::Tcp(format!("{host}:{port}"));
        Ok(())
    }
}

fn database(number: &str) -> Result<u32, String> {
    number.parse().map_err(|_| format!("'{number}' is no number of a database"))
}

/// Replaces `%40` and the like.
fn decoded(text: &str) -> Result<String, String> {
    let wrong = || format!("'{text}' has a % that is not followed by two hexadecimal digits");
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = behind;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn hide_password(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, behind)) => format!("…@{behind}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: &'static str, text: &str) -> String {
        Address::parse(kind, text).map_or_else(|why| why, |address| address.to_string())
    }

    #[test]
    fn addresses_are_taken_apart() {
        assert_eq!(shown("redis", "127.0.0.1"), "redis://127.0.0.1:6379");
        assert_eq!(shown("ssdb", "a"), "ssdb://a:8888");
        assert_eq!(shown("memcached", "a:1"), "memcached://a:1");
        assert_eq!(shown("redis", "[::1]"), "redis://[::1]:6379");
        assert_eq!(shown("redis", "[::1]:7/0"), "redis://[::1]:7");
        assert_eq!(shown("redis", "/run/redis.sock?db=2"), "redis:///run/redis.sock?db=2");
        let address = Address::parse("redis", "me:p%40ss:w%2F@h:1/3?timeout_ms=70").unwrap();
        assert_eq!((&*address.user, &*address.password, address.database), ("me", "p@ss:w/", 3));
        assert_eq!(address.timeout, Duration::from_millis(70));
        assert_eq!(address.to_string(), "redis://h:1/3");
        assert_eq!(Address::parse("redis", ":secret@h").unwrap().user, "");
        assert_eq!(shown("redis", "u:p@/run/redis.sock"), "redis:///run/redis.sock");
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (kind, text, why) in [
            ("redis", "", "the host is missing, as in redis://127.0.0.1:6379"),
            ("redis", "/", "path of the socket"),
            ("redis", "h:x", "'x' is no port"),
            ("redis", "h:99999", "no port"),
            ("redis", "h/x", "'x' is no number"),
            ("redis", "user@h", "user:password"),
            ("redis", "u:@h", "password is missing"),
            ("redis", "u:%4@h", "two hexadecimal digits"),
            ("redis", "h?timeout_ms=0", "from 10 to 600000"),
            ("redis", "h?tls=1", "'tls=1' is not known"),
            ("ssdb", "h/1", "no databases"),
            ("memcached", "u:p@h", "not supported"),
        ] {
            assert!(shown(kind, text).contains(why), "{kind} {text}: {}", shown(kind, text));
        }
        assert!(!shown("redis", "u:secret@h:x").contains("secret"));
    }
}
