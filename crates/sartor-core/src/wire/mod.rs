//! Bytes on the wire. Domain types know nothing of them; each file here converts some.

pub mod codec;
pub mod control;
pub mod frame;
pub mod map;
pub mod message;
pub mod operation;
pub mod wish;
