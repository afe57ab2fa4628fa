//! What JetStream is asked, and what it answers: JSON in messages.

use super::protocol::Message;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sartor_core::ids::ShardId;
use serde::Deserialize;
use serde_json::json;

/// Nobody listens on the subject: there is no JetStream, no such stream, or the stream has no leader at the moment.
pub(super) const NOBODY: u32 = 503;
/// There is no message with this number.
pub(super) const NO_MESSAGE: u32 = 10037;
/// There is no such stream.
pub(super) const NO_STREAM: u32 = 10059;
/// The stream exists with another configuration.
const OTHER_CONFIG: u32 = 10058;
/// The last sequence is another one; the second is what clusters of newer versions say.
const WRONG_LAST: [u32; 2] = [10071, 10164];

/// What makes it a compare-and-append: NATS refuses a message that has it unless the last sequence is that one, also 0.
pub(super) const EXPECTED_LAST: &str = "Nats-Expected-Last-Sequence";

/// The stream of a shard.
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) subject: String,
}

impl Stream {
    pub(super) fn new(cluster: u64, shard: ShardId) -> Stream {
        let shard = shard.0;
        Stream { name: format!("sartor-{cluster}-{shard}"), subject: format!("sartor.{cluster}.{shard}") }
    }

    /// Its configuration. Whoever asks for the same one when it exists is told that it is fine.
    pub(super) fn config(&self, replicas: u8) -> String {
        json!({
            "name": self.name, "subjects": [self.subject], "storage": "file", "retention": "limits",
            "discard": "old", "num_replicas": replicas,
        })
        .to_string()
    }
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct State {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Above the last one if there are no messages; 0 if there were none ever.
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// Why JetStream did not do it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u32,
    pub(super) text: String,
}

impl Refusal {
    /// Whether the only reason is that another message is the last one.
    pub(super) fn is_wrong_last(&self) -> bool {
        WRONG_LAST.contains(&self.code)
    }

    /// Which sequence is the last one, if it says so: `wrong last sequence: 7`.
    pub(super) fn last(&self) -> Option<u64> {
        self.text.rsplit_once(' ')?.1.parse().ok()
    }

    /// What to do about it.
    pub(super) fn hint(&self) -> &'static str {
        match self.code {
            NOBODY => "; start NATS with JetStream (-js), or wait until the stream has a leader",
            OTHER_CONFIG => {
                "; give replicas in the URL of the log as the stream has it, or change the stream"
            }
            _ => "",
        }
    }
}

/// What JetStream answered; which of them there are depends on what was asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    error: Option<ErrorJson>,
    /// Of a stream.
    pub(super) state: Option<State>,
    /// The sequence of a new message.
    pub(super) seq: u64,
    message: Option<Stored>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorJson {
    code: u32,
    err_code: u32,
    description: String,
}

#[derive(Debug, Deserialize)]
struct Stored {
    seq: u64,
    /// Left out if empty.
    #[serde(default)]
    data: String,
}

impl Answer {
    pub(super) fn parse(message: &Message) -> Result<Answer, Refusal> {
        if message.status == Some(503) {
            return Err(Refusal { code: NOBODY, text: "nobody answers".into() });
        }
        let strange = |_| Refusal { code: 0, text: "the answer is not JetStream's".into() };
        let mut answer: Answer = serde_json::from_slice(&message.payload).map_err(strange)?;
        match answer.error.take() {
            None => Ok(answer),
            Some(error) => {
                let code = if error.err_code == 0 { error.code } else { error.err_code };
                Err(Refusal { code, text: error.description })
            }
        }
    }

    /// The stored message, if it is the one with this sequence.
    pub(super) fn stored(self, seq: u64) -> Option<Bytes> {
        let stored = self.message.filter(|stored| stored.seq == seq)?;
        STANDARD.decode(stored.data).ok().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<Answer, Refusal> {
        Answer::parse(&Message {
            subject: String::new(),
            status: None,
            payload: Bytes::from_static(text.as_bytes()),
        })
    }

    #[test]
    fn answers_of_nats_2_9() {
        assert_eq!(parse(r#"{"stream":"S", "seq":3}"#).unwrap().seq, 3);
        let wrong = r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"stream":"S","seq":0}"#;
        let wrong = parse(wrong).unwrap_err();
        assert!(wrong.is_wrong_last() && wrong.last() == Some(2));
        let info = r#"{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"config":{"name":"S"},"state":{"messages":1,"bytes":90,"first_seq":99,"last_seq":99,"consumer_count":0}}"#;
        let state = State { messages: 1, bytes: 90, first_seq: 99, last_seq: 99 };
        assert_eq!(parse(info).unwrap().state, Some(state));
        let stored = r#"{"message":{"subject":"s.1","seq":1,"hdrs":"TkFUUw==","data":"eA==","time":"2026-11-22T04:04:01Z"}}"#;
        assert_eq!(parse(stored).unwrap().stored(1).unwrap(), "x");
        assert_eq!(parse(stored).unwrap().stored(2), None);
        assert_eq!(parse(r#"{"message":{"seq":1}}"#).unwrap().stored(1).unwrap(), "");
        let missing = r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!(parse(missing).unwrap_err().code, NO_MESSAGE);
        assert_eq!(parse("hello").unwrap_err().code, 0);
    }
}
