"""Copies of one shard in stores of several kinds: what only some of them can answer goes to those, in every mode."""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
import redis

from conftest import SARTOR, running, wait_for

MIXED = ("--datalet", "hash,tree,log", "--shards", "3", "--copies", "3", "--standbys", "0")
KEYS = [b"%05d" % (number * 5) for number in range(4000)]


def status(cluster):
    """What the first node says, which no test here kills."""
    return cluster.status(0)


def signalled(cluster, node, how):
    """Signals a node; the epoch before."""
    victim, before = status(cluster)["nodes"][node], status(cluster)["epoch"]
    # Who has not reported yet has the pid 0, and that would be this process and its group.
    assert victim["pid"] > 1
    os.kill(victim["pid"], how)
    return before


def wait_healed(cluster, after):
    """All copies are there again."""

    def healed():
        now = status(cluster)
        return now["epoch"] > after and now["health"] == "healthy"

    wait_for(healed, f"healed after epoch {after}", 30)


def fill(client, keys=KEYS):
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.set(key, b"v" + key)
    pipe.execute()


def pages(client, start=b"", end=b"", *options):
    """All of a range, page by page."""
    found, place = [], 1 if "REV" in options else 0
    bounds = [start, end]
    while bounds[place] is not None:
        bounds[place], more = client.execute_command("SARTOR.RANGE", *bounds, "LIMIT", "900", *options)
        found += more
    return found


@contextmanager
def writers(cluster, count=2):
    """Clients that write and delete between the keys that stay; what went wrong."""
    stop, errors = threading.Event(), []

    def write(number):
        client, chance = cluster.client(number), random.Random(number)
        while not stop.is_set():
            key = b"%05d" % (chance.randrange(len(KEYS)) * 5 + 2)
            try:
                client.set(key, "other") if chance.random() < 0.6 else client.delete(key)
            except redis.RedisError as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def check_range(found, reverse=False):
    assert found == sorted(found, reverse=reverse) and len(set(found)) == len(found)
    stays = [key for key in found if int(key) % 5 == 0]
    assert stays == (KEYS[::-1] if reverse else KEYS)


@pytest.mark.parametrize("mode", ["ms+sc", "ms+ec", "aa+sc", "aa+ec", "aa-ms"])
def test_every_node_scans_though_not_every_store_can(mode):
    with running("--mode", mode, *MIXED) as cluster:
        clients = [cluster.client(node) for node in range(3)]
        fill(clients[0])
        # Every head is on another node, so that in one shard it is the hash table.
        assert {shard["replicas"][0]["node"] for shard in status(cluster)["shards"]} == {0, 1, 2}
        wait_for(lambda: all(len(pages(client)) == len(KEYS) for client in clients), "all copies have all")
        with writers(cluster) as errors:
            for _ in range(3):
                for client in clients:
                    check_range(pages(client))
                    check_range(pages(client, b"", b"", "REV"), reverse=True)
        assert not errors
        for place, client in enumerate(clients):
            # What a connection wrote, it reads, wherever that goes; and it does not wait for the answers in between.
            for turn in range(30):
                key = b"own-%d-%03d" % (place, turn)
                pipe = client.pipeline(transaction=False)
                pipe.set(key, "1")
                pipe.execute_command("SARTOR.RANGE", b"own-%d-" % place, b"own-%d." % place)
                pipe.delete(key)
                pipe.execute_command("SARTOR.RANGE", key, key + b"\0")
                assert pipe.execute() == [True, [None, [key]], 1, [None, []]]


