//! The Redis protocol: requests in, replies out.

pub mod hot;
pub mod parse;
pub mod reply;
