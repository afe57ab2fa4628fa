//! The core in a seeded world with faults, and what checks it.
