//! What a command asks of the worker itself.

use super::{Mail, Worker};
use crate::client::Client;
use crate::front::admin::client_line;
use crate::front::connection::Connection;
use crate::front::plan::{Ask, KillBy};
use crate::resp::reply::Reply;
use bytes::Bytes;
use sartor_core::ids::ShardId;

impl Worker {
    pub(super) fn ask(&mut self, client: &mut Client, ask: &Ask) {
        let mut reply = Vec::new();
        match ask {
            Ask::ClientList => {
                let mut lines = client_line(&client.connection);
                self.clients.iter().flatten().for_each(|other| lines += &client_line(&other.connection));
                reply.bulk(lines.as_bytes());
            }
            Ask::ClientKill(by, counts) => {
                let fits = |c: &Connection| match by {
                    KillBy::Id(id) => c.id == *id,
                    KillBy::Addr(addr) => c.addr == *addr,
                };
                let found = self.clients.iter().position(|c| c.as_ref().is_some_and(|c| fits(&c.connection)));
                if fits(&client.connection) {
                    client.connection.closing = true;
                }
                if let Some(index) = found {
                    if let Some(other) = &mut self.clients[index] {
                        other.connection.closing = true;
                    }
                    self.mark_dirty(index);
                }
                let killed = found.is_some() || client.connection.closing;
                match (counts, killed) {
                    (true, killed) => reply.integer(i64::from(killed)),
                    (false, true) => reply.simple("OK"),
                    (false, false) => reply.error("ERR No such client"),
                }
            }
            Ask::Status => match self.map.as_ref().map(|map| self.shared.status(map)) {
                Some(status) => match serde_json::to_string(&status) {
                    Ok(json) => reply.bulk(json.as_bytes()),
                    Err(error) => reply.error(&format!("ERR internal: {error}")),
                },
                None => reply.error("LOADING this node has no cluster map yet; is the coordinator up?"),
            },
            Ask::Surveyed(shard, at) => match serde_json::to_string(&self.shared.surveys.result(*shard, *at))
            {
                Ok(json) => reply.bulk(json.as_bytes()),
                Err(error) => reply.error(&format!("ERR internal: {error}")),
            },
            Ask::Corrupt(shard, key) => self.ask_to_corrupt(*shard, key, &mut reply),
            Ask::Change(ask) => return self.await_change(client, ask),
        }
        client.connection.reply_now(reply);
    }

    pub(super) fn ask_to_corrupt(&mut self, shard: ShardId, key: &Bytes, reply: &mut Vec<u8>) {
        let worker = self.map.as_ref().map_or(0, |map| map.worker_of(shard));
        match self.mailboxes.get(usize::from(worker)) {
            Some(mailbox) if worker != self.me.worker => {
                mailbox.post(Mail::Corrupt(shard, key.clone()));
                reply.simple("QUEUED");
            }
            _ => match self.stores.corrupt(shard, key) {
                Ok(Some(found)) => reply.integer(i64::from(found)),
                Ok(None) => reply.simple("QUEUED"),
                Err(error) => reply.error(&format!("ERR {error}")),
            },
        }
    }
}
