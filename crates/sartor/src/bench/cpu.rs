//! What processes spend: user and system time, from /proc.

/// A name for processes whose time is added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// What they are called.
    pub name: String,
    /// Who they are.
    pub pids: Vec<u32>,
}

impl Processes {
    /// `NAME=PID`, or `NAME=PID,PID`.
    pub fn parse(text: &str) -> Result<Processes, String> {
        let wrong = || format!("'{text}' is not NAME=PID or NAME=PID,PID");
        let (name, pids) = text.split_once('=').ok_or_else(wrong)?;
        let pids = pids.split(',').map(|pid| pid.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
        Ok(Processes { name: name.into(), pids })
    }

    /// The seconds they have spent until now.
    pub fn seconds(&self) -> Result<f64, String> {
        self.pids.iter().map(|pid| of_process(&pid.to_string())).sum()
    }
}

/// The seconds this process has spent.
pub fn own_seconds() -> Result<f64, String> {
    of_process("self")
}

fn of_process(pid: &str) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let stat =
        std::fs::read_to_string(&path).map_err(|error| format!("no process {pid}: {path}: {error}"))?;
    let ticks = ticks(&stat).ok_or_else(|| format!("{path} has another format"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time of a line of /proc/PID/stat. The name in it may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_anything() {
        let line = "7 (a) S 1) S 1 7 7 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(line), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn processes_have_a_name() {
        let wanted = Processes { name: "nodes".into(), pids: vec![1, 22] };
        assert_eq!(Processes::parse("nodes=1,22"), Ok(wanted));
        assert!(Processes::parse("nodes").unwrap_err().contains("NAME=PID"));
        assert!(Processes::parse("nodes=x").is_err());
        assert!(own_seconds().is_ok());
    }
}
