"""The cluster map in etcd, and several coordinators of which one leads.

A real etcd serves these tests; they kill, stop and restart it. What clients saw is checked; how long it took is
printed (pytest -s) and never checked.
"""

import base64
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager

import pytest

from conftest import SARTOR, Cluster, free_port, wait_for
from history import Load, check_linearizable, check_nothing_lost, longest_gap, without_repeated
from test_failover import heard, killed, ports, signalled, stopped, survives

FULL = os.environ.get("FULL") == "1"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ports_of_nobody(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return numbers


class Etcd:
    """A real etcd, whose data outlives its process."""

    def __init__(self, folder):
        self.folder = folder
        self.port, self.peers = ports_of_nobody(2)
        self.start()

    def start(self):
        clients, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peers}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", str(self.folder), "--log-level", "error"]
            + ["--listen-client-urls", clients, "--advertise-client-urls", clients]
            + ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
            + ["--initial-cluster", f"default={peers}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.answers, "etcd")

    def answers(self):
        try:
            return self.call("kv/range", key="x") is not None
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def call(self, path, **arguments):
        body = {name: base64.b64encode(text).decode() for name, text in as_bytes(arguments)}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v3/{path}", json.dumps(body).encode())
        return json.load(direct.open(request, timeout=5))

    def keys(self):
        """The last part of each key -> its value, the revision of its birth, and that of its last change."""
        kvs = self.call("kv/range", key="/sartor/", range_end="/sartor0").get("kvs", [])
        return {
            base64.b64decode(kv["key"]).decode().rsplit("/", 1)[1]: (
                base64.b64decode(kv.get("value", "")),
                int(kv["create_revision"]),
                int(kv["mod_revision"]),
            )
            for kv in kvs
        }

    def leader(self):
        """Who leads, as it says there; None if nobody does."""
        entry = self.keys().get("leader")
        return entry and json.loads(entry[0])

    def map_key(self):
        kvs = self.call("kv/range", key="/sartor/", range_end="/sartor0")["kvs"]
        return next(key for key in (base64.b64decode(kv["key"]) for kv in kvs) if key.endswith(b"/map"))


def as_bytes(arguments):
    for name, text in arguments.items():
        yield name, text if isinstance(text, bytes) else text.encode()


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path / "etcd")
    yield etcd
    etcd.kill()


@contextmanager
def started(*options, etcd, port=None, coordinators=3):
    # Nobody is at the first address: the next one is asked.
    metadata = f"etcd://127.0.0.1:1,127.0.0.1:{port or etcd.port}"
    cluster = Cluster("--metadata", metadata, "--coordinators", str(coordinators), *options)
    try:
        yield cluster
    finally:
        cluster.end()


def page(http):
    """What a coordinator's page says."""
    return json.load(direct.open(f"http://{http}/status", timeout=5))


def another_leads(etcd, than):
    """Waits until a living coordinator other than that one leads."""
    other = lambda: (etcd.leader() or than)["pid"] != than["pid"]
    wait_for(other, "another coordinator leads")
    return etcd.leader()


def all_say(cluster, leader):
    """Whether all nodes have heard of that leader, and it of them."""
    said = [cluster.status(node) for node in range(4)]
    led = all(one["coordinator"]["pid"] == leader["pid"] and one["coordinator"]["state"] == "up" for one in said)
    return led and all(node["pid"] for one in said for node in one["nodes"])


def test_the_leader_dies_and_then_a_node(etcd):
    with started(etcd=etcd) as cluster:
        leader = etcd.leader()
        before = cluster.status()
        assert before["coordinator"] == {"addr": leader["addr"], "pid": leader["pid"], "state": "up"}
        states = lambda: sorted(one["state"] for one in cluster.status()["coordinators"])
        wait_for(lambda: states() == ["candidate", "candidate", "leads"], "who does not lead is a candidate", 5)
        for index in range(3):
            http = f"127.0.0.1:{cluster.port + 200 + 2 * index}"
            said = page(http)
            assert "shards" in said if http == leader["http"] else said == {"leader": leader}
            assert json.load(direct.open(f"http://{http}/health", timeout=5)) == {"ok": True}

        def fault(_held):
            signalled(leader, signal.SIGKILL)
            killed(cluster, 0)

        survives(cluster, "leader", fault)
        new = etcd.leader()
        assert new["pid"] != leader["pid"] and all_say(cluster, new)
        wait_for(lambda: states() == ["candidate", "candidate", "leads"], "the old one is back", 5)


