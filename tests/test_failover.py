"""Nodes and the coordinator die and stand still under load.

What clients saw is checked; how long it took is printed (pytest -s) and never checked. The roles of a shard
rotate: of three nodes, each is the head of one shard, in the middle of another and the tail of the third.
What happens to a node happens to every role at once.
"""

import json
import os
import signal
import subprocess
import threading
import time
from binascii import crc_hqx
from contextlib import ExitStack, contextmanager

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conftest import Cluster, wait_for
from history import (
    Load,
    check_counters,
    check_linearizable,
    check_nothing_lost,
    longest_gap,
    without_repeated,
)
from test_real_data import index  # noqa: F401 (a fixture)

slow = pytest.mark.skipif(os.environ.get("FULL") != "1", reason="part of make test-full")


@contextmanager
def started(*options):
    cluster = Cluster(*options)
    try:
        yield cluster
    finally:
        cluster.end()


def ports(cluster):
    return [cluster.port + node for node in range(4)]


def statuses(cluster):
    """What each node says; None where it does not answer soon."""

    def ask(port):
        try:
            with redis.Redis(port=port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                return json.loads(client.execute_command("SARTOR.STATUS"))
        except redis.RedisError:
            return None

    return [ask(port) for port in ports(cluster)]


def status(cluster):
    """The newest status that any node knows."""
    return max(filter(None, statuses(cluster)), key=lambda status: status["epoch"])


def healed(cluster, after):
    """All nodes are there, agree on one map newer than `after`, and every shard has its copies again."""
    every = statuses(cluster)
    if not all(every) or len({status["epoch"] for status in every}) > 1 or every[0]["epoch"] <= after:
        return None
    states = {node["state"] for node in every[0]["nodes"]}
    return all(status["health"] == "healthy" for status in every) and states <= {"up", "standby"}


def wait_healed(cluster, after=0):
    wait_for(lambda: healed(cluster, after), f"healed after epoch {after}", 30)


def signalled(process, how):
    """Signals a node or the coordinator, as the status describes it."""
    # Who has not reported yet has the pid 0, and that would be this process and its group.
    assert process["pid"] > 1, process
    os.kill(process["pid"], how)


def shards_by_slot(cluster):
    """The function from a key to its shard, by the slots in the status."""
    ranges = [(a, b, shard["id"]) for shard in status(cluster)["shards"] for a, b in shard["slots"]]

    def shard_of(key):
        slot = crc_hqx(key.encode(), 0) % 16384
        return next(shard for a, b, shard in ranges if a <= slot <= b)

    return shard_of


def heard(said, node):
    """What the status that `said` gives says of a node. A coordinator that has just come to lead has heard nobody yet."""
    return wait_for(lambda: next((n for n in said()["nodes"] if n["id"] == node and n["pid"]), None), f"node {node} is heard")


def killed(cluster, node, _held=None):
    """Kills a node; `sartor up` starts it again, as nobody's replica."""
    victim, before = heard(lambda: status(cluster), node), status(cluster)
    signalled(victim, signal.SIGKILL)
    wait_healed(cluster, before["epoch"])
    assert status(cluster)["nodes"][node]["pid"] != victim["pid"]


@contextmanager
def stopped(process, seconds):
    """Stops a process; it goes on after that time, during which the body may look around."""
    start = time.monotonic()
    signalled(process, signal.SIGSTOP)
    try:
        yield
        time.sleep(max(0, start + seconds - time.monotonic()))
    finally:
        signalled(process, signal.SIGCONT)


def paused(cluster, node, held):
    """Stops a node for longer than it takes to replace it: it wakes up in the past, and is asked at once."""
    before = status(cluster)
    with stopped(before["nodes"][node], 4):
        wait_for(lambda: status(cluster)["epoch"] > before["epoch"], "it is replaced", 3)
        time.sleep(0.7)  # Others write in that time what it does not know.
        held[node].go.set()
    wait_healed(cluster, before["epoch"])


def everywhere(cluster, keys, *, readonly):
    """What each node says of the keys: a list per node."""
    answers = []
    for port in ports(cluster):
        with redis.Redis(port=port, single_connection_client=True) as client:
            if readonly:
                client.execute_command("READONLY")
            answers.append([v for at in range(0, len(keys), 1000) for v in client.mget(keys[at : at + 1000])])
    return answers


def wait_same_everywhere(cluster, keys):
    """All nodes say the same of all keys, asked for the newest and asked for any copy."""
    same = lambda: all(answer == answers[0] for answer in answers)
    for readonly in (False, True):
        answers = []

        def agree():
            answers[:] = everywhere(cluster, keys, readonly=readonly)
            return same()

        wait_for(agree, f"all nodes agree (READONLY: {readonly})")


def survives(cluster, what, fault):
    """Runs fault(held) under load; nobody may notice more than that it took time.

    50 clients as the library makes them, which must not see a single error, beside 16 that never send again
    and 8 that count, whose histories are exact. held: node -> clients there that ask when they are told to,
    for the same keys as those 16.
    """
    at, shard_of = ports(cluster), shards_by_slot(cluster)
    shards = len(status(cluster)["shards"])
    exact = {"keys": 20, "retries": False, "prefix": f"{what}:s"}
    patient = Load(at, connections=50, prefix=f"{what}:p")
    strict = Load(at, connections=16, **exact)
    counting = Load(at, connections=8, keys=12, retries=False, verbs=("INCR",), prefix=f"{what}:n")
    held = [Load([port], connections=6, held=True, **exact) for port in at]
    loads = (patient, strict, counting)

    def all_shards_write(since):
        return len({shard_of(key) for load in loads for key in load.written_since(since)}) == shards

    with ExitStack() as running:
        for load in (*loads, *held):
            running.enter_context(load)
        wait_for(lambda: all_shards_write(0), "the load is going")
        time.sleep(0.5)
        fault(held)
        healed_at = time.monotonic()
        wait_for(lambda: all_shards_write(healed_at), "all shards write again")
        time.sleep(0.5)
    gaps = longest_gap(patient.operations + strict.operations, shard_of)
    of_shards = ", ".join(f"{gap:.3f} s" for _, gap in sorted(gaps.items()))
    print(f"\n{what}: without a write {longest_gap(patient.operations):.3f} s, by shard {of_shards}")
    print(f"  patient: {patient.summary()}\n  strict: {strict.summary()}\n  counting: {counting.summary()}")
    for node, load in enumerate(held):
        if load.operations:
            print(f"  asked node {node} while it stood still, and then: {load.summary()}")

    assert not patient.errors, f"{len(patient.errors)} errors, first {patient.errors[0]}"
    unexpected = [problem for load in (strict, counting, *held) for problem in load.unexpected]
    assert not unexpected, f"{len(unexpected)} unexpected errors, first {unexpected[0]}"
    # The last reads, from each node in turn, belong to the history.
    finals = {load: [load.final(port) for port in at] for load in loads}
    history = [operation for load in (strict, *held) for operation in load.operations]
    history += [read for _, reads in finals[strict] for read in reads]
    assert check_linearizable(history) is None
    assert check_linearizable(without_repeated(patient.operations)) is None
    for final, _ in finals[patient]:
        assert check_nothing_lost(patient.operations, final) is None
    for final, _ in finals[counting]:
        assert check_counters(counting.operations, final) is None
    wait_same_everywhere(cluster, patient.keys + strict.keys + counting.keys)


@pytest.mark.parametrize("mode, nodes", [("ms+sc", (0, 1, 2)), ("aa+sc", (0, 1))])
def test_nobody_notices_a_killed_node(mode, nodes):
    with started("--mode", mode) as cluster:
        for node in nodes:
            survives(cluster, f"kill{node}", lambda held: killed(cluster, node, held))


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=slow), pytest.param(2, marks=slow)])
def test_ms_sc_nobody_notices_a_paused_node(node):
    """Node 0 is in all three roles already."""
    with started("--mode", "ms+sc") as cluster:
        survives(cluster, f"pause{node}", lambda held: paused(cluster, node, held))


