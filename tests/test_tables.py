"""Tables: made, chosen, shown, deleted, in several modes and engines, while others are used; ranges of keys over shards."""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from conftest import SARTOR, running, wait_for

# With FULL=1 a million.
COUNT = 1_000_000 if os.environ.get("FULL") else 10_000
KEYS = [b"a%07d" % number for number in range(0, 3 * COUNT, 3)]


def make(client, name, *options):
    assert client.execute_command("SARTOR.TABLE", "CREATE", name, *options) == b"OK"


@contextmanager
def table(cluster, name, *options):
    make(cluster.client(), name, *options)
    try:
        yield name
    finally:
        cluster.client().execute_command("SARTOR.TABLE", "DELETE", name)


def chosen(cluster, name, node=0):
    """A client all of whose connections are in that table."""
    words = cluster.client(node).execute_command("SARTOR.TABLE", "SHOW", name)
    return cluster.client(node, db=words[words.index(b"number") + 1])


def sartor(cluster, *words, node=0):
    command = [SARTOR, *words, "--endpoint", f"127.0.0.1:{cluster.port + node}"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_same_key_in_several_tables_is_several_keys(cluster):
    with table(cluster, "one", "DATALET", "tree"), table(cluster, "two", "MODE", "ms+ec", "COPIES", "2", "SHARDS", "5"):
        names = ["default", "one", "two"]
        for node, name in zip((0, 1, 2), names):
            chosen(cluster, name, node).set("k", name)
        for node in range(4):
            assert [chosen(cluster, name, node).get("k") for name in names] == [b"default", b"one", b"two"]
        shown = {row["name"]: row for row in cluster.status()["tables"]}
        numbers = [shown[name]["id"] for name in names]
        assert numbers == sorted(set(numbers)) and (shown["two"]["mode"], shown["two"]["shards"]) == ("ms+ec", 5)
        by_number = redis.Redis(port=cluster.port, db=shown["two"]["id"])
        assert by_number.get("k") == b"two" and by_number.client_info()["db"] == shown["two"]["id"]
        one, two = chosen(cluster, "one"), chosen(cluster, "two")
        two.mset({f"k{number}": number for number in range(100)})
        assert (one.dbsize(), two.dbsize()) == (1, 101)
        assert sorted(two.scan_iter(count=7)) == sorted([b"k", *(b"k%d" % number for number in range(100))])
        assert list(one.scan_iter()) == [b"k"]
        keyspace = two.info("keyspace")
        assert keyspace[f"db{shown['one']['id']}"]["keys"] == 1 and keyspace[f"db{shown['two']['id']}"]["keys"] == 101
        two.flushdb()
        assert (one.dbsize(), two.dbsize()) == (1, 0)
        two.set("k", 1)
        cluster.client().flushall()
        assert (one.dbsize(), two.dbsize(), cluster.client().dbsize()) == (0, 0, 0)


def test_a_transaction_is_in_one_table(cluster):
    with table(cluster, "shop", "DATALET", "tree"):
        shop = chosen(cluster, "shop")
        shop.set("stock", 7)
        with shop.pipeline() as pipe:
            pipe.watch("stock")
            pipe.multi()
            pipe.decr("stock")
            assert pipe.execute() == [6]
        raw = cluster.client(single_connection_client=True)
        raw.execute_command("SELECT", "shop")
        for words in (["MULTI"], ["INCR", "stock"]):
            raw.execute_command(*words)
        with pytest.raises(redis.ResponseError, match="inside of MULTI"):
            raw.execute_command("SELECT", "default")
        assert raw.execute_command("SELECT", "shop") is False, "QUEUED"
        assert raw.execute_command("EXEC") == [7, b"OK"] and cluster.client().get("stock") is None
        assert raw.execute_command("RESET") == "RESET" and raw.get("stock") is None, "RESET goes back to the first table"


def test_what_is_wrong_is_said(cluster):
    db = cluster.client()
    wrong = {
        ("CREATE", "default"): "there is a table default already",
        ("CREATE", "Upper"): "a table's name begins with a small letter",
        ("CREATE", "7up"): "a table's name begins with a small letter",
        ("CREATE", "t", "MODE", "x"): "there is no mode x",
        ("CREATE", "t", "DATALET", "x"): "unknown datalet 'x'",
        ("CREATE", "t", "DATALET", "hash", "PARTITION", "range"): "hash does not keep keys in order.*tree",
        ("CREATE", "t", "DATALET", "tree", "SPLIT-AT", "b", "SPLIT-AT", "a"): "SPLIT-AT keys must come in their order",
        ("CREATE", "t", "DATALET", "tree", "PARTITION", "range", "SHARDS", "3"): "a table in ranges has one shard more than it has SPLIT-AT keys",
        ("CREATE", "t", "PARTITION", "hash", "SPLIT-AT", "b"): "SPLIT-AT is for tables in ranges",
        ("CREATE", "t", "PARTITION", "list"): "there is no partition list; there is: hash, range",
        ("CREATE", "t", "COPIES", "5"): "5 copies need as many nodes",
        ("CREATE", "t", "SHARDS", "0"): "SHARDS must be from 1 to 1024",
        ("CREATE", "t", "SHARDS"): "syntax: SARTOR.TABLE",
        ("CREATE", "t", "COLOUR", "red"): "syntax: SARTOR.TABLE",
        ("CREATE",): "syntax: SARTOR.TABLE",
        ("DELETE", "default"): "the table default is always there; FLUSHDB empties it",
        ("DELETE", "nosuch"): "there is no table nosuch; there is: default",
        ("SHOW", "nosuch"): "there is no table nosuch",
    }
    for words, text in wrong.items():
        with pytest.raises(redis.ResponseError, match="^" + text):
            db.execute_command("SARTOR.TABLE", *words)
    with pytest.raises(redis.ResponseError, match="^DB index is out of range; there is no table 9"):
        db.execute_command("SELECT", 9)
    with pytest.raises(redis.ResponseError, match="^there is no table nosuch"):
        db.execute_command("SELECT", "nosuch")
    assert db.execute_command("SARTOR.TABLE", "LIST") == [b"default"], "nothing was made"


def test_from_the_command_line(cluster):
    made = sartor(cluster, "table", "create", "logs", "--datalet", "tree", "--split-at", "g,n", "--copies", "2")
    assert made.returncode == 0 and "2 copies in tree, 3 shards by range" in made.stdout, made.stderr
    again = sartor(cluster, "table", "create", "logs", node=1)
    assert again.returncode == 2 and "there is a table logs already" in again.stderr
    assert "logs" in sartor(cluster, "table", "list", node=2).stdout
    shown = sartor(cluster, "table", "show", "logs", node=3).stdout
    assert "from '' to 'g'" in shown and "from 'g' to 'n'" in shown and "from 'n' on" in shown
    db = chosen(cluster, "logs")
    db.mset({"z": 1, "a": 2, "m": 3, "h": 4})
    scanned = sartor(cluster, "scan", "--table", "logs", "--values", node=1)
    assert scanned.stdout.split() == ["a", "2", "h", "4", "m", "3", "z", "1"], scanned.stderr
    assert sartor(cluster, "scan", "--table", "nosuch").returncode == 2
    switched = sartor(cluster, "switch", "--table", "logs", "--mode", "aa+ec")
    assert switched.returncode == 0 and db.get("m") == b"3", switched.stderr
    modes = {row["name"]: row["mode"] for row in cluster.status()["tables"]}
    assert modes == {"default": "ms+sc", "logs": "aa+ec"}
    asked = sartor(cluster, "table", "delete", "logs")
    assert asked.returncode == 2 and "say --yes" in asked.stderr and db.dbsize() == 4
    assert sartor(cluster, "table", "delete", "logs", "--yes").returncode == 0
    with pytest.raises(redis.ResponseError, match="the table was deleted; SELECT another one"):
        db.get("m")
    assert sartor(cluster, "table", "show", "logs").returncode == 2


def test_ranges_are_read_in_order_over_shards_while_others_write(cluster):
    third, two_thirds = KEYS[COUNT // 3], KEYS[2 * COUNT // 3]
    with table(cluster, "wide", "DATALET", "tree", "SPLIT-AT", third, "SPLIT-AT", two_thirds):
        db = chosen(cluster, "wide")
        for start in range(0, COUNT, 10_000):
            db.mset(dict.fromkeys(KEYS[start : start + 10_000], b"v" * 32))
        sizes = [int(shard[1]) for shard in spread(cluster, "wide")]
        assert sum(sizes) == COUNT and max(sizes) - min(sizes) < 3, "each shard has its third"
        stop, written = threading.Event(), []

        def write():
            own, chance = chosen(cluster, "wide", 1), random.Random(3)
            while not stop.is_set():
                key = b"a%07d" % (chance.randrange(COUNT) * 3 + 1)
                own.set(key, "other") if chance.random() < 0.6 else own.delete(key)
                written.append(key)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            around = KEYS[COUNT // 3 - 5], KEYS[COUNT // 3 + 5]
            for start, end in ((b"", b""), around, (b"a1", b"a2"), (KEYS[COUNT // 2], b"b")):
                found, place, begun = [], start, time.monotonic()
                while place is not None:
                    place, page = db.execute_command("SARTOR.RANGE", place, end, "LIMIT", 700 if COUNT < 100_000 else 10_000)
                    found += page
                assert found == sorted(set(found))
                there = [key for key in found if int(key[1:]) % 3 == 0]
                assert there == [key for key in KEYS if key >= start and (not end or key < end)]
                print(f"{len(found)} keys in {time.monotonic() - begun:.1f} s, {len(written)} writes so far")
        finally:
            stop.set()
            writer.join()
        assert written
        with pytest.raises(redis.ResponseError, match="the range ends before it begins"):
            db.execute_command("SARTOR.RANGE", "b", "a")


def spread(cluster, name):
    """Of each shard of a table: its number and how many keys are in its range, by asking for all of it."""
    db = chosen(cluster, name)
    words = cluster.client().execute_command("SARTOR.TABLE", "SHOW", name)
    shards = words[words.index(b"shards") + 1]
    ends = [shard[1] for shard in shards[1:]] + [b""]
    found = []
    for (number, lower, _), end in zip(shards, ends):
        count, place = 0, lower
        while place is not None:
            place, page = db.execute_command("SARTOR.RANGE", place, end, "LIMIT", 10_000)
            count += len(page)
        found.append((number, count))
    return found


def test_a_table_is_deleted_under_load_and_nothing_of_it_stays(tmp_path):
    with running("--dir", str(tmp_path), "--shards", "2") as cluster:
        make(cluster.client(), "brief", "DATALET", "log", "MODE", "ms+sc")
        stores = lambda: [path for path in Path(tmp_path).glob("node-*/stores/*")]
        assert len(stores()) == 6
        problems, stop = set(), threading.Event()

        def write(node):
            own = chosen(cluster, "brief", node)
            number = 0
            while not stop.is_set():
                try:
                    own.set(f"{node}:{number}", number)
                    number += 1
                except redis.RedisError as error:
                    problems.add(str(error))
                    return

        def use():
            own, number = cluster.client(), 0
            while not stop.is_set():
                own.set("kept", number)
                assert int(own.get("kept")) == number
                number += 1

        threads = [threading.Thread(target=write, args=(node % 4,)) for node in range(8)] + [threading.Thread(target=use)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        cluster.client(2).execute_command("SARTOR.TABLE", "DELETE", "brief")
        for node in range(4):
            with pytest.raises(redis.ResponseError, match="there is no table brief"):
                chosen(cluster, "brief", node)
        wait_for(lambda: not stores(), "all of it is gone from the disks", 5)
        for thread in threads[:8]:
            thread.join(5)
            assert not thread.is_alive()
        assert problems == {"the table was deleted; SELECT another one"}
        make(cluster.client(), "brief", "DATALET", "log")
        fresh = chosen(cluster, "brief", 3)
        assert fresh.dbsize() == 0 and fresh.set("x", 1)
        stop.set()
        threads[8].join()
        assert cluster.status()["health"] == "healthy"


def test_tables_outlive_everything(tmp_path):
    """Nodes die and all of them do: tables are where they were, with what was on disk."""
    options = ("--dir", str(tmp_path), "--fsync", "always", "--shards", "2")
    with running(*options) as cluster:
        make(cluster.client(), "kept", "DATALET", "lsm", "SHARDS", "2")
        make(cluster.client(), "sorted", "DATALET", "btree", "SPLIT-AT", "k5")
        written = {f"k{number}".encode(): b"%d" % number for number in range(300)}
        for name in ("kept", "sorted"):
            chosen(cluster, name).mset(written)
        victim = cluster.status()["nodes"][1]["pid"]
        subprocess.run(["kill", "-9", str(victim)], check=True)
        healed = lambda: cluster.status()["health"] == "healthy"
        wait_for(healed, "all shards of all tables have their copies", 30)
        for name in ("kept", "sorted"):
            assert chosen(cluster, name, 2).dbsize() == 300
        for pid in cluster.pids():
            subprocess.run(["kill", "-9", str(pid)], check=False)
        cluster.end(signal.SIGKILL)
    with running(*options) as cluster:
        for name in ("kept", "sorted"):
            db = chosen(cluster, name, 3)
            assert {key: db.get(key) for key in written} == written
        wide = chosen(cluster, "sorted").execute_command("SARTOR.RANGE", "k4", "k6", "LIMIT", 1000)[1]
        assert wide == sorted(key for key in written if b"k4" <= key < b"k6")
        assert [row["name"] for row in cluster.status()["tables"]] == ["default", "kept", "sorted"]


def test_a_table_is_made_while_the_coordinator_stands_still(cluster):
    pid = cluster.status()["coordinator"]["pid"]
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    made = []
    maker = threading.Thread(target=lambda: made.append(make(cluster.client(1), "late", "DATALET", "tree")))
    try:
        maker.start()
        with pytest.raises(redis.ResponseError, match="^it is not done yet: the coordinator has not begun it"):
            cluster.client(2).execute_command("SARTOR.TABLE", "CREATE", "late", "DATALET", "tree", "TIMEOUT", 300)
        assert cluster.client().execute_command("SARTOR.TABLE", "LIST") == [b"default"]
    finally:
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
    maker.join(15)
    assert made == [None] and chosen(cluster, "late", 3).set("k", 1)
    again = ("SARTOR.TABLE", "CREATE", "late", "DATALET", "tree", "TIMEOUT", 1000)
    assert cluster.client(3).execute_command(*again) == b"OK", "who asks again is told that it is there"
    cluster.client(2).execute_command("SARTOR.TABLE", "DELETE", "late")
