//! Where the log is: `nats://[user:password@|token@]host:port[,host:port...][?replicas=N]`.

/// NATS keeps no more copies of a stream.
const REPLICAS_MAX: u8 = 5;

/// How to prove to NATS who we are.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    Anonymous,
    Token(String),
    User(String, String),
}

/// Where NATS is, and how many copies of a log it keeps.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// `host:port`; at least one.
    pub(super) hosts: Vec<String>,
    pub(super) login: Login,
    pub(super) replicas: u8,
}

impl Place {
    /// Reads a URL. The errors do not repeat it, as it may hold a password.
    pub(super) fn parse(url: &str) -> Result<Place, String> {
        let wrong = |what: &str| {
            format!("the URL of the log is not possible: {what}; it must be nats://HOST:PORT,...?replicas=N")
        };
        let rest = url.strip_prefix("nats://").ok_or_else(|| wrong("it does not begin with nats://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, list) = match rest.rsplit_once('@') {
            Some((login, list)) => (login_of(login).ok_or_else(|| wrong("user, password or token"))?, list),
            None => (Login::Anonymous, rest),
        };
        let list = list.strip_suffix('/').unwrap_or(list);
        let hosts: Vec<String> = list.split(',').map(|host| host.trim().to_owned()).collect();
        if let Some(host) = hosts.iter().find(|host| !is_addr(host)) {
            return Err(wrong(&format!("'{host}' is not HOST:PORT")));
        }
        let mut replicas = 1;
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let number = option.strip_prefix("replicas=").and_then(|number| number.parse().ok());
            replicas = number
                .filter(|number| (1..=REPLICAS_MAX).contains(number))
                .ok_or_else(|| wrong(&format!("'{option}' is not replicas=1 to replicas={REPLICAS_MAX}")))?;
        }
        Ok(Place { hosts, login, replicas })
    }
}

fn is_addr(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = !host.is_empty() && !host.contains(['/', ' ']);
        // An IPv6 address without brackets cannot be told from its port.
        let certain = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        plain && certain && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

fn login_of(text: &str) -> Option<Login> {
    match text.split_once(':') {
        Some(("", _)) => None,
        Some((user, password)) => Some(Login::User(decoded(user)?, decoded(password)?)),
        None if text.is_empty() => None,
        None => Some(Login::Token(decoded(text)?)),
    }
}

/// Undoes `%40` and the like, with which a password may hold any character.
fn decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let code = piece.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_log_may_be() {
        let place = |url| Place::parse(url).map_err(drop).unwrap();
        let plain = place("nats://a:1");
        assert!(plain.hosts == ["a:1"] && plain.login == Login::Anonymous && plain.replicas == 1);
        let all = place("nats://me:p%40%3a@a:1,[::1]:2/?replicas=3");
        assert_eq!(all.hosts, ["a:1", "[::1]:2"]);
        assert!(all.login == Login::User("me".into(), "p@:".into()) && all.replicas == 3);
        assert!(place("nats://secret@a:1").login == Login::Token("secret".into()));
    }

    #[test]
    fn wrong_places_are_told_without_passwords() {
        for wrong in [
            "",
            "nats://",
            "nats://a",
            "nats://a:x",
            "nats://a:0",
            "nats://a:1,",
            "nats://::1:4222",
            "tls://a:1",
            "nats://@a:1",
            "nats://:p@a:1",
            "nats://u:%4@a:1",
            "nats://a:1?replicas=0",
            "nats://a:1?replicas=6",
            "nats://a:1?tls=1",
            "nats://u:hidden@a",
        ] {
            let error = Place::parse(wrong).map(drop).unwrap_err();
            assert!(error.contains("nats://HOST:PORT") && !error.contains("hidden"), "{wrong}: {error}");
        }
    }
}