@slow
def test_ms_sc_paused_one_after_the_other():
    """Who was replaced replaces the next."""
    with started("--mode", "ms+sc") as cluster:
        for turn, node in enumerate((0, 1, 2, 3, 0)):
            survives(cluster, f"turn{turn}", lambda held: paused(cluster, node, held))


@slow
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_ms_sc_short_pauses(seconds):
    """Around the time after which a node is given up: it may or may not be replaced."""
    with started("--mode", "ms+sc") as cluster:

        def fault(_held):
            for node in (0, 1, 2):
                with stopped(status(cluster)["nodes"][node], seconds):
                    pass
                time.sleep(0.5)
                wait_healed(cluster)

        survives(cluster, f"short{seconds}", fault)


def test_ms_sc_nobody_notices_an_absent_coordinator():
    with started("--mode", "ms+sc") as cluster:

        def fault(_held):
            """Stopped, it does not come back by itself as a killed one does."""
            before = status(cluster)
            with stopped(before["coordinator"], 5):
                away = lambda: all(s and s["coordinator"]["state"] == "down" for s in statuses(cluster))
                wait_for(away, "the coordinator is missed", 4)
                # By now any lease has run out that somebody does not renew. Nodes renew each other's.
                time.sleep(2)
                for port in ports(cluster):
                    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
                        for number in range(50):
                            assert client.set(f"away:{number}", port) and client.get(f"away:{number}")
            wait_for(lambda: not away(), "the coordinator is back")
            # It waited for nobody's heartbeat in that time, so nobody may be taken for dead.
            time.sleep(1)
            wait_healed(cluster)
            assert status(cluster)["epoch"] == before["epoch"], "nothing happened, so nothing was decided"
            killed(cluster, 1)

        survives(cluster, "coordinator", fault)


