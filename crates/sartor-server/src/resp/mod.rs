//! The Redis protocol: requests in, replies out.

pub mod parse;
pub mod reply;
