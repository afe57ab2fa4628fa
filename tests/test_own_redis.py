"""`--datalet redis` without an address: Sartor starts a redis-server for each copy, and none outlives its node.

They are real; they are killed under load, and looked for when their nodes and the cluster have ended.
"""

import contextlib
import os
import signal
import stat
import subprocess
import tempfile

import pytest
import redis

from conftest import SARTOR, Cluster, wait_for
from history import Load, check_linearizable, check_nothing_lost, longest_gap


@pytest.fixture
def folder():
    """Not pytest's own, whose name is so long that clients other than Sartor cannot connect to a socket there."""
    with tempfile.TemporaryDirectory(prefix="own-redis-") as folder:
        yield folder


@contextlib.contextmanager
def cluster_in(folder, *options, ends=signal.SIGINT):
    """A cluster that has its files there; nothing of it runs afterwards."""
    cluster = Cluster("--dir", str(folder), *options)
    try:
        yield cluster
    finally:
        cluster.end(ends)
        wait_for(lambda: not servers(folder), "no redis-server outlives the cluster", 5)


def servers(folder):
    """The redis-servers that run somewhere under a folder: their pids, by their own folders."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            place = os.readlink(f"/proc/{pid}/cwd")
            if program.startswith("redis-") and place.startswith(str(folder) + "/"):
                found[place] = int(pid)
    return found


def stores(folder, shard=None):
    """Clients of the redis-servers of a shard, past Sartor."""
    prefix = "" if shard is None else f"{shard}-"
    places = [place for place in sorted(servers(folder)) if os.path.basename(place).startswith(prefix)]
    return [redis.Redis(unix_socket_path=os.path.join(place, "redis.sock")) for place in places]


def is_whole(cluster, copies, shards=1):
    with contextlib.suppress(AssertionError):
        status = cluster.status()
        there = [shard["replicas"] for shard in status["shards"]]
        return status["health"] == "healthy" and [len(replicas) for replicas in there] == [copies] * shards


def contents(store):
    """All that is in a redis-server, or nothing where it ends meanwhile."""
    with contextlib.suppress(redis.RedisError):
        keys = sorted(store.scan_iter(count=10_000))
        return list(zip(keys, store.mget(keys) if keys else []))


def test_each_copy_has_a_redis_server_that_others_cannot_reach(folder):
    with cluster_in(folder, "--datalet", "redis", "--standbys", "0") as cluster:
        assert {replica["datalet"] for replica in cluster.status()["shards"][0]["replicas"]} == {"redis"}
        client = cluster.client()
        for number in range(300):
            assert client.set(f"key:{number}", f"value {number}")
        assert client.set("short", "life", px=400) and client.incr("counter") == 1
        assert len(servers(folder)) == 9, "three shards of three copies"
        counts = []
        for shard in range(3):
            copies = stores(folder, shard)
            assert len(copies) == 3
            wait_for(lambda: contents(copies[0]) == contents(copies[1]) == contents(copies[2]), "equal copies")
            counts.append(sum(store.exists("key:77") for store in copies))
            for store in copies:
                assert store.get("key:77") in (None, b"value 77") and store.config_get("port") == {"port": "0"}
        assert sorted(counts) == [0, 0, 3], "values are as they were put, in the copies of one shard"
        wait_for(lambda: client.get("short") is None, "it expires")
        for place in servers(folder):
            assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
            assert stat.S_IMODE(os.stat(f"{place}/redis.sock").st_mode) == 0o700
        # The line of the banner that tells how to look into one.
        line = next(line for line in cluster.banner.splitlines() if "redis-cli -s" in line)
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        assert done.returncode == 0 and "key:" in done.stdout, (line, done)


def test_redis_servers_that_are_killed_under_load_lose_nothing(folder):
    options = ["--datalet", "redis", "--shards", "1", "--copies", "3", "--standbys", "0"]
    with cluster_in(folder, *options) as cluster:
        at = [cluster.port + node for node in range(3)]
        patient = Load(at, connections=12, prefix="p")
        strict = Load(at, connections=9, keys=20, retries=False, prefix="s")
        with patient:
            with strict:
                wait_for(lambda: patient.written_since(0), "the load is going")
                for node in [0, 1, 2]:
                    [(place, pid)] = [item for item in servers(folder).items() if f"/node-{node}/" in item[0]]
                    os.kill(pid, signal.SIGKILL)
                    # Another one is started in a folder of its own, and filled.
                    wait_for(lambda: place not in servers(folder) and len(servers(folder)) == 3, "another one")
                    wait_for(lambda: is_whole(cluster, 3), "three copies")
            # A node takes its redis-server along.
            node = cluster.status()["nodes"][1]["pid"]
            [(place, _)] = [item for item in servers(folder).items() if "/node-1/" in item[0]]
            os.kill(node, signal.SIGKILL)
            wait_for(lambda: place not in servers(folder), "it ends with its node")
            wait_for(lambda: len(servers(folder)) == 3 and is_whole(cluster, 3), "three copies")
        print(f"\n  {patient.summary()}; longest time without a write {longest_gap(strict.operations):.3f} s")
        for load in (patient, strict):
            assert not load.errors, load.errors[0]
        finals = [read for port in at for read in strict.final(port)[1]]
        assert check_linearizable(strict.operations + finals) is None
        for port in at:
            assert check_nothing_lost(patient.operations, patient.final(port)[0]) is None
        copies = stores(folder)
        same = lambda: contents(copies[0]) is not None and all(contents(copies[0]) == contents(c) for c in copies)
        wait_for(same, "the redis-servers are equal")
        assert len(contents(copies[0])) >= 20


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_redis_server_outlives_the_cluster(folder, how):
    with cluster_in(folder, "--datalet", "redis", "--shards", "2", "--copies", "2", ends=how) as cluster:
        assert cluster.client().set("a", "1") and len(servers(folder)) == 4
        if how == signal.SIGTERM:
            cluster.end(how)
            assert not servers(folder), "they are gone when it says that it ended"
            assert "ended" in cluster.banner
    # As in memory: another cluster in that folder begins empty.
    with cluster_in(folder) as cluster:
        assert cluster.client().get("a") is None and cluster.client().set("a", "2")
        assert len(servers(folder)) == 4


def test_the_only_copy_begins_anew_when_its_redis_server_dies(folder):
    with cluster_in(folder, "--datalet", "redis", "--shards", "1", "--copies", "1", "--standbys", "0") as cluster:
        client = cluster.client(socket_timeout=30)
        assert client.set("a", "1")
        [pid] = servers(folder).values()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "begins" in cluster.banner, "that its data are gone is said")

        def serves():
            with contextlib.suppress(redis.RedisError):
                return client.set("b", "2")

        wait_for(serves, "service goes on")
        assert client.get("a") is None and client.get("b") == b"2"
        [pid_after] = servers(folder).values()
        assert pid_after != pid


def test_beside_other_datalets_and_switched_to(folder):
    options = ["--datalet", "hash,redis", "--shards", "1", "--copies", "2", "--standbys", "1"]
    with cluster_in(folder, *options) as cluster:
        client = cluster.client()
        for number in range(100):
            assert client.set(f"key:{number}", f"value {number}")
        [store] = stores(folder)
        wait_for(lambda: store.get("key:99") == b"value 99", "the copy in Redis has it, as it is")
        for kind, count in ("redis", 2), ("tree", 0):
            command = [SARTOR, "switch", "--datalet", kind, "--endpoint", f"127.0.0.1:{cluster.port}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
            wait_for(lambda: len(servers(folder)) == count, f"{count} redis-servers")
            assert [client.get(f"key:{number}") for number in (0, 99)] == [b"value 0", b"value 99"]


def test_what_is_missing_is_said(folder):
    for kind in "redis", "hash,redis":
        command = [os.path.abspath(SARTOR), "up", "--datalet", kind]
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": folder})
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
        assert "redis-server is not installed" in done.stderr and "apt-get install redis-server" in done.stderr


def test_a_folder_with_a_long_name_will_do(tmp_path):
    folder = tmp_path / ("long" * 30)
    with cluster_in(folder, "--datalet", "redis", "--shards", "1", "--copies", "1", "--standbys", "0") as cluster:
        assert cluster.client().set("a", "1") and len(servers(folder)) == 1
        line = next(line for line in cluster.banner.splitlines() if "redis-cli -s" in line)
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        assert done.stdout == "a\n", (line, done)
