//! Clients of a worker: accepting, reading, running what came, answering, writing, closing.

use super::splitting::SPLITTER;
use super::{CLIENT, Worker};
use crate::client::Client;
use crate::clock;
use crate::front::connection::{Connection, Joined};
use crate::front::pool::POOL;
use crate::link::KINDS;
use crate::resp::parse::{Args, Parsed};
use crate::settings::Name;
use crate::stats::add;
use mio::Token;
use sartor_core::node::Event;
use sartor_core::operation::SessionId;
use sartor_core::time::Now;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;

impl Worker {
    pub(super) fn accept(&mut self, now: Now) {
        self.accept_again = false;
        for place in 0..self.listeners.len() {
            self.accept_at(now, place);
        }
    }

    fn accept_at(&mut self, now: Now, place: usize) {
        loop {
            let (mut stream, addr) = match self.listeners[place].accept() {
                Ok(accepted) => accepted,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) => {
                    // Out of file descriptors: who waits is not announced again, so we ask again.
                    self.accept_again |= error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if self.clients.len() - 2 - self.free.len() >= self.shared.settings.size(Name::ClientsMax) {
                let _ = stream.write(b"-ERR max number of clients reached (clients-max)\r\n");
                add(&self.shared.stats.rejected, 1);
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.generations.push(0);
                self.clients.len() - 1
            });
            let token = Token(index * KINDS + CLIENT);
            let _ = stream.set_nodelay();
            if stream.register(self.poll.registry(), token).is_err() {
                self.free.push(index);
                continue;
            }
            self.next_id += 1;
            self.generations[index] = self.generations[index].wrapping_add(1);
            let session = SessionId { index: index as u32, generation: self.generations[index] };
            let connection = Connection::new(session, self.next_id, addr);
            self.clients[index] = Some(Box::new(Client::new(stream, connection, now)));
            add(&self.shared.stats.connections, 1);
            add(&self.shared.stats.clients, 1);
        }
    }

