"""Shards of tables in ranges are divided while clients go on: nothing fails, nothing is lost or done twice, and what is asked of
the table as a whole is right at every moment."""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager

import pytest
import redis

from conftest import running, wait_for
from test_durable import Home
from test_tables import chosen, make, sartor, table

MODES = ["ms+sc", "ms+ec", "aa+sc", "aa+ec", "aa-ms"]
STATIC = [b"s%05d" % number for number in range(3000)]


def split(client, name, key, within_s=30):
    """Until it is done: how long that took."""
    started = time.time()
    while True:
        try:
            assert client.execute_command("SARTOR.TABLE", "SPLIT", name, key) == b"OK"
            return time.time() - started
        except redis.ResponseError as error:
            assert str(error).startswith("TRYAGAIN"), error
            assert time.time() < started + within_s, error


def once(client, *words):
    """Until it is answered: where it was on its way to several shards of which one was divided, it is asked for again."""
    for _ in range(10):
        try:
            assert client.execute_command("SARTOR.ONCE", *words) == b"OK"
            return
        except redis.ResponseError as error:
            assert "nothing was done, try again" in str(error), error
    raise AssertionError("it is refused again and again")


def bounds(client, name):
    words = client.execute_command("SARTOR.TABLE", "SHOW", name)
    return [lower for _, lower, _ in words[words.index(b"shards") + 1]]


def fill(client, keys):
    for at in range(0, len(keys), 500):
        client.mset({key: b"v" + key for key in keys[at:at + 500]})


class Crowd:
    """Clients that count in keys of their own, alone, in pipelines and in transactions; and others that look at everything."""

    def __init__(self, cluster, name, nodes=(0, 1, 2, 3)):
        self.cluster, self.name, self.nodes = cluster, name, nodes
        self.over, self.errors, self.counted, self.longest = False, [], {}, 0
        works = [self.count, self.count, self.pipe, self.transact, self.look, self.sizes]
        self.threads = [threading.Thread(target=self.guard, args=(n, work)) for n, work in enumerate(works)]

    def __enter__(self):
        [thread.start() for thread in self.threads]
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.over = True
        [thread.join() for thread in self.threads]

    def guard(self, n, work):
        try:
            client = chosen(self.cluster, self.name, self.nodes[n % len(self.nodes)])
            keys = [b"s%05d" % number + b"-%d" % n for number in range(0, 3000, 300)]
            before = time.time()
            while not self.over:
                work(client, keys)
                now = time.time()
                self.longest, before = max(self.longest, now - before), now
        except Exception as error:
            self.errors.append(f"{work.__name__}: {error!r}")

    def note(self, keys):
        for key in keys:
            self.counted[key] = self.counted.get(key, 0) + 1

    def count(self, client, keys):
        key = random.choice(keys)
        client.incr(key)
        self.note([key])

    def pipe(self, client, keys):
        with client.pipeline(transaction=False) as pipe:
            [pipe.incr(key) for key in keys]
            [pipe.get(key) for key in keys]
            answers = pipe.execute()
        self.note(keys)
        # Each read sees the write before it.
        assert [int(answer) for answer in answers[len(keys):]] == [self.counted[key] for key in keys]

    def transact(self, client, keys):
        with client.pipeline() as pipe:
            [pipe.incr(key) for key in keys]
            pipe.execute()
        self.note(keys)

    def look(self, client, _):
        start, seen = b"", []
        while start is not None:
            start, keys = client.execute_command("SARTOR.RANGE", start, b"t", "LIMIT", 700)
            seen += keys
        assert seen == sorted(set(seen)) and set(STATIC) <= set(seen)
        assert set(STATIC) <= set(client.scan_iter(count=300))

    def sizes(self, client, _):
        values = client.mget(STATIC[::37])
        assert values == [b"v" + key for key in STATIC[::37]]
        assert client.dbsize() >= len(STATIC)

    def check(self):
        assert self.errors == []
        client = chosen(self.cluster, self.name)
        keys = sorted(self.counted)
        assert [int(value) for value in client.mget(keys)] == [self.counted[key] for key in keys]


@contextmanager
def ranges(cluster, *options, name="r"):
    with table(cluster, name, "PARTITION", "range", *options):
        fill(chosen(cluster, name), STATIC)
        yield name


