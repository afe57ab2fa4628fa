//! etcd's v3 API through its JSON gateway: keys and values in base64, 64-bit numbers as text, zeros left out.
//!
//! A call that fails may have taken effect all the same; who calls must find out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sartor_core::time::Micros;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::Duration;

/// An etcd that takes longer is as good as away. Well below the lease, so that it can be asked again within it.
const CALL_TIMEOUT: Duration = Duration::from_millis(700);
/// A watch is silent while nothing happens. After so long it is opened again, in case the other end is gone.
const WATCH_SILENCE: Duration = Duration::from_secs(10);
/// An answer beyond that is none of etcd's: it refuses requests of more than 1.5 MiB.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Ways to an etcd.
#[derive(Clone)]
pub struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    current: usize,
    /// The setting that names the endpoints, for errors.
    setting: &'static str,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For people.
    pub text: String,
    /// etcd may have seen the call.
    pub sent: bool,
}

/// What a key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// The revision in which the key came to be.
    pub created: i64,
    /// The revision of its last change.
    pub changed: i64,
    /// The lease it is bound to; 0 for none.
    pub lease: i64,
}

/// How a transaction ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its conditions held.
    pub succeeded: bool,
    /// The revision of etcd after it.
    pub revision: i64,
    /// What was read.
    pub entries: BTreeMap<String, Entry>,
}

/// What a watch saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The watch is there, or something changed; up to this revision.
    Until(i64),
    /// The history it wanted to begin with is compacted.
    Compacted,
}

impl Gateway {
    /// Asks these endpoints (`host:port`), one until it fails, then the next.
    pub fn new(endpoints: Vec<String>) -> Gateway {
        Gateway::for_setting(endpoints, "metadata", 3)
    }

    /// The same for another setting, with so many calls at a time that connections are kept for.
    pub fn for_setting(endpoints: Vec<String>, setting: &'static str, calls: usize) -> Gateway {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // etcd is near: a proxy of the environment is for other things.
            .proxy(None)
            .max_idle_connections(calls * endpoints.len())
            .max_idle_connections_per_host(calls)
            .timeout_connect(Some(CALL_TIMEOUT));
        Gateway { agent: config.build().into(), endpoints, current: 0, setting }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v3/{path}", self.endpoints[self.current])
    }

    fn call(&mut self, path: &str, body: &Value) -> Result<Value, String> {
        self.call_within(path, body, CALL_TIMEOUT).map_err(|failure| failure.text)
    }

    fn call_within(&mut self, path: &str, body: &Value, time: Duration) -> Result<Value, Failure> {
        let done = self.try_call(path, body, time);
        if done.is_err() {
            self.current = (self.current + 1) % self.endpoints.len();
        }
        done
    }

    fn try_call(&self, path: &str, body: &Value, time: Duration) -> Result<Value, Failure> {
        let request = self.agent.post(self.url(path)).config().timeout_global(Some(time)).build();
        let (endpoint, setting) = (&self.endpoints[self.current], self.setting);
        let unreachable = |error: ureq::Error| Failure {
            text: format!("cannot reach etcd at {endpoint}: {error}; start it, or correct {setting}"),
            sent: may_be_sent(&error),
        };
        let mut response = request.send(body.to_string()).map_err(unreachable)?;
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(unreachable)?;
        let answer: Value = serde_json::from_str(text.trim()).unwrap_or_default();
        let refused = |text| Failure { text, sent: true };
        if let Some(error) = answer["error"].as_str() {
            return Err(refused(format!("etcd at {endpoint} says: {error}")));
        }
        let header = if answer["result"].is_null() { &answer["header"] } else { &answer["result"]["header"] };
        if header.is_null() {
            let code = response.status().as_u16();
            return Err(refused(format!(
                "{endpoint} is not an etcd of 3.4 or newer (HTTP {code}); correct {setting}"
            )));
        }
        Ok(answer)
    }

    /// How many endpoints there are.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// Waits in etcd's queue for the lock of this name, no longer than `time`. What is held then, or waits still if
    /// the call failed, is the key `name/LEASE`, the lease in hex; asked again with the same lease it is the same key.
    pub fn lock(&mut self, name: &str, lease: i64, time: Duration) -> Result<(), Failure> {
        let body = json!({ "name": b64(name.as_bytes()), "lease": lease.to_string() });
        self.call_within("lock/lock", &body, time).map(drop)
    }

    /// Gives back a lock, or the place in its queue: deletes exactly this key.
    pub fn unlock(&mut self, key: &str) -> Result<(), Failure> {
        let body = json!({ "key": b64(key.as_bytes()) });
        self.call_within("lock/unlock", &body, CALL_TIMEOUT).map(drop)
    }

    /// A new lease: its number, and how long it lasts.
    pub fn grant(&mut self, ttl_s: u64) -> Result<(i64, Micros), String> {
        let answer = self.call("lease/grant", &json!({ "TTL": ttl_s.to_string() }))?;
        Ok((number(&answer["ID"]), seconds(&answer["TTL"])))
    }

