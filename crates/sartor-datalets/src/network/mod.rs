//! Stores over the network: `redis`, `ssdb`, `memcached`. Those that run already have an address; `own.rs` starts a Redis.
//!
//! Each is a connection that blocks, on the thread of its one owner. What makes them fast is that a group of tasks
//! takes few round trips: keys that were announced are fetched together, writes wait for the end of the group.
//!
//! ```text
//!  expect a, b, c │ get a      │ put b        │ get b, get c │ commit
//!                 │ ▲ GET a b c│ kept back    │ from memory  │ ▲ SET b … and all acknowledgements
//! ```
//!
//! `pipelined.rs` is that, for any of them; `redis.rs` with its dialects and `memcached.rs` say how a store is spoken to.
//! Once a store has failed it answers nothing but that: which writes took effect is not known any more.

mod address;
mod base64;
mod census;
mod dialect;
mod group;
mod memcached;
mod own;
mod pipelined;
mod redis;
mod resp;
#[cfg(test)]
mod tests;
mod walking;
mod wire;

use crate::{Engine, Options};
use address::Address;
use dialect::{REDIS, SSDB};
use memcached::Memcached;
pub use memcached::{KEY_BYTES_MAX as MEMCACHED_KEY_BYTES_MAX, VALUE_BYTES_MAX as MEMCACHED_VALUE_BYTES_MAX};
pub use own::{Launcher, launch_by};
use pipelined::Pipelined;
use redis::Redis;
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::record::Layout;

/// The longest key that an SSDB takes.
pub const SSDB_KEY_BYTES_MAX: usize = 255;

type Opened = Result<Box<dyn Datalet>, DataletError>;

/// Opens a database of a running Redis, as it is. One that holds anything but strings is refused.
pub fn open_redis(options: &Options) -> Opened {
    let address = parse("redis", &options.address)?;
    let mut redis = Redis::open(&REDIS, address)?;
    redis.inspect()?;
    Ok(Box::new(Pipelined::new(redis, options.seed)))
}

/// What `redis` is without an address: a redis-server that Sartor starts for each copy.
pub const OWN_REDIS: Engine = Engine {
    name: "redis",
    about: "a redis-server that Sartor starts for each copy and ends with it; values as they are",
    blocking: true,
    works_in_folder: true,
    layout: Layout::Beside,
    open: open_own_redis,
    check: |_| own::check_installed(),
    ..Engine::BUILT_IN
};

/// Starts a redis-server in a folder, and opens it.
fn open_own_redis(options: &Options) -> Opened {
    let server = own::Server::start(&options.dir)?;
    let mut redis = Redis::open(&REDIS, Address::of_socket("redis", own::socket(&options.dir)))?;
    redis.end_with(server);
    Ok(Box::new(Pipelined::new(redis, options.seed)))
}

/// Opens a running SSDB, as it is: its plain pairs, not its maps, sets and queues.
pub fn open_ssdb(options: &Options) -> Opened {
    let address = parse("ssdb", &options.address)?;
    Ok(Box::new(Pipelined::new(Redis::open(&SSDB, address)?, options.seed)))
}

/// Opens a running memcached, as it is.
pub fn open_memcached(options: &Options) -> Opened {
    let address = parse("memcached", &options.address)?;
    Ok(Box::new(Pipelined::new(Memcached::open(address)?, options.seed)))
}

fn parse(kind: &'static str, text: &str) -> Result<Address, DataletError> {
    Address::parse(kind, text).map_err(DataletError::Failed)
}

/// Says what is wrong with an address of such a store.
pub fn check_address(kind: &'static str, text: &str) -> Result<(), String> {
    Address::parse(kind, text).map(drop)
}