@pytest.mark.parametrize("mode", MODES)
def test_a_shard_is_divided_while_clients_go_on(cluster, mode):
    with ranges(cluster, "DATALET", "tree", "MODE", mode) as name:
        with Crowd(cluster, name) as crowd:
            took = [split(cluster.client(node), name, key) for node, key in enumerate([b"s015", b"s007", b"s0221"])]
            time.sleep(0.3)
        crowd.check()
        assert bounds(cluster.client(), name) == [b"", b"s007", b"s015", b"s0221"]
        total = len(STATIC) + len(crowd.counted)
        wait_for(lambda: chosen(cluster, name).dbsize() == total, "what is another shard's is gone")
        done = sartor(cluster, "verify")
        assert (done.returncode, "all equal" in done.stdout) == (0, True), done.stdout
        print(f"\n{mode}: divided in {', '.join(f'{s * 1000:.0f} ms' for s in took)}; longest answer {crowd.longest * 1000:.0f} ms")


@pytest.mark.parametrize("datalet", ["lsm", "btree", "hash,tree,log"])
def test_other_datalets_are_divided_too(datalet, tmp_path):
    with running("--dir", str(tmp_path), "--workers", "2") as cluster:
        with ranges(cluster, "DATALET", datalet) as name:
            with Crowd(cluster, name) as crowd:
                split(cluster.client(), name, b"s015")
                split(cluster.client(1), name, b"s022")
            crowd.check()
            done = sartor(cluster, "verify")
            assert (done.returncode, "all equal" in done.stdout) == (0, True), done.stdout


def test_what_cannot_be_divided_is_said(cluster):
    client = cluster.client()

    def refused(*words):
        with pytest.raises(redis.ResponseError) as error:
            client.execute_command("SARTOR.TABLE", "SPLIT", *words)
        return str(error.value)

    assert "by range can be divided" in refused("default", "k")
    assert "no table nosuch" in refused("nosuch", "k")
    with table(cluster, "r", "PARTITION", "range", "DATALET", "tree") as name:
        assert "1 to 1024 bytes" in refused(name, "")
        assert "1 to 1024 bytes" in refused(name, "k" * 1025)
        assert "syntax" in refused(name)
        done = sartor(cluster, "table", "split", name, "m")
        assert (done.returncode, "2 shards by range" in done.stdout) == (0, True), done.stdout + done.stderr
        assert split(client, name, b"m") < 5, "it is divided there already"
        assert bounds(client, name) == [b"", b"m"]
        shown = sartor(cluster, "table", "show", name).stdout
        assert "from '' to 'm'" in shown and "from 'm' on" in shown
        assert sartor(cluster, "table", "split", "nosuch", "m").returncode == 2
        assert "died" not in sartor(cluster, "status").stdout


def test_what_is_watched_or_has_an_id_is_known_to_both_parts(cluster):
    with ranges(cluster, "DATALET", "tree") as name:
        client = chosen(cluster, name)
        once = [client.execute_command("SARTOR.ONCE", f"id-{key}", "INCR", key) for key in ("a", "z")]
        with client.pipeline() as untouched, client.pipeline() as touched:
            untouched.watch("z")
            touched.watch("z2")
            client.set("z2", 1)
            split(cluster.client(), name, b"s015")
            for pipe in (untouched, touched):
                pipe.multi()
                pipe.set("z3", 1)
            with pytest.raises(redis.WatchError):
                touched.execute()
            assert untouched.execute() == [True]
        for node in range(4):
            other = chosen(cluster, name, node)
            assert [other.execute_command("SARTOR.ONCE", f"id-{key}", "INCR", key) for key in ("a", "z")] == once


def test_what_was_queued_or_has_an_id_is_about_both_parts(cluster):
    with ranges(cluster, "DATALET", "tree") as name:
        client, other = chosen(cluster, name), chosen(cluster, name, 1)
        over = threading.Event()

        def divide():
            [split(cluster.client(), name, key) for key in (b"s01", b"s02", b"s005", b"s025")]
            over.set()

        dividing = threading.Thread(target=divide)
        dividing.start()
        count = 0
        while not over.is_set():
            # Keys of all parts under one id.
            count += 1
            keys = [b"s004-x", b"s008-x", b"s015-x", b"s022-x", b"s028-x"]
            words = [word for key in keys for word in (key, count)]
            once(other, f"mset-{count}", "MSET", *words)
            assert other.mget(keys) == [b"%d" % count] * len(keys)
        dividing.join()
        assert count > 0
        with client.pipeline() as pipe:
            queue = pipe.immediate_execute_command
            queue("MULTI")
            for command in (["MGET", "a", "s0280"], ["DBSIZE"], ["FLUSHDB"], ["DBSIZE"]):
                # A callback of redis-py makes False of it for FLUSHDB.
                assert queue(*command) in (b"QUEUED", False)
            split(cluster.client(), name, b"s015")
            before = other.dbsize()
            assert queue("EXEC") == [[None, None], before, b"OK", 0]
        assert other.dbsize() == 0


