//! The map in etcd, and the leadership of several coordinators.
//!
//! ```text
//!  /sartor/CLUSTER/leader   who leads; bound to a lease that ends when its owner does not renew it
//!  /sartor/CLUSTER/map      the cluster map
//!
//!  loop ── Save, Resign ──▶ etcd thread ── transactions, renewals ──▶ etcd
//!                              ▲ Look
//!                           watch thread ◀── whatever changes there ──
//! ```
//!
//! A term is the revision in which the leader's key came to be. Each write of the map is a transaction that
//! holds only if that key is still of this term and the map still the one that was read last: who is deposed
//! can change nothing, whatever it believes. The watch is only a doorbell: what is true is read.

use super::campaign::{Session, Teller};
use super::file::{MAP_FILE, load_map};
use super::gateway::{Gateway, Seen};
use super::{Leader, MetadataStore, Notice, Term};
use crate::config::CoordinatorConfig;
use mio::Waker;
use sartor_core::ids::Epoch;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::{Micros, Now, millis};
use sartor_core::wire::codec::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Between attempts at what failed.
pub(super) const RETRY_US: Micros = millis(100);

/// The loop's side.
pub struct EtcdStore {
    orders: Sender<Order>,
    news: Receiver<Notice>,
    certain_until: Arc<AtomicU64>,
    place: String,
}

/// What the loop and the watch want of the thread that talks to etcd.
pub(super) enum Order {
    /// Write this map.
    Save(Term, Epoch, Vec<u8>),
    /// The loop has stopped leading.
    Resign(Term),
    /// Something may have changed.
    Look,
}

impl EtcdStore {
    /// Starts to campaign.
    pub fn open(
        config: &CoordinatorConfig,
        endpoints: Vec<String>,
        waker: Arc<Waker>,
    ) -> Result<EtcdStore, String> {
        let prefix = format!("/sartor/{}/", config.cluster);
        refuse_file(config, &prefix)?;
        let (orders, inbox) = channel();
        let (outbox, news) = channel();
        let certain_until = Arc::new(AtomicU64::new(0));
        let leader =
            Leader { addr: config.addr().into(), http: config.http.clone(), pid: std::process::id() };
        let gateway = Gateway::new(endpoints);
        let session = Session {
            gateway: gateway.clone(),
            leader_key: format!("{prefix}leader"),
            map_key: format!("{prefix}map"),
            me: serde_json::to_vec(&leader).map_err(|error| error.to_string())?,
            orders: inbox,
            teller: Teller { news: outbox, waker },
            certain_until: certain_until.clone(),
            complained: None,
        };
        let place = session.map_key.clone() + " in etcd";
        let doorbell = orders.clone();
        let failed = |error: std::io::Error| format!("cannot start a thread for etcd: {error}");
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("etcd-watch").spawn(move || watch(gateway, &prefix, &doorbell)).map_err(failed)?;
        thread("etcd").spawn(move || session.run()).map_err(failed)?;
        Ok(EtcdStore { orders, news, certain_until, place })
    }
}

/// A map that was kept in a file until now must not be forgotten by starting with an empty etcd.
fn refuse_file(config: &CoordinatorConfig, prefix: &str) -> Result<(), String> {
    if config.dir.as_os_str().is_empty() || load_map(&config.dir)?.is_none() {
        return Ok(());
    }
    let file = config.dir.join(MAP_FILE).display().to_string();
    Err(format!(
        "{file} is there, but the map is to be in etcd; move it: ETCDCTL_API=3 etcdctl put {prefix}map < {file} && rm {file}"
    ))
}

impl MetadataStore for EtcdStore {
    fn news(&mut self) -> Vec<Notice> {
        self.news.try_iter().collect()
    }

    fn save(&mut self, term: Term, map: &ClusterMap) -> std::io::Result<()> {
        self.order(Order::Save(term, map.epoch, map.to_bytes().to_vec()))
    }

    fn is_certain(&self, now: Now) -> bool {
        now.steady_us < self.certain_until.load(Ordering::Acquire)
    }

    fn resign(&mut self, term: Term) {
        // Without its thread this process cannot lead again, and the next `save` says so.
        let _ = self.order(Order::Resign(term));
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

impl EtcdStore {
    fn order(&self, order: Order) -> std::io::Result<()> {
        self.orders.send(order).map_err(|_| std::io::Error::other("the thread for etcd has ended"))
    }
}

/// Rings at everything that happens to the cluster's keys; resumes where it was when the connection ends.
fn watch(mut gateway: Gateway, prefix: &str, doorbell: &Sender<Order>) {
    let (mut from, mut listens) = (0, true);
    while listens {
        let done = gateway.watch(prefix, from, |seen| {
            listens = doorbell.send(Order::Look).is_ok();
            match seen {
                Seen::Until(revision) => from = revision + 1,
                Seen::Compacted => from = 0,
            }
            listens && seen != Seen::Compacted
        });
        // An etcd that is away is the other thread's to tell.
        drop(done);
        std::thread::sleep(Duration::from_micros(RETRY_US));
    }
}