@slow
@pytest.mark.parametrize("delay", [0, 0.2, 0.5, 0.6, 0.8])
def test_ms_sc_the_coordinator_dies_in_a_failover(delay):
    """Both kill -9; started again, the coordinator finishes what it had begun, and uses no epoch twice."""
    with started("--mode", "ms+sc") as cluster:

        def fault(_held):
            before = status(cluster)
            signalled(before["nodes"][0], signal.SIGKILL)
            time.sleep(delay)
            signalled(before["coordinator"], signal.SIGKILL)
            wait_healed(cluster, before["epoch"])
            assert status(cluster)["coordinator"]["pid"] != before["coordinator"]["pid"]

        survives(cluster, f"both{delay}", fault)


@slow
def test_ms_sc_a_second_death_in_a_failover():
    """Two of three copies die within the time in which the first is noticed: the last one has everything."""
    with started("--mode", "ms+sc") as cluster:

        def fault(_held):
            before = status(cluster)
            signalled(before["nodes"][0], signal.SIGKILL)
            time.sleep(0.4)
            signalled(before["nodes"][1], signal.SIGKILL)
            wait_healed(cluster, before["epoch"])

        survives(cluster, "second", fault)


@pytest.mark.parametrize("readonly", [False, True])
def test_ms_ec_reads_go_on_while_the_primary_is_dead(readonly):
    """Read at the other replicas, by clients that never ask again."""
    with started("--mode", "ms+ec") as cluster:
        before, shard_of = status(cluster), shards_by_slot(cluster)
        head, *others = [replica["node"] for replica in before["shards"][0]["replicas"]]
        keys = [key for key in map("r:{}".format, range(600)) if shard_of(key) == 0][:100]
        db = cluster.client(node=others[0])
        assert db.mset({key: key for key in keys}) and db.wait(len(others), 5000) == len(others)
        once = {"retry": Retry(NoBackoff(), 0), "single_connection_client": True}
        readers = [cluster.client(node=node, **once) for node in others]
        assert all(reader.execute_command("READONLY" if readonly else "READWRITE") for reader in readers)
        longest = reads = 0
        signalled(before["nodes"][head], signal.SIGKILL)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for reader in readers:
                for key in keys:
                    start = time.monotonic()
                    assert reader.get(key) == key.encode()
                    longest, reads = max(longest, time.monotonic() - start), reads + 1
        print(f"\nms+ec, primary killed: {reads} reads, the longest took {longest:.3f} s")


@pytest.mark.parametrize("mode", ["aa+ec", "aa-ms"])
def test_what_two_have_outlives_one(mode):
    """Clients never ask again, so that a write counts once it was acknowledged; the first member of each shard is killed."""
    with started("--mode", mode) as cluster:
        with Load(ports(cluster)[1:], connections=30, retries=False, prefix="two") as load:
            for node in (0, 1):
                wait_for(lambda: load.written_since(0), "the load is going")
                time.sleep(0.5)
                killed(cluster, node)
        print(f"\n{mode}: {load.summary()}; longest time without a write {longest_gap(load.operations):.3f} s")
        wait_same_everywhere(cluster, load.keys)
        assert check_nothing_lost(load.operations, load.final(cluster.port)[0]) is None


