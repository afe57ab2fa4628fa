//! The modes that there are: those of the core, and those that a program adds before it starts.

use sartor_core::controlet::{MODES, Mode, mode};
use std::sync::OnceLock;

/// Words that stand where a mode's name may: `sim --mode switch`, and the options of SARTOR.SWITCH.
const RESERVED: [&str; 5] = ["switch", "copies", "datalet", "table", "timeout"];

static ALL: OnceLock<Vec<Mode>> = OnceLock::new();

/// All modes.
pub fn modes() -> &'static [Mode] {
    ALL.get().map_or(MODES, Vec::as_slice)
}

/// Those of the core and these, in a list that lives as long as the process; or what is wrong with their names.
pub fn beside_ours(added: Vec<Mode>) -> Result<Vec<Mode>, String> {
    let mut all = MODES.to_vec();
    for new in added {
        let name = new.name;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_plain) {
            return Err(format!("a mode cannot be called '{name}': use small letters, digits, + and -"));
        }
        if RESERVED.contains(&name) {
            return Err(format!(
                "a mode cannot be called '{name}', which means something else; name it otherwise"
            ));
        }
        if mode(&all, name).is_some() {
            return Err(format!("there is a mode '{name}' already; give yours another name"));
        }
        all.push(new);
    }
    Ok(all)
}

/// From now on there are these too. To be called once, before anything else.
pub fn register(added: Vec<Mode>) -> Result<(), String> {
    let all = beside_ours(added)?;
    ALL.set(all).map_err(|_| "modes are added once, before the program does anything else".into())
}

/// Their names, in a line.
pub fn names() -> String {
    modes().iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sartor_core::controlet::ms_sc;

    #[test]
    fn names_are_new_and_plain() {
        let added = |name| beside_ours(vec![Mode { name, ..ms_sc::MODE }]).map(|all| all.len());
        assert_eq!(added("mine+2"), Ok(MODES.len() + 1));
        for name in ["ms+sc", "", "a b", "Mine", "switch", "copies", "a,b"] {
            assert!(added(name).is_err(), "'{name}'");
        }
        let twice = ["mine", "mine"].map(|name| Mode { name, ..ms_sc::MODE });
        assert!(beside_ours(twice.to_vec()).is_err_and(|text| text.contains("already")));
    }
}
