"""Servers to load, and how to load them: what compare and sweep share.

Servers run on core 0, the load on core 1. All is on loopback, and ends with the script.
"""

import html
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SARTOR = os.environ.get("SARTOR", os.path.join(ROOT, "target/release/sartor"))
SERVER_CORE, LOAD_CORE = "0", "1"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
# So many seconds for a server to start, a replica to be in step, a process to end.
PATIENCE = 30


class Trouble(Exception):
    """Something that the user has to know, in a line."""


def need(command, package):
    """The path of a command, or what to install."""
    path = shutil.which(command) or shutil.which(command, path="/usr/sbin:/usr/local/sbin")
    if not path:
        raise Trouble(f"{command} is missing; install it: apt-get install {package}")
    return path


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise Trouble(f"{what}: not within {PATIENCE} s")


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def ask(port, *words):
    """One command to a RESP server; the answer as it came, or nothing."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            s.sendall(request.encode())
            return s.recv(65536).decode(errors="replace")
    except OSError:
        return ""


class Layout:
    """Processes that together are one store: its name, where to ask, whose CPU counts, how to load it."""

    def __init__(self, name, target, options=()):
        self.name, self.target, self.options = name, target, list(options)
        self.processes, self.pids = [], []
        self.folder = tempfile.mkdtemp(prefix="sartor-compare-")

    def unix(self, option, name, wanted, path=""):
        """Words that make a server listen at a path in the folder, and the load go there."""
        if not wanted:
            return []
        self.target = "unix:" + os.path.join(self.folder, name)
        return ["--" + option, os.path.join(self.folder, path or name)]

    def start(self, *words, counts=True):
        """Starts a server process on its core."""
        process = subprocess.Popen(["taskset", "-c", SERVER_CORE, *words], cwd=self.folder, **QUIET)
        self.processes.append(process)
        if counts:
            self.pids.append(process.pid)
        return process

    def end(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def building(layout, steps):
    """The layout after these steps; if one fails nothing is left running."""
    try:
        steps(layout)
        return layout
    except BaseException:
        layout.end()
        raise


def redis(port, replicas=0, options=(), name=None, unix=False):
    """redis-server, with replicas that follow asynchronously; asked over a Unix socket if told so."""
    server = need("redis-server", "redis-server")

    def steps(layout):
        common = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"]
        common += ["--maxclients", "20000"]
        for i in range(replicas + 1):
            follows = ["--replicaof", "127.0.0.1", str(port)] if i else []
            layout.start(server, "--port", str(port + i), *common, *follows, *layout.unix("unixsocket", "redis.sock", unix))
            wait_for(lambda: "PONG" in ask(port + i, "PING"), f"redis-server at {port + i}")
        ready = lambda: ask(port, "INFO", "replication").count("state=online") == replicas
        wait_for(ready, "replicas of redis-server")

    return building(Layout(name or "Redis", f"127.0.0.1:{port}", options), steps)


def twemproxy(port, alone=False):
    """nutcracker in front of one redis-server; alone, only its own CPU counts."""
    proxy, server = need("nutcracker", "nutcracker"), need("redis-server", "redis-server")

    def steps(layout):
        layout.start(server, "--port", str(port + 1), "--save", "", "--bind", "127.0.0.1", counts=not alone)
        wait_for(lambda: "PONG" in ask(port + 1, "PING"), f"redis-server at {port + 1}")
        config = os.path.join(layout.folder, "nutcracker.yml")
        with open(config, "w") as file:
            file.write(f"pool:\n  listen: 127.0.0.1:{port}\n  redis: true\n  servers:\n   - 127.0.0.1:{port + 1}:1\n")
        layout.start(proxy, "-c", config, "-s", str(port + 2))
        wait_for(lambda: listens(port), "nutcracker")

    return building(Layout("Twemproxy" if alone else "Twemproxy and Redis", f"127.0.0.1:{port}"), steps)


def memcached(port):
    server = need("memcached", "memcached")

    def steps(layout):
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        layout.start(server, "-p", str(port), "-U", "0", "-l", "127.0.0.1", "-t", "1", "-m", "1024", *user)
        wait_for(lambda: listens(port), "memcached")

    return building(Layout("memcached", f"127.0.0.1:{port}", ["--protocol", "memcached"]), steps)


def echo(port):
    """A server that only answers: the limit of what one loop over sockets can do."""

    def steps(layout):
        layout.start(SARTOR, "bench", "--echo", f"127.0.0.1:{port}")
        wait_for(lambda: listens(port), "the echo server")

    return building(Layout("echo", f"127.0.0.1:{port}"), steps)


def sartor(port, copies=1, shards=1, mode="ms+sc", datalet="hash", workers=1, unix=False, outside=(), before=None):
    """A cluster as `sartor up` starts it; nodes and coordinator count, not what supervises them. outside: --log, --locks.

    before="redis": its one copy is in a redis-server that runs already, whose CPU does not count."""
    if not os.access(SARTOR, os.X_OK):
        raise Trouble(f"{SARTOR} is missing; build it: make release, or name it: SARTOR=...")

    def steps(layout):
        datalet_of = datalet
        if before == "redis":
            server, behind = need("redis-server", "redis-server"), port + 100
            options = ["--save", "", "--bind", "127.0.0.1"]
            layout.start(server, "--port", str(behind), *options, counts=False)
            wait_for(lambda: "PONG" in ask(behind, "PING"), f"redis-server at {behind}")
            datalet_of = f"redis://127.0.0.1:{behind}"
        words = ["up", "--shards", str(shards), "--copies", str(copies), "--standbys", "0", "--mode", mode]
        words += ["--datalet", datalet_of, "--port", str(port), "--detect-ms", "10000", "--workers", str(workers)]
        words += [*layout.unix("unix", "sockets/node-0.sock", unix, "sockets"), *outside]
        layout.start(SARTOR, *words, counts=False)

        def healthy():
            words = [SARTOR, "status", "--endpoint", f"127.0.0.1:{port}", "-o", "json"]
            done = subprocess.run(words, capture_output=True, text=True)
            status = json.loads(done.stdout) if done.returncode == 0 else {}
            if status.get("health") == "healthy":
                layout.pids = [status["coordinator"]["pid"], *(node["pid"] for node in status["nodes"])]
            return layout.pids

        wait_for(healthy, "sartor up")

    return building(Layout("Sartor", f"127.0.0.1:{port}"), steps)


def bench(layout, *options, seconds=None, warmup=0.5):
    """A run of `sartor bench` against a layout: what it measured."""
    words = ["taskset", "-c", LOAD_CORE, SARTOR, "bench", "--target", layout.target, *layout.options]
    words += ["-o", "json", "--warmup", str(warmup), *map(str, options)]
    if seconds:
        words += ["--seconds", str(seconds)]
    if layout.pids:
        words += ["--cpu", "server=" + ",".join(map(str, layout.pids))]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Trouble(f"{layout.name}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'sartor bench failed'}")
    return json.loads(done.stdout)


def fill(layout, *options):
    """Every record once, and no other request that matters."""
    waits = [word for word in layout.options if word not in ("--wait", "each", "batch")]
    plain = Layout.__new__(Layout)
    plain.name, plain.target, plain.options, plain.pids = layout.name, layout.target, waits, []
    bench(plain, "--load", "--requests", "1", *options, warmup=0)


def environment():
    """What a measurement was made on."""
    version = subprocess.run([SARTOR, "--version"], capture_output=True, text=True).stdout.strip()
    return {
        "command": " ".join(sys.argv),
        "sartor": version,
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def page(title, about, body, made_on):
    """A page that needs nothing else."""
    rows = "".join(f"<tr><td>{html.escape(str(k))}</td><td class=l>{html.escape(str(v))}</td></tr>" for k, v in made_on.items())
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
        "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}"
        "td,th{padding:.2em .8em .2em 0;text-align:right}td:first-child,th:first-child,td.l{text-align:left}"
        "svg{width:100%}svg text{font:11px system-ui,sans-serif;fill:#333}.cliff{color:#a00}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{style}</style>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p>{body}<h2>Made on</h2><table>{rows}</table></html>\n"
    )


def write(path, text):
    if path:
        with open(path, "w") as file:
            file.write(text)


def main(run):
    """Runs a script; what goes wrong is one line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run()
    except Trouble as trouble:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)
