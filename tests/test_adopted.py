"""Stores that run already become a cluster's: what is in the first one is the table, and the others are filled from it.

Real Redis and memcached servers, and the Python template of a store of one's own; they are killed, emptied and written to
behind Sartor's back under load.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import redis

from conftest import SARTOR, Cluster, free_port, wait_for
from history import Load, check_counters, check_linearizable, check_nothing_lost, longest_gap
from test_datalets import datalet

TEMPLATE = os.path.join(os.path.dirname(__file__), "../templates/python/dict_datalet.py")
KEYS = int(os.environ.get("ADOPTED_KEYS", "100000"))


class Store:
    """A server behind Sartor, which can be killed and started again, empty."""

    def __init__(self, kind, port, *command):
        self.port, self.address, self.process = port, f"{kind}://127.0.0.1:{port}", None
        self.command = [word.format(port=port) for word in command]

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.answers, self.address)

    def answers(self):
        try:
            redis.Redis(port=self.port, socket_timeout=0.2).ping()
        except redis.TimeoutError:
            return True  # It is no Redis, and listens.
        except redis.ConnectionError as problem:
            return "refused" not in str(problem)
        except redis.RedisError:
            return True
        return True

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self):
        return redis.Redis(port=self.port)


@contextlib.contextmanager
def running(kind, count, folder):
    """So many servers of a kind, which end with the test."""
    # The cluster takes its ports from the same place, behind these.
    base = free_port()
    commands = {
        "redis": ["redis-server", "--port", "{port}", "--save", "", "--bind", "127.0.0.1", "--dir", str(folder)],
        "memcached": ["memcached", "-p", "{port}", "-l", "127.0.0.1", "-U", "0", "-u", "nobody"],
        "remote": [sys.executable, TEMPLATE, "127.0.0.1:{port}"],
    }
    stores = [Store(kind, base + place, *commands[kind]) for place in range(count)]
    try:
        for store in stores:
            store.start()
        yield stores
    finally:
        for store in stores:
            if store.process:
                store.kill()


@contextlib.contextmanager
def adopted(stores, *options, ends=signal.SIGINT):
    """A cluster of as many copies as there are stores, one in each."""
    kinds = ",".join(store.address for store in stores)
    shape = ["--datalet", kinds, "--shards", "1", "--copies", str(len(stores)), "--standbys", "0"]
    cluster = Cluster(*shape, *options)
    try:
        yield cluster
    finally:
        cluster.end(ends)


def fill(store, count):
    with store.client() as client:
        for at in range(0, count, 10_000):
            pipe = client.pipeline(transaction=False)
            for number in range(at, min(at + 10_000, count)):
                pipe.set(f"key:{number}", f"value {number}")
            pipe.execute()


def ports(cluster, count):
    return [cluster.port + node for node in range(count)]


def members(cluster):
    return [replica["node"] for replica in cluster.status()["shards"][0]["replicas"]]


def wait_whole(cluster, count):
    """All copies are there."""

    def whole():
        with contextlib.suppress(AssertionError):
            status = cluster.status()
            return status["health"] == "healthy" and len(members(cluster)) == count and all(
                node["state"] == "up" for node in status["nodes"]
            )

    wait_for(whole, f"{count} copies", 60)


def wait_said(cluster, text, times=1):
    wait_for(lambda: cluster.banner.count(text) >= times, f"'{text}' is said", 30)


def wait_equal(stores):
    """All stores hold the same, byte for byte."""

    def contents(store):
        with store.client() as client:
            keys = sorted(client.scan_iter(count=10_000))
            return list(zip(keys, client.mget(keys) if keys else []))

    wait_for(lambda: all(contents(store) == contents(stores[0]) for store in stores), "the stores are equal", 30)


def check(loads, finals_at):
    """Nobody saw an error, and nothing that was acknowledged is lost."""
    for load in loads:
        assert not load.errors, load.errors[0]
    strict = [load for load in loads if not load.retries]
    for load in strict:
        finals = [read for port in finals_at for read in load.final(port)[1]]
        assert check_linearizable(load.operations + finals) is None
    for load in loads:
        if load.retries:
            assert check_nothing_lost(load.operations, load.final(finals_at[-1])[0]) is None


def test_an_existing_redis_is_replicated_by_one_command_and_leaves_again(tmp_path):
    with running("redis", 3, tmp_path) as stores:
        fill(stores[0], KEYS)
        stores[0].client().set("dies", "soon", px=100_000_000)
        began = time.monotonic()
        with adopted(stores) as cluster:
            print(f"\n{KEYS} keys in three copies after {time.monotonic() - began:.1f} s")
            wait_whole(cluster, 3)
            for port in ports(cluster, 3):
                client = redis.Redis(port=port)
                assert client.get("key:77") == b"value 77" and client.dbsize() == KEYS + 1
            found = set(cluster.client(1).scan_iter(count=5000))
            assert len(found) == KEYS + 1
            for store in stores:
                assert store.client().dbsize() == KEYS + 1 and store.client().get("key:9") == b"value 9"
            # Deadlines are Sartor's to judge, also those that were there before.
            client = cluster.client(2)
            assert 99_000_000 < client.pttl("dies") <= 100_000_000
            client.pexpire("dies", 300)
            client.set("short", "life", px=300)
            client.set("long", "life", ex=1000)
            assert client.incr("counter") == 1 and client.append("key:1", " more") == len("value 1 more")
            for store in stores:
                assert store.client().get("key:1") == b"value 1 more" and store.client().get("long") == b"life"
                # Redis would remove it by itself, but later.
                assert store.client().ttl("long") > 1000
            gone = lambda: all(store.client().exists("short", "dies") == 0 for store in stores)
            wait_for(gone, "what expired is removed from all of them")
            assert client.get("short") is None and client.get("long") == b"life" and client.dbsize() == KEYS + 2
            wait_equal(stores)
            at = ports(cluster, 3)
            patient = Load(at, connections=12, prefix="p")
            strict = Load(at, connections=12, keys=20, retries=False, prefix="s")
            with patient, strict:
                wait_for(lambda: patient.written_since(0), "the load is going")
                began = time.monotonic()
                command = [SARTOR, "switch", "--datalet", "lsm", "--endpoint", f"127.0.0.1:{cluster.port}"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=240)
                assert done.returncode == 0, done.stdout + done.stderr
                print(f"to lsm under load: {time.monotonic() - began:.1f} s")
                time.sleep(0.5)
            print(f"  {patient.summary()}; longest time without a write {longest_gap(strict.operations):.3f} s")
            check([patient, strict], at)
            assert cluster.client(1).get("key:77") == b"value 77"
            assert {r["datalet"] for r in cluster.status()["shards"][0]["replicas"]} == {"lsm"}


def test_a_redis_that_restarts_empty_or_is_written_to_by_others_is_filled_again(tmp_path):
    with running("redis", 3, tmp_path) as stores:
        fill(stores[0], 5000)
        with adopted(stores) as cluster:
            wait_whole(cluster, 3)
            at = ports(cluster, 3)
            patient = Load(at, connections=9, prefix="p")
            strict = Load(at, connections=9, keys=20, retries=False, prefix="s")
            with patient, strict:
                wait_for(lambda: patient.written_since(0), "the load is going")
                for place, node in enumerate([0, 1, 2]):
                    store = stores[node]
                    store.kill()
                    wait_for(lambda: node not in members(cluster), "it is given up")
                    wait_said(cluster, f"{store.address}: cannot connect")
                    store.start()
                    wait_whole(cluster, 3)
                # The head's, and behind everybody's back.
                head = stores[members(cluster)[0]]
                head.client().flushall()
                wait_said(cluster, f"{head.address}: the datalet failed")
                wait_for(lambda: head.client().dbsize() >= 5000, "it is filled again", 30)
                wait_whole(cluster, 3)
                other = stores[members(cluster)[1]]
                said = cluster.banner.count("somebody else")
                other.client().set("somebody else's", "key")
                wait_said(cluster, "somebody else", said + 1)
                wait_for(lambda: not other.client().exists("somebody else's"), "it is filled again", 30)
                wait_whole(cluster, 3)
            print(f"\n  {patient.summary()}; longest time without a write {longest_gap(strict.operations):.3f} s")
            check([patient, strict], at)
            wait_equal(stores)
            # Who cannot be opened is not tried all the time.
            assert cluster.status()["epoch"] < 200


def test_the_only_copy(tmp_path):
    """One that does not answer is waited for. One that came back empty has no more: it is said, and service goes on."""
    with running("redis", 1, tmp_path) as [store]:
        fill(store, 100)
        with adopted([store]) as cluster:
            client = cluster.client(socket_timeout=30)
            assert client.get("key:7") == b"value 7"
            store.kill()
            with pytest.raises(redis.RedisError):
                client.get("key:7")
            wait_said(cluster, "cannot connect", 2)
            assert cluster.status()["epoch"] < 30
            store.start()

            def serves():
                with contextlib.suppress(redis.RedisError):
                    return client.set("new", "1")

            wait_for(serves, "service goes on")
            assert client.get("key:7") is None and client.get("new") == b"1"
            wait_said(cluster, f"it begins anew, with what is in {store.address}")
            # Somebody puts another data set there: that is the table from then on.
            fill(store, 10)

            def reads():
                with contextlib.suppress(redis.RedisError):
                    return client.get("key:7") == b"value 7"

            wait_for(reads, "what is there is served")
            assert client.dbsize() == 11


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_that_was_stopped_goes_on_with_what_is_in_its_stores(tmp_path, how):
    folder = str(tmp_path / "cluster")
    with running("redis", 3, tmp_path) as stores:
        fill(stores[0], 1000)
        with adopted(stores, "--dir", folder, ends=how) as cluster:
            wait_whole(cluster, 3)
            port, at = cluster.port, ports(cluster, 3)
            cluster.client().set("session", "token", ex=1000)
            with Load(at, connections=9, prefix="p") as load:
                wait_for(lambda: len(load.written_since(0)) > 100, "the load is going")
            assert not load.errors, load.errors[0]
            counting = Load(at, connections=6, keys=5, verbs=("INCR",), retries=False, prefix="n")
            with counting:
                wait_for(lambda: counting.written_since(0), "the load is going")
                if how == signal.SIGKILL:
                    cluster.up.kill()
        wait_for(lambda: not node_answers(at), "all its processes ended")
        cluster = Cluster("--dir", folder, port=port)
        try:
            wait_whole(cluster, 3)
            for where in at:
                assert check_nothing_lost(load.operations, load.final(where)[0]) is None
                assert check_counters(counting.operations, counting.final(where)[0]) is None
            # What was kept in memory is gone, but Redis knew the deadlines too, with a minute to spare.
            assert cluster.client().get("session") == b"token" and 900 < cluster.client().ttl("session") <= 1061
            wait_equal(stores)
        finally:
            cluster.end()


def node_answers(at):
    for port in at:
        with contextlib.suppress(redis.ConnectionError):
            return redis.Redis(port=port).ping()
    return False


def test_memcached_with_one_copy_and_what_it_cannot(tmp_path):
    with running("memcached", 1, tmp_path) as [store], adopted([store]) as cluster:
        client = cluster.client()
        assert client.get("a") is None and client.set("a", "1") and client.get("a") == b"1"
        assert client.incr("a") == 2 and client.delete("a", "b") == 1 and client.get("a") is None
        assert client.set("b", "soon gone", px=100)
        wait_for(lambda: client.get("b") is None, "it expires")
        assert client.set("k" * 186, "x" * 1_000_000) and client.strlen("k" * 186) == 1_000_000
        refused = {
            ("SET", "k" * 187, "v"): "key too long",
            ("SET", "", "v"): "key too short",
            ("SET", "a", "x" * (1 << 20)): "value too large",
            ("SET", "a", "x" * (1 << 20), "EX", "100"): "value too large",
            ("APPEND", "k" * 186, "x" * (1 << 16)): "too large|exceeds maximum",
            ("SETRANGE", "a", str(1 << 20), "x"): "too large|exceeds maximum",
            ("INCR", "k" * 200): "key too long",
            ("SETNX", "k" * 200, "v"): "key too long",
        }
        for words, why in refused.items():
            with pytest.raises(redis.ResponseError, match=why):
                client.execute_command(*words)
        pipe = client.pipeline(transaction=False)
        for words in list(refused)[:3]:
            pipe.execute_command(*words)
        answers = pipe.set("fine", "1").execute(raise_on_error=False)
        assert [type(answer) for answer in answers[:3]] == [redis.ResponseError] * 3 and answers[3]
        pipe = client.pipeline(transaction=True)
        pipe.set("k" * 187, "v")
        pipe.set("also", "fine")
        answers = pipe.execute(raise_on_error=False)
        assert isinstance(answers[0], redis.ResponseError) and answers[1]
        assert client.mget("k" * 187, "fine", "also", "k" * 186)[:3] == [None, b"1", b"fine"]
        with pytest.raises(redis.ResponseError, match="does not tell its keys"):
            client.scan()
        assert client.dbsize() >= 3
        verify = [SARTOR, "verify", "--endpoint", f"127.0.0.1:{cluster.port}"]
        done = subprocess.run(verify, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 2) and client.get("fine") == b"1", done
        assert client.flushall() and client.get("fine") is None
        assert "the store of shard" not in cluster.banner, cluster.banner


def test_more_copies_of_memcached_are_refused(tmp_path):
    with running("memcached", 2, tmp_path) as stores:
        kinds = ",".join(store.address for store in stores)
        command = [SARTOR, "up", "--datalet", kinds, "--shards", "1", "--copies", "2", "--standbys", "0"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and "cannot be walked" in done.stderr and "--copies 1" in done.stderr, done


def test_stores_that_are_not_empty_are_not_filled(tmp_path):
    with running("redis", 2, tmp_path) as stores:
        fill(stores[1], 3)
        kinds = ",".join(store.address for store in stores)
        command = [SARTOR, "up", "--datalet", kinds, "--shards", "1", "--copies", "2", "--standbys", "0"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and "has 3 keys" in done.stderr and len(done.stderr.splitlines()) == 1, done
        assert stores[1].client().dbsize() == 3


def test_a_store_in_python_is_replicated_and_outlives_its_processes(tmp_path):
    with running("remote", 3, tmp_path) as stores:
        for store in stores:
            code, text = datalet("check", store.address)
            assert code == 0 and "does all that it declares" in text, text
        with adopted(stores) as cluster:
            wait_whole(cluster, 3)
            at = ports(cluster, 3)
            patient = Load(at, connections=9, prefix="p")
            strict = Load(at, connections=9, keys=20, retries=False, prefix="s")
            with patient, strict:
                wait_for(lambda: patient.written_since(0), "the load is going")
                for node in [0, 1, 2]:
                    stores[node].kill()
                    wait_for(lambda: node not in members(cluster), "it is given up")
                    stores[node].start()
                    wait_whole(cluster, 3)
            print(f"\n  {patient.summary()}; longest time without a write {longest_gap(strict.operations):.3f} s")
            check([patient, strict], at)
            counts = [redis.Redis(port=port).dbsize() for port in at]
            assert len(set(counts)) == 1 and counts[0] >= 200, counts
