"""`sartor verify`: copies are compared while they serve, and what differs is named."""

import json
import subprocess
import threading
import time
from binascii import crc_hqx

import pytest

from conftest import SARTOR, Cluster, wait_for


def verify(cluster, *options, node=0):
    """The exit code of `sartor verify`, and what it printed."""
    done = subprocess.run(
        [SARTOR, "verify", "--endpoint", f"127.0.0.1:{cluster.port + node}", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


class Writers:
    """Threads that write, delete, expire and count until told to stop."""

    def __init__(self, cluster, threads=4):
        self.stop = threading.Event()
        self.writes = 0
        self.threads = [
            threading.Thread(target=self.run, args=(cluster, index)) for index in range(threads)
        ]

    def run(self, cluster, index):
        client = cluster.client(index % 3, retry_on_error=[ConnectionError])
        turn = 0
        while not self.stop.is_set():
            turn += 1
            try:
                with client.pipeline(transaction=False) as pipe:
                    for i in range(50):
                        key = f"key{(turn * 7919 + i * 104729 + index) % 30000}"
                        [
                            lambda: pipe.set(key, "v" * (turn % 200)),
                            lambda: pipe.delete(key),
                            lambda: pipe.set(key, turn, px=20 + turn % 500),
                            lambda: pipe.append(key, "more"),
                        ][(turn + i) % 4]()
                    pipe.execute()
                self.writes += 50
            except Exception:
                client.close()
                time.sleep(0.05)

    def __enter__(self):
        [thread.start() for thread in self.threads]
        return self

    def __exit__(self, *_):
        self.stop.set()
        [thread.join() for thread in self.threads]


def fill(cluster, count=30000):
    with cluster.client().pipeline(transaction=False) as pipe:
        for i in range(count):
            pipe.set(f"key{i}", f"value {i}")
        pipe.execute()


def slot_of(key):
    return crc_hqx(key.encode(), 0) % 16384


@pytest.mark.parametrize(
    "options",
    [["--mode", "ms+sc"], ["--mode", "ms+ec", "--datalet", "tree"], ["--workers", "2", "--datalet", "tree"]],
    ids=["chain", "primary", "workers"],
)
def test_copies_are_equal_under_load_and_damage_is_named(options):
    cluster = Cluster("--set", "debug-commands=1", *options)
    try:
        fill(cluster)
        with Writers(cluster) as writers:
            for round in range(3):
                before = writers.writes
                code, text = verify(cluster, node=round)
                assert code == 0 and "9 replicas" in text and "all equal" in text, text
                assert writers.writes > before, "nothing was written meanwhile"
            cluster.client().set("victim", "whole")
            cluster.client().wait(2, 1000)
            assert cluster.client(1).execute_command("SARTOR.DEBUG", "CORRUPT", "victim") in (1, b"QUEUED")
            wanted = f"slot {slot_of('victim')}: "
            code, text = verify(cluster)
            assert code == 1 and wanted in text and "node 1 has" in text and "1 slot differ" in text, text
        code, text = verify(cluster, "-o", "json")
        assert code == 1
        shards = json.loads(text[: text.rindex("}") + 1])["shards"]
        (shard,) = [shard for shard in shards if shard["verdict"] == "differs"]
        assert [shard["verdict"] for shard in shards].count("equal") == 2
        (difference,) = shard["differs"]
        assert difference["slot"] == slot_of("victim")
        digests = {copy["node"]: copy["digest"] for copy in difference["copies"]}
        assert digests[0] == digests[2] != digests[1]
        # A write mends the record everywhere.
        cluster.client().set("victim", "anew")
        assert verify(cluster)[0] == 0
    finally:
        cluster.end()


def test_a_node_that_dies_is_named_or_replaced():
    cluster = Cluster("--standbys", "0", "--no-restart", "--detect-ms", "3000")
    try:
        fill(cluster)
        pid = cluster.status()["nodes"][2]["pid"]
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
        # It is a member for three seconds more, and still asked for its copy.
        code, text = verify(cluster)
        assert code in (0, 2), text
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
        wait_for(lambda: all(len(s["replicas"]) == 2 for s in cluster.status()["shards"]), "views without it")
        code, text = verify(cluster)
        assert code == 0 and "6 replicas" in text and "Node 2 is down" in text, text
        # Nobody to give the shards another view: what cannot be reached stays so, and is named.
        subprocess.run(["kill", "-KILL", str(cluster.status()["coordinator"]["pid"])], check=True)
        subprocess.run(["kill", "-KILL", str(cluster.status()["nodes"][1]["pid"])], check=True)
        code, text = verify(cluster)
        assert code == 2 and "3 of 3 shards could not be verified" in text, text
    finally:
        cluster.end()


def test_a_failover_meanwhile_is_waited_for():
    cluster = Cluster()
    try:
        fill(cluster)
        for node in range(3):
            with Writers(cluster):
                pid = cluster.status(node=3)["nodes"][node]["pid"]
                running = threading.Timer(0.05, subprocess.run, [["kill", "-KILL", str(pid)]])
                running.start()
                code, text = verify(cluster, node=3)
                running.join()
            # What could not be told is said; nothing is said to differ.
            assert code in (0, 2), text
            healthy = lambda: cluster.status(node=3)["health"] == "healthy"
            wait_for(healthy, "the copies are made again")
            code, text = verify(cluster, node=3)
            assert code == 0 and "9 replicas" in text, text
    finally:
        cluster.end()


def test_damage_is_refused_unless_allowed(cluster):
    client = cluster.client()
    client.set("k", "v")
    with pytest.raises(Exception, match="debug-commands"):
        client.execute_command("SARTOR.DEBUG", "CORRUPT", "k")
    with pytest.raises(Exception, match="at the start"):
        client.execute_command("CONFIG", "SET", "debug-commands", "1")
    assert client.get("k") == b"v"
    with pytest.raises(Exception, match="MULTI"):
        client.execute_command("MULTI")
        client.execute_command("SARTOR.VERIFY", "START")


def test_what_is_asked_wrongly_is_said(cluster):
    client = cluster.client()
    for words in [["RESULT", "1"], ["RESULT", "9", "1", "1"], ["RESULT", "0", "x", "1"], ["START", "3"], ["STOP"]]:
        with pytest.raises(Exception, match="syntax|no shard|not an integer"):
            client.execute_command("SARTOR.VERIFY", *words)
    answer = json.loads(client.execute_command("SARTOR.VERIFY", "RESULT", "0", "1", "999999"))
    assert answer["state"] == "waiting"
    code, text = verify(cluster, node=99)
    assert code == 2 and "no node answers" in text, text