def test_everything_is_removed_also_while_a_shard_is_divided(cluster):
    with ranges(cluster, "DATALET", "tree") as name:
        client, over = chosen(cluster, name, 1), threading.Event()

        def divide():
            for key in (b"s01", b"s02", b"s005", b"s025"):
                split(cluster.client(), name, key)
            over.set()

        dividing = threading.Thread(target=divide)
        dividing.start()
        rounds = 0
        while not over.is_set():
            client.mset({key: 1 for key in STATIC[::10]})
            with client.pipeline(transaction=False) as pipe:
                # What comes after it stays.
                [getattr(pipe, word)(*args) for word, args in [("flushdb", ()), ("set", ("a", 1)), ("set", ("z", 1))]]
                assert pipe.execute() == [True] * 3
            assert client.delete("a", "z") == 2
            assert (client.dbsize(), client.execute_command("SARTOR.RANGE", "", "")) == (0, [None, []])
            rounds += 1
        dividing.join()
        assert rounds > 0 and client.dbsize() == 0 and client.get(STATIC[0]) is None


def test_a_member_that_dies_meanwhile_does_not_stop_it(tmp_path):
    with running("--dir", str(tmp_path)) as cluster:
        with ranges(cluster, "DATALET", "lsm") as name:
            with Crowd(cluster, name, nodes=(0, 1)) as crowd:
                replicas = next(shard for shard in cluster.status()["shards"] if shard["table"] == name)["replicas"]
                victim = next(replica["node"] for replica in replicas if replica["node"] not in (0, 1))
                dividing = threading.Thread(target=split, args=(cluster.client(), name, b"s015"))
                dividing.start()
                os.kill(cluster.pids()[1 + victim], signal.SIGKILL)
                dividing.join()
            crowd.check()
            assert bounds(cluster.client(), name) == [b"", b"s015"]
            wait_for(lambda: cluster.status()["health"] == "healthy", "all copies are there")
            assert sartor(cluster, "verify").returncode == 0


def test_parts_outlive_a_loss_of_power(tmp_path):
    home = Home(tmp_path, "--fsync", "always")
    cluster = home.start()
    try:
        make(cluster.client(), "r", "PARTITION", "range", "DATALET", "lsm")
        fill(chosen(cluster, "r"), STATIC)
        split(cluster.client(), "r", b"s015")
        chosen(cluster, "r").set("s02999-new", 1)
        split(cluster.client(), "r", b"s022")
        home.cut_power()
        cluster = home.start()
        wait_for(lambda: cluster.status()["health"] != "down", "it serves")
        client = chosen(cluster, "r")
        assert [client.get(key) for key in STATIC] == [b"v" + key for key in STATIC]
        assert client.get("s02999-new") == b"1"
        wait_for(lambda: client.dbsize() == len(STATIC) + 1, "what is another shard's is gone")
        assert client.execute_command("SARTOR.RANGE", "", "", "LIMIT", 10_000)[1] == sorted([*STATIC, b"s02999-new"])
        wait_for(lambda: cluster.status()["health"] == "healthy", "all copies are there")
        assert sartor(cluster, "verify").returncode == 0
    finally:
        cluster.end()


def test_shards_that_grow_are_divided_by_themselves():
    with running("--workers", "2", "--shards", "4") as cluster:
        make(cluster.client(), "r", "PARTITION", "range", "DATALET", "tree")
        for node in range(4):
            cluster.client(node).config_set("split-records", 1000)
        with Crowd(cluster, "r") as crowd:
            crowd.errors.clear()
            fill(chosen(cluster, "r"), STATIC)
            wait_for(lambda: len(bounds(cluster.client(), "r")) >= 4, "it is divided", 60)
        # Those that look at everything began before it was there.
        assert all(error.startswith(("look", "sizes")) for error in crowd.errors), crowd.errors
        crowd.errors.clear()
        crowd.check()
        lowers = bounds(cluster.client(), "r")
        assert lowers == sorted(set(lowers)) and max(map(len, lowers)) <= 8
        counts = [sum(low <= key and (high is None or key < high) for key in STATIC) for low, high in zip(lowers, [*lowers[1:], None])]
        assert max(counts) <= 1100, (lowers, counts)
