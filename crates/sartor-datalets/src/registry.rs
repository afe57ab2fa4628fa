//! The engines that there are: those that Sartor brings along, and those that a program adds before it starts.

use crate::{ENGINES, Engine};
use std::sync::{Mutex, MutexGuard, PoisonError};

static ADDED: Mutex<Vec<&'static Engine>> = Mutex::new(Vec::new());

fn added() -> MutexGuard<'static, Vec<&'static Engine>> {
    // A list is whole at any time.
    ADDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All engines.
pub fn engines() -> impl Iterator<Item = &'static Engine> {
    ENGINES.iter().chain(added().clone())
}

/// An engine by name.
pub fn engine(name: &str) -> Option<&'static Engine> {
    engines().find(|engine| engine.name == name)
}

/// Adds an engine for as long as the process lives. Its name is new, and of small letters, digits and dashes.
pub fn register(engine: Engine) -> Result<(), String> {
    let name = engine.name;
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(format!("a datalet cannot be called '{name}': use small letters, digits and dashes"));
    }
    let mut added = added();
    if ENGINES.iter().chain(added.iter().copied()).any(|other| other.name == name) {
        return Err(format!("there is a datalet '{name}' already; give yours another name"));
    }
    // Engines live as long as the process; there are few.
    added.push(Box::leak(Box::new(engine)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine(name: &'static str) -> Engine {
        Engine { name, ..crate::remote::ENGINE }
    }

    #[test]
    fn what_is_added_is_found_and_names_are_new() {
        assert!(engine("mine-2").is_none());
        assert_eq!(register(mine("mine-2")), Ok(()));
        assert_eq!(engine("mine-2").map(|engine| engine.name), Some("mine-2"));
        assert_eq!(engines().count(), ENGINES.len() + 1);
        for name in ["mine-2", "hash", "", "a b", "a:b", "A", "a,b"] {
            assert!(register(mine(name)).is_err(), "'{name}'");
        }
    }
}
