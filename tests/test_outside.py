"""A log and locks outside of the cluster: real servers of NATS, etcd and Redis, which these tests kill and start again.

What clients saw is checked; how long it took is printed (pytest -s) and never checked.
"""

import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest
import redis

from conftest import SARTOR, wait_for
from history import Load, check_counters, check_linearizable, check_nothing_lost, longest_gap
from test_failover import ports, signalled, started, status, wait_healed, wait_same_everywhere
from test_metadata import Etcd, ports_of_nobody
from test_switch import modes, switch


class Server:
    """A process that outlives its kills."""

    def __init__(self, *command, port):
        self.command, self.port = command, port
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.answers, self.command[0])

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def nats(tmp_path):
    (port,) = ports_of_nobody(1)
    command = shutil.which("nats-server") or "/usr/sbin/nats-server"
    server = Server(command, "-js", "-sd", str(tmp_path), "-a", "127.0.0.1", "-p", str(port), port=port)
    yield server
    server.kill()


@contextmanager
def three_redis():
    servers = []
    for port in ports_of_nobody(3):
        options = ["--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        servers.append(Server("redis-server", *options, port=port))
    try:
        yield servers, "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    finally:
        for server in servers:
            server.kill()


def test_the_log_has_what_was_acknowledged(nats):
    """The sequencer dies, the log dies and comes back, and the table goes to other modes and back: nothing is lost or done twice."""
    with started("--mode", "aa+ec-log", "--log", f"nats://127.0.0.1:{nats.port}") as cluster:
        at = ports(cluster)
        patient = Load(at, connections=20, prefix="p")
        counting = Load(at, connections=8, keys=12, retries=False, verbs=("INCR",), prefix="n")
        with patient, counting:
            wait_for(lambda: patient.written_since(0), "the load is going")
            before = status(cluster)["coordinator"].get("epoch", 0)
            signalled(status(cluster)["nodes"][0], signal.SIGKILL)
            time.sleep(1)
            wait_healed(cluster, before)
            print(f"\nsequencer killed: longest time without a write {longest_gap(patient.operations):.3f} s")
            nats.kill()
            time.sleep(1)
            nats.start()
            back = time.monotonic()
            wait_for(lambda: patient.written_since(back), "it is written again")
            for mode in ("ms+sc", "aa+ec-log", "aa+ec", "aa+ec-log"):
                began, ended = switch(cluster, mode)
                print(f"{mode}: {ended - began:.2f} s")
                assert modes(cluster) == {mode}
                time.sleep(0.3)
        print(f"patient: {patient.summary()}\ncounting: {counting.summary()}")
        assert not patient.errors, patient.errors[0]
        for port in at:
            assert check_nothing_lost(patient.operations, patient.final(port)[0]) is None
            assert check_counters(counting.operations, counting.final(port)[0]) is None
        wait_same_everywhere(cluster, patient.keys + counting.keys)


def test_nothing_is_acknowledged_that_the_log_lacks(nats):
    with started("--mode", "aa+ec-log", "--log", f"nats://127.0.0.1:{nats.port}") as cluster:
        client = cluster.client(socket_timeout=2, retry=None)
        client.set("key", "before")
        nats.kill()
        with pytest.raises((redis.TimeoutError, redis.ResponseError)):
            client.set("key", "after")
        assert cluster.client(1).get("key") in (b"before", b"after"), "reads go on"
        nats.start()
        wait_for(lambda: writes(cluster), "the log is found again")
        # What was on its way took effect: it had its place.
        assert cluster.client(2).get("key") == b"after"


def writes(cluster):
    try:
        return cluster.client(socket_timeout=3, retry=None).set("other", "1")
    except redis.RedisError:
        return False


def check_locked(cluster, service, faults):
    at = ports(cluster)
    strict = Load(at, connections=16, keys=20, retries=False, prefix="s")
    counting = Load(at, connections=8, keys=6, retries=False, verbs=("INCR",), prefix="n")
    with strict, counting:
        wait_for(lambda: strict.written_since(0), "the load is going")
        for fault in faults:
            fault()
            since = time.monotonic()
            wait_for(lambda: strict.written_since(since), "it is written again", 60)
            time.sleep(0.5)
    print(f"\n{service}: {strict.summary()}\n  counting: {counting.summary()}")
    finals = [strict.final(port) for port in at]
    assert check_linearizable(strict.operations + [read for _, reads in finals for read in reads]) is None
    for port in at:
        assert check_counters(counting.operations, counting.final(port)[0]) is None


def kill_node(cluster):
    signalled(status(cluster)["nodes"][1], signal.SIGKILL)


def test_locks_of_etcd(tmp_path):
    etcd = Etcd(tmp_path / "etcd")
    try:
        with started("--mode", "aa+sc-locks", "--locks", f"etcd://127.0.0.1:{etcd.port}") as cluster:
            again = lambda: (etcd.kill(), time.sleep(0.5), etcd.start())
            check_locked(cluster, "etcd", [lambda: kill_node(cluster), again])
    finally:
        etcd.kill()


def test_locks_of_several_redis():
    with three_redis() as (servers, url), started("--mode", "ms+sc", "--locks", url) as cluster:
        one_less = lambda: (servers[0].kill(), time.sleep(1))
        back = lambda: switch(cluster, "aa+sc")
        check_locked(cluster, "redlock", [lambda: switch(cluster, "aa+sc-locks"), lambda: kill_node(cluster), one_less, back])
        assert modes(cluster) == {"aa+sc"}


@pytest.mark.parametrize(
    "options, says",
    [
        (["--mode", "aa+ec-log"], "--log nats://HOST:PORT"),
        (["--mode", "aa+sc-locks"], "--locks etcd://HOST:PORT"),
        (["--log", "nats://"], "nats://"),
        (["--log", "kafka://a:1"], "nats://"),
        (["--locks", "zk://a:1"], "etcd://"),
        (["--locks", "redis://a:1,b:2"], "odd"),
    ],
)
def test_what_is_missing_is_said(options, says):
    done = subprocess.run([SARTOR, "up", *options], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and says in done.stderr, done
    assert done.stderr.count("\n") == 1, done.stderr


def test_no_switch_to_what_is_not_there(cluster):
    for mode, says in (("aa+ec-log", "--log"), ("aa+sc-locks", "--locks")):
        with pytest.raises(redis.ResponseError, match=says):
            cluster.client().execute_command("SARTOR.SWITCH", mode)