def test_strong_scans_see_what_anybody_was_told():
    with running(*MIXED) as cluster:
        clients = [cluster.client(node) for node in range(3)]
        for turn in range(150):
            key = b"%04d" % turn
            clients[turn % 3].set(key, "1")
            other = clients[(turn + 1 + turn // 3 % 2) % 3]
            other.execute_command("SARTOR.CONSISTENCY", "strong")
            assert other.execute_command("SARTOR.RANGE", key, "", "REV") == [None, [key]]
        # Whoever takes such reads for others has room for so many at once, and must forget those that it answered.
        for client in clients:
            pipe = client.pipeline(transaction=False)
            for _ in range(1500):
                pipe.execute_command("SARTOR.RANGE", b"0149", "")
            assert pipe.execute() == [[None, [b"0149"]]] * 1500


@pytest.mark.parametrize("mode", ["ms+sc", "ms+ec", "aa+ec"])
def test_dead_records_are_judged_by_who_orders(mode):
    with running("--mode", mode, *MIXED) as cluster:
        clients = [cluster.client(node) for node in range(3)]
        for turn in range(20):
            writer, reader = clients[turn % 3], clients[turn // 3 % 3]
            stays = {b"%02d-%04d" % (turn, number) for number in range(0, 300, 3)}
            pipe = writer.pipeline(transaction=False)
            for number in range(300):
                key = b"%02d-%04d" % (turn, number)
                pipe.set(key, "1", px=None if key in stays else 5)
            pipe.execute()
            time.sleep(0.006)
            # It was written by another connection, which `ms+ec` may show a bit later; but nothing dead, ever.
            bounds = (b"%02d-" % turn, b"%02d." % turn)
            assert set(pages(reader, *bounds)) <= stays
            assert pages(writer, *bounds) == sorted(stays)
            wait_for(lambda: set(pages(reader, *bounds)) == stays, "what stays is everywhere")
        # In a transaction a range is done, or refused, where that is: nothing that all copies have may come of it.
        for turn in range(30):
            pipe = clients[turn % 3].pipeline(transaction=True)
            pipe.set(b"dies", "1", px=1)
            pipe.execute_command("SARTOR.RANGE", b"dies", b"dies0")
            pipe.execute(raise_on_error=False)
        verify = [SARTOR, "verify", "--endpoint", f"127.0.0.1:{cluster.port}"]
        done = subprocess.run(verify, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert status(cluster)["health"] == "healthy" and status(cluster)["epoch"] == 1, "no copy was given up"


def test_levels_of_consistency():
    with running("--mode", "ms+ec", *MIXED) as cluster:
        client = cluster.client(0)
        fill(client)
        with pytest.raises(redis.ResponseError, match="cannot answer strongly"):
            client.execute_command("SARTOR.CONSISTENCY", "strong")
        for level in (["eventual"], ["causal"], ["bounded", "2000"], ["mode"]):
            client.execute_command("SARTOR.CONSISTENCY", *level)
            wait_for(lambda: pages(client) == KEYS, level)
        # No copy but the primary's is never late; where that is a hash table, nobody can promise it.
        once = redis.Redis(port=cluster.port, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
        once.execute_command("SARTOR.CONSISTENCY", "bounded", "0")
        with pytest.raises(redis.BusyLoadingError, match="in an ordered datalet does not know enough.*ask for less"):
            pages(once)


def test_scans_go_on_when_one_that_can_scan_dies_and_comes_back():
    with running(*MIXED) as cluster:
        fill(cluster.client(0))
        stop, done = threading.Event(), []

        def scan(node):
            client = cluster.client(node, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.1), 50))
            while not stop.is_set():
                check_range(pages(client))
                done.append(node)

        failed = []

        def guarded(node):
            try:
                scan(node)
            except Exception as error:  # Told by the test below.
                failed.append(error)

        # The tree dies: nobody asks there, as its clients would be cut off.
        threads = [threading.Thread(target=guarded, args=(node,)) for node in (0, 2)]
        for thread in threads:
            thread.start()
        try:
            wait_healed(cluster, signalled(cluster, 1, signal.SIGKILL))
            seen = len(done)
            wait_for(lambda: failed or len(done) > seen + 4, "scans go on")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
        check_range(pages(cluster.client(1)))


def test_where_nobody_can_scan_any_more_it_is_said():
    with running("--datalet", "hash,tree", "--shards", "1", "--copies", "2", "--standbys", "0") as cluster:
        client = redis.Redis(port=cluster.port, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
        fill(client)
        check_range(pages(client))
        before = signalled(cluster, 1, signal.SIGSTOP)
        said = []

        def is_said():
            try:
                pages(client)
            except redis.BusyLoadingError as error:
                said.append(str(error))
            return said and "no copy of shard 0 is in an ordered datalet now" in said[-1]

        wait_for(is_said, "the error")
        assert client.get(KEYS[0]) == b"v" + KEYS[0], "all else goes on"
        signalled(cluster, 1, signal.SIGCONT)
        wait_healed(cluster, before)
        check_range(pages(client))


def test_switched_kinds_are_followed_copy_by_copy():
    """From hash tables alone to a mix, and back, under load: a read in key order goes where it can be answered."""
    with running("--datalet", "hash", "--shards", "2", "--copies", "2", "--standbys", "1", "--nodes", "3") as cluster:
        client = cluster.client(0)
        fill(client)
        with pytest.raises(redis.ResponseError, match="use an ordered one"):
            pages(client)
        with writers(cluster) as errors:
            for kind in ("hash,tree,tree", "tree"):
                switch = [SARTOR, "switch", "--datalet", kind, "--endpoint", f"127.0.0.1:{cluster.port}", "--timeout", "60"]
                done = subprocess.run(switch, capture_output=True, text=True)
                assert done.returncode == 0, done.stdout + done.stderr
                for node in range(3):
                    check_range(pages(cluster.client(node)))
        assert not errors


def test_a_kind_that_is_missing_comes_back_with_its_node():
    """A standby of another kind takes the place of the only tree; when that is back, copies are in both kinds again."""
    with running("--datalet", "hash,tree", "--shards", "1", "--copies", "2", "--standbys", "1") as cluster:
        client = cluster.client(0)
        fill(client)
        members = lambda: {replica["node"] for replica in status(cluster)["shards"][0]["replicas"]}
        assert members() == {0, 1}
        before = signalled(cluster, 1, signal.SIGSTOP)
        wait_healed(cluster, before)
        assert members() == {0, 2}
        with pytest.raises(redis.BusyLoadingError, match="no copy of shard 0 is in an ordered datalet now"):
            redis.Redis(port=cluster.port, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)).execute_command(
                "SARTOR.RANGE", "", ""
            )
        with writers(cluster, 1) as errors:
            before = signalled(cluster, 1, signal.SIGCONT)
            wait_for(lambda: members() in ({0, 1}, {1, 2}), "copies in both kinds")
            wait_healed(cluster, before)
            check_range(pages(client))
        assert not errors
