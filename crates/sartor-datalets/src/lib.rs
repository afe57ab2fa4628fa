//! The stores that Sartor brings along, and the suite that every store must pass.
