//! A real redis-server and memcached, where they are installed.

use super::super::own;
use super::{get, open, said};
use crate::conformance::check;
use crate::{Options, find};
use sartor_core::datalet::{Datalet, DataletError};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A server behind a Unix socket in a folder of its own.
struct Server {
    dir: PathBuf,
    child: Child,
}

impl Server {
    /// None, and a word about it, where it is not installed.
    fn start(options: &[&str]) -> Option<Server> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sartor-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let child = launch(&dir, options)?;
        Some(Server { dir, child })
    }

    fn kind(&self) -> String {
        format!("redis://{}", self.dir.join("socket").display())
    }

    fn open(&self) -> Result<Box<dyn Datalet>, DataletError> {
        open(&self.kind())
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = launch(&self.dir, &[]).unwrap();
    }

    /// Does something behind our back.
    fn say(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.join("socket")).unwrap();
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 100];
        let len = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..len]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn launch(dir: &std::path::Path, options: &[&str]) -> Option<Child> {
    let socket = dir.join("socket");
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(dir);
    let Ok(mut child) = command.args(options).stdout(Stdio::null()).spawn() else {
        eprintln!("skipped: there is no redis-server on the PATH");
        return None;
    };
    while UnixStream::connect(&socket).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "redis-server ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(child)
}

#[test]
fn redis_conforms() {
    let Some(server) = Server::start(&[]) else { return };
    for kind in [server.kind(), format!("{}?db=3", server.kind())] {
        let (engine, address) = find(&kind).unwrap();
        server.say("SET other 1");
        for verdict in check(engine, &Options { address, ..Options::default() }) {
            assert_eq!(verdict.result, Ok(()), "{kind}: {}", verdict.check);
        }
        let left = if kind.ends_with('3') { ":1\r\n" } else { ":0\r\n" };
        assert_eq!(server.say("DBSIZE"), left, "no other database was touched");
    }
}

#[test]
fn values_are_as_they_were_put_and_those_of_others_are_found() {
    let Some(server) = Server::start(&[]) else { return };
    server.say("SET theirs 7");
    let mut store = server.open().unwrap();
    assert_eq!((store.len().unwrap(), get(store.as_mut(), "theirs").unwrap()), (1, Some("7".into())));
    store.put(b"ours", b"raw").unwrap();
    store.commit(b"", false).unwrap();
    assert_eq!(server.say("GET ours"), "$3\r\nraw\r\n");
    assert_eq!(store.generation(), 0);
}

#[test]
fn one_that_wants_a_password_gets_it() {
    let Some(server) = Server::start(&["--requirepass", "p@ss"]) else { return };
    let as_user = |user: &str| open(&server.kind().replace("://", &format!("://{user}@"))).map(drop);
    assert!(said(server.open().map(drop)).contains("it wants a password"));
    assert!(said(as_user(":wrong")).contains("user or password are wrong"));
    assert_eq!((as_user(":p%40ss"), as_user("default:p%40ss")), (Ok(()), Ok(())));
}

#[test]
fn one_with_other_things_than_strings_is_refused_by_name() {
    let Some(server) = Server::start(&[]) else { return };
    (0..2000).for_each(|i| drop(server.say(&format!("SET {i} v"))));
    server.say("RPUSH queue a");
    let text = said(server.open().map(drop));
    assert!(text.contains("1 key is no string: 'queue' (list); only strings can be kept"), "{text}");
    (0..6).for_each(|i| drop(server.say(&format!("SADD set{i} a"))));
    let text = said(server.open().map(drop));
    assert!(
        text.contains("7 keys are no strings: ") && text.contains("(set), ") && text.contains(", …"),
        "{text}"
    );
    assert!(open(&format!("{}?db=1", server.kind())).is_ok());
}

#[test]
fn one_that_restarted_empty_or_was_emptied_is_noticed() {
    let Some(mut server) = Server::start(&[]) else { return };
    let full = |server: &Server| {
        let mut store = server.open().unwrap();
        (0..100).for_each(|i: u32| store.put(&i.to_le_bytes(), b"v").unwrap());
        store.commit(b"", false).unwrap();
        store
    };
    let mut store = full(&server);
    server.restart();
    assert_eq!(get(store.as_mut(), "a"), Ok(None));
    assert_eq!(store.generation(), 1);

    let mut store = full(&server);
    server.restart();
    assert!(said(store.commit(b"", false)).contains("it restarted"));

    let mut store = full(&server);
    server.restart();
    store.put(b"a", b"1").unwrap();
    assert!(said(store.commit(b"", false)).contains("which of the last 1 writes"));

    // What was closed while nothing happened is found out before anything is written.
    let mut store = full(&server);
    server.restart();
    std::thread::sleep(Duration::from_millis(1100));
    store.put(b"a", b"1").unwrap();
    assert!(said(store.commit(b"", false)).contains("it restarted"));

    let mut store = full(&server);
    server.say("FLUSHALL");
    assert_eq!(get(store.as_mut(), "a"), Ok(None));
    assert_eq!(store.generation(), 1);
}