    /// Renews a lease; how long it lasts from now, 0 if it is over.
    pub fn renew(&mut self, lease: i64) -> Result<Micros, String> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(seconds(&answer["result"]["TTL"]))
    }

    /// Ends a lease, and with it the keys that are bound to it.
    pub fn revoke(&mut self, lease: i64) -> Result<(), String> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    /// All of `then` if all of `compare` holds, or else all of `otherwise`.
    pub fn txn(&mut self, compare: &[Value], then: &[Value], otherwise: &[Value]) -> Result<Answer, String> {
        let body = json!({ "compare": compare, "success": then, "failure": otherwise });
        Ok(answer_of(&self.call("kv/txn", &body)?))
    }

    /// Calls `see` for whatever happens to keys with this prefix from `from` on (0: from now on), until the
    /// connection ends. `see` says whether to go on.
    pub fn watch(
        &mut self,
        prefix: &str,
        from: i64,
        mut see: impl FnMut(Seen) -> bool,
    ) -> Result<(), String> {
        let create = json!({ "key": b64(prefix.as_bytes()), "range_end": b64(&after(prefix)), "start_revision": from.to_string() });
        let request =
            self.agent.post(self.url("watch")).config().timeout_per_read(Some(WATCH_SILENCE)).build();
        // The next one is asked if this one fails, and if it is only old.
        self.current = (self.current + 1) % self.endpoints.len();
        let body = json!({ "create_request": create }).to_string();
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let mut lines = BufReader::new(response.body_mut().as_reader());
        let mut line = String::new();
        while lines.read_line(&mut line).map_err(|error| error.to_string())? > 0 {
            let answer: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
            if answer["result"].is_null() {
                return Err(line);
            }
            if !see(seen_of(&answer["result"])) {
                break;
            }
            line.clear();
        }
        Ok(())
    }
}

/// Whether a call that ended so may have reached the other end.
fn may_be_sent(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};
    match error {
        Error::HostNotFound | Error::ConnectionFailed => false,
        Error::Timeout(Timeout::Resolve | Timeout::Connect) => false,
        Error::Io(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
        _ => true,
    }
}

/// The condition that a key came to be in this revision; 0: that there is none.
pub fn created_in(key: &str, revision: i64) -> Value {
    json!({ "key": b64(key.as_bytes()), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string() })
}

/// The condition that a key was changed last in this revision; 0: that there is none.
pub fn changed_in(key: &str, revision: i64) -> Value {
    json!({ "key": b64(key.as_bytes()), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

/// Writes a key; with a lease (0: none) that it ends with.
pub fn put(key: &str, value: &[u8], lease: i64) -> Value {
    json!({ "request_put": { "key": b64(key.as_bytes()), "value": b64(value), "lease": lease.to_string() } })
}

/// Reads a key.
pub fn get(key: &str) -> Value {
    json!({ "request_range": { "key": b64(key.as_bytes()) } })
}

fn answer_of(answer: &Value) -> Answer {
    let mut entries = BTreeMap::new();
    for response in answer["responses"].as_array().into_iter().flatten() {
        for kv in response["response_range"]["kvs"].as_array().into_iter().flatten() {
            let entry = Entry {
                value: bytes(&kv["value"]),
                created: number(&kv["create_revision"]),
                changed: number(&kv["mod_revision"]),
                lease: number(&kv["lease"]),
            };
            entries.insert(String::from_utf8_lossy(&bytes(&kv["key"])).into_owned(), entry);
        }
    }
    let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
    Answer { succeeded, revision: number(&answer["header"]["revision"]), entries }
}

fn seen_of(result: &Value) -> Seen {
    match result["compact_revision"].is_null() && !result["canceled"].as_bool().unwrap_or(false) {
        true => Seen::Until(number(&result["header"]["revision"])),
        false => Seen::Compacted,
    }
}

fn b64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn bytes(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

fn number(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_i64()).unwrap_or(0)
}

fn seconds(value: &Value) -> Micros {
    Micros::try_from(number(value)).unwrap_or(0) * 1_000_000
}

/// The end of the range of keys with this prefix, which ends in `/`.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_etcd_3_4() {
        let text = r#"{"header":{"revision":"7"},"responses":[{"response_range":{"header":{"revision":"7"},"kvs":[{"key":"bGVhZGVy","create_revision":"2","mod_revision":"3","version":"1","value":"dg==","lease":"7587899059118184455"}],"count":"1"}},{"response_range":{}}]}"#;
        let answer = answer_of(&serde_json::from_str(text).unwrap());
        let entry = Entry { value: b"v".to_vec(), created: 2, changed: 3, lease: 7_587_899_059_118_184_455 };
        assert_eq!(
            answer,
            Answer { succeeded: false, revision: 7, entries: [("leader".into(), entry)].into() }
        );
        let seen = |text| seen_of(&serde_json::from_str(text).unwrap());
        assert_eq!(seen(r#"{"header":{"revision":"2"},"created":true}"#), Seen::Until(2));
        assert_eq!(
            seen(r#"{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}"#),
            Seen::Compacted
        );
        assert_eq!(after("/sartor/1/"), b"/sartor/10");
    }
}