def test_a_leader_that_stood_still_can_do_nothing(etcd):
    with started("--no-restart", etcd=etcd) as cluster:
        old = etcd.leader()
        before = cluster.status()
        with stopped(old, 0):
            new = another_leads(etcd, old)
            wait_for(lambda: all_say(cluster, new), "the nodes follow the new one", 5)
            signalled(before["nodes"][0], signal.SIGKILL)
            taken = lambda: cluster.status(1)["health"] == "healthy" and cluster.status(1)["nodes"][3]["state"] == "up"
            wait_for(taken, "the node is replaced")
            time.sleep(0.3)
            kept = etcd.keys()
        # It wakes up with the silence of all in its ears, and with a lease that it cannot know to be over.
        # A word of it would be heard for a tenth of a second at most, so we must be quick.
        end, nodes = time.monotonic() + 1.5, [cluster.client(node) for node in (1, 2, 3)]
        while time.monotonic() < end:
            for node in nodes:
                said = json.loads(node.execute_command("SARTOR.STATUS"))
                assert said["coordinator"]["pid"] == new["pid"] and said["epoch"] > before["epoch"]
        assert etcd.keys() == kept, "neither the map nor who leads has changed"
        assert page(old["http"]) == {"leader": new}, "it is a candidate again"
        assert "leads no longer" in cluster.banner
        signalled(new, signal.SIGKILL)
        assert another_leads(etcd, new)


def test_etcd_dies_and_comes_back(etcd):
    with started(etcd=etcd) as cluster:
        before = cluster.status()
        etcd.kill()
        away = lambda: cluster.status()["coordinator"]["state"] == "down"
        wait_for(away, "without its lease nobody leads", 10)
        assert cluster.client().set("k", "v") and cluster.client(1).get("k") == b"v"
        wait_for(lambda: "cannot reach etcd" in cluster.banner, "it is said", 10)
        etcd.start()
        leader = wait_for(etcd.leader, "somebody leads")
        wait_for(lambda: all_say(cluster, etcd.leader() or leader), "the nodes hear it")
        assert cluster.status()["epoch"] == before["epoch"], "nothing happened, so nothing was decided"
        # Watch, lease and transactions work again.
        leader = etcd.leader()
        signalled(leader, signal.SIGKILL)
        killed(cluster, 0)
        assert etcd.leader()["pid"] != leader["pid"] and cluster.client(2).get("k") == b"v"


def test_nobody_notices_that_all_coordinators_and_etcd_are_away(etcd):
    seconds = 60 if FULL else 5
    with started(etcd=etcd) as cluster:
        with Load(ports(cluster), connections=16) as load:
            time.sleep(0.5)
            pids = children(cluster, "coordinator")
            assert len(pids) == 3
            for pid in [*pids, etcd.process.pid]:
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            wait_for(lambda: cluster.status()["coordinator"]["state"] == "down", "they are missed", 5)
            time.sleep(max(0, start + seconds - time.monotonic()))
            end = time.monotonic()
            for pid in [etcd.process.pid, *pids]:
                os.kill(pid, signal.SIGCONT)
            wait_for(lambda: cluster.status()["coordinator"]["state"] == "up", "somebody leads again")
            killed(cluster, 1)
        meanwhile = [op for op in load.operations if start < op.start and op.end < end]
        gap = longest_gap(meanwhile)
        print(f"\nno coordinator and no etcd for {seconds} s: {load.summary()}")
        print(f"  meanwhile {len(meanwhile)} operations, longest time without a write {gap:.3f} s")
        assert meanwhile and not load.errors, load.errors[0]
        final, reads = load.final(cluster.port)
        operations = load.operations + reads
        assert check_nothing_lost(operations, final) is None
        assert check_linearizable(without_repeated(operations)) is None


def test_an_older_map_is_noticed_and_the_newest_one_heals(etcd):
    with started("--no-restart", etcd=etcd, coordinators=2) as cluster:
        old, _, _ = etcd.keys()["map"]
        signalled(heard(cluster.status, 0), signal.SIGKILL)
        taken = lambda: cluster.status(1)["health"] == "healthy" and cluster.status(1)["nodes"][3]["state"] == "up"
        wait_for(taken, "the node is replaced")
        time.sleep(0.3)
        new, epoch = etcd.keys()["map"][0], cluster.status(1)["epoch"]
        etcd.call("kv/put", key=etcd.map_key(), value=old)
        wait_for(lambda: "is older than the map of the nodes" in cluster.banner, "it is noticed")
        signalled(heard(lambda: cluster.status(1), 1), signal.SIGKILL)
        time.sleep(1.5)
        assert etcd.keys()["map"][0] == old and cluster.status(2)["epoch"] == epoch, "nothing is repaired"
        etcd.call("kv/put", key=etcd.map_key(), value=new)
        wait_for(lambda: cluster.status(2)["epoch"] > epoch, "the newest one is back, and so are repairs")
        wait_for(lambda: cluster.status(2)["health"] == "degraded", "two copies serve")
        assert cluster.client(2).set("k", "v")


