//! What touches the world: event loop, front door, transports, coordinator process.