    pub(super) fn on_client_event(&mut self, index: usize, event: &mio::event::Event) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        client.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        client.ended |= event.is_read_closed() || event.is_error();
        if event.is_writable() && client.connection.out.len() > client.written && !client.dirty {
            client.dirty = true;
            self.dirty.push(index);
        }
        self.queue(index);
    }

    /// Has a client looked at in this turn, or the next.
    pub(super) fn queue(&mut self, index: usize) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && !client.queued
        {
            client.queued = true;
            self.again.push(index);
        }
    }

    /// Reads once and runs what is complete.
    pub(super) fn serve(&mut self, now: Now, index: usize) {
        let Some(slot) = self.clients.get_mut(index) else { return };
        let Some(mut client) = slot.take() else { return };
        client.queued = false;
        let alive = self.read(now, &mut client);
        self.run_requests(now, &mut client);
        // Its side is closed: it still gets the answers to what it asked.
        client.connection.closing |= !alive;
        self.charge(&mut client);
        let out = client.connection.out.len() - client.written;
        let over = self.charged > self.shared.settings.size(Name::ClientBytesMax) && client.charged > 1 << 20;
        if over {
            client
                .connection
                .error("ERR all connections together buffer more than client-bytes-max; retry later");
            client.connection.closing = true;
        }
        let mark = out > 0 || client.connection.closing;
        let goes_on = client.goes_on(self.shared.settings.size(Name::PipelineMax));
        let broken = client.broken;
        self.clients[index] = Some(client);
        if broken {
            return self.close(index);
        }
        if mark {
            self.mark_dirty(index);
        }
        if goes_on {
            self.queue(index);
        }
    }

    /// False when there will be nothing more to read.
    pub(super) fn read(&mut self, now: Now, client: &mut Client) -> bool {
        if !client.readable
            || client.stalled
            || client.is_blocked(self.shared.settings.size(Name::PipelineMax))
        {
            return true;
        }
        match client.stream.read(&mut self.scratch) {
            Ok(0) => return false,
            Ok(read) => {
                if client.buffer.is_empty() {
                    std::mem::swap(&mut client.buffer, &mut self.spare);
                    client.buffer.clear();
                }
                client.buffer.extend_from_slice(&self.scratch[..read]);
                // A short read has emptied the socket; the next bytes are a new event.
                client.readable = read == self.scratch.len() || client.ended;
                client.last_read = now.steady_us;
                self.counts.bytes_in += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => client.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                // Nobody will read the answers.
                client.broken = true;
                return false;
            }
        }
        true
    }

    /// Runs complete requests as far as the limits allow.
    pub(super) fn run_requests(&mut self, now: Now, client: &mut Client) {
        let pipeline_max = self.shared.settings.size(Name::PipelineMax);
        let mut args = std::mem::take(&mut self.args);
        let was_stalled = std::mem::replace(&mut client.stalled, true);
        while !client.is_blocked(pipeline_max) {
            match self.join_pool(now, client) {
                Joined::Bytes(_) => continue,
                Joined::Full => {
                    self.close_pool(now);
                    continue;
                }
                Joined::No => {}
            }
            client.waits = client.connection.is_pooled() && !client.buffer.is_empty();
            if client.waits {
                continue;
            }
            if self.join_runs(now, client, pipeline_max) {
                continue;
            }
            let parsed = match client.held.take() {
                Some(held) => {
                    args = held;
                    Parsed::Request
                }
                None => client.parser.next(&mut client.buffer, &self.shared.settings, &mut args),
            };
            match parsed {
                Parsed::Incomplete => {
                    if was_stalled {
                        // It was us who did not read.
                        client.last_read = now.steady_us;
                    }
                    client.stalled = false;
                    break;
                }
                Parsed::Request if args.is_empty() => {}
                Parsed::Request | Parsed::Inline if client.connection.must_wait(&args) => {
                    client.held = Some(args.clone());
                }
                Parsed::Request => self.command(now, client, &args),
                Parsed::Inline => self.inline(now, client, &args),
                Parsed::TooLarge(text) => client.connection.refuse(&format!("ERR {text}")),
                Parsed::Broken(text) => {
                    client.connection.error(&format!("ERR {text}"));
                    client.connection.closing = true;
                }
            }
        }
        self.args = args;
        self.close_runs(now, client);
        if client.buffer.is_empty() {
            // Idle connections need no room of their own.
            self.spare = std::mem::take(&mut client.buffer);
        }
    }

    /// A plain line: harmless commands always, others if the setting allows. HTTP is shown the door.
    pub(super) fn inline(&mut self, now: Now, client: &mut Client, args: &Args) {
        let word = args.get(0).to_ascii_lowercase();
        let allowed = self.shared.settings.get(Name::InlineCommands) == 1;
        match word.as_slice() {
            b"" => {}
            b"post" | b"host:" => client.connection.closing = true,
            b"ping" | b"echo" | b"quit" => self.command(now, client, args),
            _ if allowed => self.command(now, client, args),
            _ => {
                let text =
                    "ERR Protocol error: expected '*'; plain lines are off (CONFIG SET inline-commands 1)";
                client.connection.error(text);
                client.connection.closing = true;
            }
        }
    }

    pub(super) fn command(&mut self, now: Now, client: &mut Client, args: &Args) {
        self.counts.commands += 1;
        let mut env = env!(self, now, client.connection);
        let ask = client.connection.run(args, &mut env, &mut self.runs, &mut self.requests);
        self.step_requests(now);
        if let Some(ask) = ask {
            self.ask(client, &ask);
        }
    }

    /// Gives shards' answers to the connections that wait for them.
    pub(super) fn answer(&mut self, now: Now) {
        let mut replies = std::mem::take(&mut self.actions.replies);
        for reply in replies.drain(..) {
            if reply.session == POOL {
                self.answer_pooled(&reply);
                continue;
            }
            if reply.session == SPLITTER {
                self.on_split_answer(now, reply);
                continue;
            }
            let index = reply.session.index as usize;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.connection.session != reply.session {
                continue;
            }
            let mut env = env!(self, now, client.connection);
            client.connection.on_reply(reply.tag, reply.outcome, &mut env, &mut self.requests);
            let (hits, misses) = std::mem::take(&mut client.connection.hits);
            (self.counts.hits, self.counts.misses) = (self.counts.hits + hits, self.counts.misses + misses);
            if !client.dirty {
                client.dirty = true;
                self.dirty.push(index);
            }
            self.step_requests(now);
        }
        // The list goes back with its room, unless answers to a WAIT's next question are there already.
        if self.actions.replies.is_empty() {
            self.actions.replies = replies;
        }
    }

    pub(super) fn mark_dirty(&mut self, index: usize) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && !client.dirty
        {
            client.dirty = true;
            self.dirty.push(index);
        }
    }

    pub(super) fn write_clients(&mut self, now: Now) {
        let pipeline_max = self.shared.settings.size(Name::PipelineMax);
        for index in std::mem::take(&mut self.dirty) {
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.gathers(now) {
                self.dirty.push(index);
                continue;
            }
            client.dirty = false;
            let open = client.write(now, &mut self.counts.bytes_out);
            let bytes = client.bytes();
            self.charged = self.charged + bytes - client.charged;
            client.charged = bytes;
            let waits = client.connection.out.len() - client.written;
            let too_much = waits > self.shared.settings.size(Name::OutputBytesMax);
            let done = client.connection.closing && waits == 0 && client.connection.in_flight() == 0;
            if !open || too_much || done {
                self.close(index);
                continue;
            }
            if client.goes_on(pipeline_max) {
                self.queue(index);
            }
        }
    }

    /// Keeps the sum of all buffers.
    pub(super) fn charge(&mut self, client: &mut Client) {
        let now = client.bytes();
        self.charged = self.charged + now - client.charged;
        client.charged = now;
    }

    pub(super) fn close(&mut self, index: usize) {
        if let Some(mut client) = self.clients[index].take() {
            let _ = client.stream.deregister(self.poll.registry());
            self.charged -= client.charged;
            self.free.push(index);
            let now = clock::now();
            self.node.step(now, Event::Closed(client.connection.session), &mut self.actions);
            self.shared.stats.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
