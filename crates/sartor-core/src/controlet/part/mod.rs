//! What protocols share.

pub mod answers;
pub mod digest;
pub mod fill;
pub mod follower;
pub mod freshness;
pub mod lease;
pub mod log;
pub mod marks;
pub mod message;
pub mod once;
pub mod orders;
pub mod replica;
pub mod stream;
pub mod surveying;
pub mod waiting;