def test_ms_ec_a_paused_primary_does_not_split_the_history():
    """Its writes of that time may be lost, but not live on at one node only."""
    with started("--mode", "ms+ec") as cluster:
        shard_of = shards_by_slot(cluster)
        late = Load([cluster.port], connections=6, retries=False, prefix="ec", held=True)
        with Load(ports(cluster), connections=50, retries=False, prefix="ec") as load, late:
            wait_for(lambda: len({shard_of(key) for key in load.written_since(0)}) == 3, "the load is going")
            time.sleep(0.5)
            paused(cluster, 0, [late])
            healed_at = time.monotonic()
            again = lambda: len({shard_of(key) for key in load.written_since(healed_at)}) == 3
            wait_for(again, "all shards write again")
        gap = longest_gap(load.operations)
        print(f"\nms+ec, primary paused: {load.summary()}; longest time without a write {gap:.3f} s")
        assert not load.unexpected + late.unexpected, (load.unexpected + late.unexpected)[0]
        wait_same_everywhere(cluster, load.keys)
        final, _ = load.final(cluster.port)
        written = {(op.key, op.value) for op in load.operations + late.operations if op.kind == "SET"}
        assert all(entry in written for entry in final.items()), "nothing is gone and nothing is made up"


@pytest.mark.parametrize("mode", ["ms+sc", pytest.param("ms+ec", marks=slow)])
def test_the_debian_index_outlives_every_node(mode, index, tmp_path):  # noqa: F811
    """Each node is killed in turn, so that in the end no copy is one of the first."""
    words = lambda *words: b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
    names, stanzas = [b"deb:" + name for name in index], list(index.values())
    load = b"".join(words(b"SET", *pair) for pair in zip(names, stanzas))
    with started("--mode", mode) as cluster:
        pipe = ["redis-cli", "-p", str(cluster.port), "--pipe"]
        done = subprocess.run(pipe, input=load, capture_output=True, timeout=300)
        assert b"errors: 0, replies: %d" % len(index) in done.stdout, done.stdout + done.stderr
        if mode == "ms+ec":
            assert cluster.client().wait(2, 10_000) == 2, "acknowledged is in one memory only"
        for node in (0, 1, 2, 3):
            killed(cluster, node)
            for answers in everywhere(cluster, names, readonly=False):
                assert answers == stanzas
        wait_for(lambda: everywhere(cluster, names, readonly=True) == [stanzas] * 4, "every copy is whole")
        assert cluster.client().dbsize() == len(index)


def test_the_check_would_notice():
    """ms+ec does not promise what ms+sc does: the same load and the same check tell them apart."""
    with started("--mode", "ms+ec") as cluster:
        # Whether a read comes before the news on waking is a matter of luck: it gets several chances.
        violation = next(filter(None, (stale_reads(cluster, f"try{number}") for number in range(10))), None)
        print(f"\nms+ec: {violation}")
        assert violation and "no order explains" in violation


def stale_reads(cluster, prefix):
    """A secondary stands still for too short a time to be replaced, and is asked when it wakes."""
    late = Load([cluster.port + 1], connections=12, keys=20, retries=False, prefix=prefix, held=True)
    with Load(ports(cluster), keys=20, retries=False, prefix=prefix) as load, late:
        time.sleep(0.5)
        with stopped(status(cluster)["nodes"][1], 0.3):
            time.sleep(0.2)
            late.go.set()
        time.sleep(0.3)
    return check_linearizable(load.operations + late.operations)


def test_ms_ec_loses_the_newest_writes_only():
    """What is lost with a primary is the end of what it acknowledged: nothing older than a write that is still there."""
    with started("--mode", "ms+ec", "--shards", "1", "--no-restart") as cluster:
        deadline = time.monotonic() + 1
        acknowledged = [[] for _ in range(8)]

        def write(writer):
            client = redis.Redis(port=cluster.port, retry=Retry(NoBackoff(), 0))
            while time.monotonic() < deadline + 10:
                key = f"w{writer}:{len(acknowledged[writer])}"
                try:
                    client.set(key, "v")
                except redis.RedisError:
                    return
                acknowledged[writer].append((key, time.monotonic()))

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for writer in writers:
            writer.start()
        time.sleep(1)
        before = status(cluster)
        died = time.monotonic()
        signalled(before["nodes"][0], signal.SIGKILL)
        for writer in writers:
            writer.join()
        gone = lambda: all(r["node"] != 0 for r in cluster.status(node=1)["shards"][0]["replicas"])
        wait_for(gone, "the primary is replaced", 10)
        other, ages = cluster.client(node=1), []
        for writes in acknowledged:
            there = [value is not None for value in other.mget([key for key, _ in writes])]
            assert writes and there == sorted(there, reverse=True), "a lost write is older than one that is there"
            ages += [died - at for (_, at), kept in zip(writes, there) if not kept]
        total = sum(map(len, acknowledged))
        oldest = max(ages, default=0) * 1000
        print(f"\nms+ec, primary killed: {len(ages)} of {total} writes lost, the oldest {oldest:.1f} ms before")