def test_an_answer_of_etcd_that_gets_lost(etcd):
    """The map was written and nobody told the leader: it finds out, and neither stops nor writes it twice."""
    with bad_way(etcd.port) as way, started(etcd=etcd, port=way.port, coordinators=1) as cluster:
        leader = etcd.keys()["leader"]
        for node in (0, 1):
            way.answers_lost = 3
            killed(cluster, node)
            assert way.answers_lost == 0, "three answers were lost"
        assert etcd.keys()["leader"] == leader, "it led all the time"


def test_a_write_that_arrives_when_another_one_leads(etcd):
    """A leader is stopped with a map on its way to etcd, and that comes in late."""
    with bad_way(etcd.port) as way, started("--no-restart", etcd=etcd, port=way.port) as cluster:
        old = etcd.leader()
        way.holds = True
        signalled(heard(cluster.status, 0), signal.SIGKILL)
        assert way.held.wait(10), "the next map is on its way"
        with stopped(old, 0):
            new = another_leads(etcd, old)
            before = etcd.keys()
            way.go.set()
            # The new leader gives everybody half a second to be heard before it makes a map of its own.
            time.sleep(0.3)
            assert etcd.keys() == before, "what comes from the old one changes nothing"
            taken = lambda: cluster.status(1)["health"] == "healthy" and cluster.status(1)["nodes"][3]["state"] == "up"
            wait_for(taken, "the node is replaced")
        assert etcd.leader() == new and "somebody else changed" not in cluster.banner


def test_a_map_in_a_file_is_not_forgotten(etcd, tmp_path):
    """With etcd instead of the file it would begin anew; it says how the map is moved."""
    cluster = Cluster("--dir", str(tmp_path / "up"))
    cluster.end()
    file = tmp_path / "up/coordinator-0.toml"
    toml = file.read_text().replace('metadata = "file"', f'metadata = "etcd://127.0.0.1:{etcd.port}"')
    file.write_text(toml)
    command = [SARTOR, "coordinator", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1 and "etcdctl put /sartor/" in done.stderr and done.stderr.count("\n") == 1
    key = next(word for word in done.stderr.split() if word.startswith("/sartor/"))
    old = tmp_path / "up/coordinator/cluster.map"
    etcd.call("kv/put", key=key, value=old.read_bytes())
    old.unlink()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(etcd.leader, "it leads")
        wait_for(lambda: page(f"127.0.0.1:{cluster.port + 200}").get("epoch") == 1, "it has the map")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "options, said",
    [
        (["--coordinators", "2"], "needs --metadata etcd://"),
        (["--coordinators", "0"], "--coordinators 0"),
        (["--coordinators", "99"], "from 1 to 9"),
        (["--metadata", "zk://a:1"], "etcd://HOST:PORT"),
        (["--metadata", "etcd://a"], "etcd://a"),
    ],
)
def test_bad_options_are_one_clear_line(options, said):
    done = subprocess.run([SARTOR, "up", *options], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def children(cluster, verb):
    """The processes of `sartor up` that run this verb."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            parent = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()[1]
        except OSError:
            continue
        if parent == str(cluster.up.pid) and verb in words:
            found.append(int(pid))
    return found


class Way:
    """A way to etcd with faults; they meet the transactions that write a map."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        # So many answers are still to be lost.
        self.answers_lost = 0
        # The next one is held until it may go.
        self.holds, self.held, self.go = False, threading.Event(), threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.pump, args=(near,), daemon=True).start()

    def pump(self, near):
        far, doomed = socket.create_connection(("127.0.0.1", self.to)), False
        with near, far:
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    try:
                        data = ready.recv(65536)
                        if not data or (ready is far and doomed):
                            return
                        if ready is near and is_write_of_map(data):
                            doomed = self.meet_write() or doomed
                        (far if ready is near else near).sendall(data)
                    except OSError:
                        return

    def meet_write(self):
        """Whether its answer is to be lost."""
        if self.holds:
            self.holds = False
            self.held.set()
            self.go.wait()
        if self.answers_lost:
            self.answers_lost -= 1
            return True
        return False


@contextmanager
def bad_way(port):
    way = Way(port)
    try:
        yield way
    finally:
        way.listener.close()


def is_write_of_map(data):
    """Whether this is the transaction that writes the map: the only one that compares the map's revision."""
    return b"mod_revision" in data
