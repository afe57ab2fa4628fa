//! What controlets share.

pub mod stream;
