//! What workers of one node say to each other: the same as workers of other nodes, but as it is, because packing and unpacking
//! it would cost more than everything else on its way.

use super::{Actions, Node};
use crate::forward::{Answers, Forwards};
use crate::ids::{ShardId, WorkerId};
use crate::time::Now;
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use bytes::Bytes;

/// A frame that was not packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// What would stand in front of it.
    pub header: Header,
    /// What it says.
    pub content: Content,
}

/// What a letter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Requests for the shard's head, or reads for another replica.
    Forwards(Forwards),
    /// What became of forwarded requests.
    Answers(Answers),
}

impl Letter {
    /// The same as a frame.
    pub fn frame(&self) -> Bytes {
        self.header.frame(|frame| match &self.content {
            Content::Forwards(forwards) => forwards.encode(frame),
            Content::Answers(answers) => answers.encode(frame),
        })
    }
}

impl Node {
    pub(super) fn on_letter(&mut self, now: Now, letter: Letter, out: &mut Actions) {
        let header = letter.header;
        if !self.is_timely(now, &header, || letter.frame(), out) {
            return;
        }
        match letter.content {
            Content::Forwards(forwards) if header.kind == Kind::Aside => {
                self.on_aside(now, header, forwards, out);
            }
            Content::Forwards(forwards) => self.on_forwards(now, header, forwards, out),
            Content::Answers(answers) => self.on_answers(now, header.shard, answers, out),
        }
    }

    /// To a worker of any node, this one included.
    pub(super) fn post(
        &mut self,
        now: Now,
        to: WorkerId,
        (kind, shard): (Kind, ShardId),
        content: Content,
        out: &mut Actions,
    ) {
        let Some(epoch) = self.map.as_ref().and_then(|map| map.shard(shard)).map(|shard| shard.epoch) else {
            return;
        };
        let letter = Letter { header: self.header(kind, shard, epoch), content };
        if to == self.me {
            self.on_letter(now, letter, out);
        } else if to.node == self.me.node {
            out.letters.push((to.worker, letter));
        } else {
            out.sends.push((to, letter.frame()));
        }
    }
}
