//! From a key to the replicas that hold it.

pub mod map;
pub mod route;
pub mod slot;