#[test]
fn keys_that_had_a_deadline_may_go() {
    let Some(server) = Server::start(&[]) else { return };
    server.say("SET soon 1 PX 200");
    server.say("SET later 1 EX 1000");
    let mut store = server.open().unwrap();
    // A read removes it in the server.
    while server.say("DBSIZE") != ":1\r\n" {
        server.say("GET soon");
    }
    assert_eq!(get(store.as_mut(), "soon"), Ok(None));
    store.commit(b"", false).unwrap();
    assert_eq!((store.len().unwrap(), store.generation()), (1, 0));
}

#[test]
fn one_without_memory_says_so() {
    let Some(server) = Server::start(&["--maxmemory", "3mb"]) else { return };
    let mut store = server.open().unwrap();
    let value = vec![0; 100_000];
    let failed = (0..1000u32).find_map(|i| store.put(&i.to_le_bytes(), &value).err());
    let text = failed.unwrap().to_string();
    assert!(text.contains("OOM") && text.contains("no memory left"), "{text}");
    server.say("CONFIG SET maxmemory-policy allkeys-lru");
    assert!(said(server.open().map(drop)).contains("set its maxmemory-policy to noeviction"));
}

#[test]
fn one_of_our_own_conforms_has_no_port_and_ends_with_its_store() {
    if own::check_installed().is_err() {
        return eprintln!("skipped: there is no redis-server on the PATH");
    }
    let (engine, _) = find("redis").unwrap();
    for verdict in check(engine, &Options::default()) {
        assert_eq!(verdict.result, Ok(()), "{}", verdict.check);
    }
    // Longer than the path of a socket may be.
    let base = std::env::temp_dir().join(format!("sartor-own-redis-{}", std::process::id()));
    let dir = base.join("a".repeat(60)).join("b".repeat(60));
    let options = Options { seed: 5, ..Options::default() }.in_dir(&dir);
    let mut store = (engine.open)(&options).unwrap();
    store.put(b"ours", b"raw").unwrap();
    store.commit(b"", false).unwrap();
    let ask = |line: &str| {
        let mut stream = own::connect(&dir.join("redis.sock")).ok()?;
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut answer = [0; 100];
        let len = stream.read(&mut answer).unwrap();
        Some(String::from_utf8_lossy(&answer[..len]).into_owned())
    };
    assert_eq!(ask("GET ours"), Some("$3\r\nraw\r\n".into()));
    assert_eq!(ask("CONFIG GET port"), Some("*2\r\n$4\r\nport\r\n$1\r\n0\r\n".into()));
    drop(store);
    assert_eq!(ask("GET ours"), None, "it ended");
    // The next one in the same folder is empty.
    assert_eq!((engine.open)(&options).unwrap().len(), Ok(0));
    std::fs::remove_dir_all(base).unwrap();
}

#[test]
fn memcached_conforms() {
    let socket = std::env::temp_dir().join(format!("sartor-memcached-{}", std::process::id()));
    let spawned = Command::new("memcached").args(["-u", "nobody", "-a", "777", "-s"]).arg(&socket).spawn();
    let Ok(mut child) = spawned else {
        return eprintln!("skipped: there is no memcached on the PATH");
    };
    let kind = format!("memcached://{}", socket.display());
    while open(&kind).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "memcached ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (engine, address) = find(&kind).unwrap();
    let verdicts = check(engine, &Options { address, ..Options::default() });
    // In pieces, so that many keys fit into one request after the other.
    let mut store = open(&kind).unwrap();
    (0..5000).for_each(|i: u32| store.put(format!("{i:0200}").as_bytes(), &vec![b'v'; 2000]).unwrap());
    store.commit(b"", false).unwrap();
    (0..5000).for_each(|i: u32| store.expect(format!("{i:0200}").as_bytes()));
    let there = (0..5000).filter(|i| get(store.as_mut(), &format!("{i:0200}")).unwrap().is_some()).count();
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_file(&socket);
    for verdict in verdicts {
        assert_eq!(verdict.result, Ok(()), "{}", verdict.check);
    }
    assert_eq!(there, 5000);
}
