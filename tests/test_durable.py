"""Datalets on disk: all power goes at once, bits flip, disks are full, and what was acknowledged is there.

What clients saw is checked; how long it took is printed (pytest -s) and never checked. A kill -9 of all processes is what a
loss of power is for them, but for what the system keeps in its page cache; that this is brought to disk in time is seen
from outside, by strace.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conftest import SARTOR, Cluster, free_port, wait_for
from history import Load, check_counters, check_linearizable, check_nothing_lost
from test_failover import (
    killed,
    ports,
    shards_by_slot,
    signalled,
    slow,
    started,
    status,
    statuses,
    wait_healed,
    wait_same_everywhere,
)
from test_switch import kinds, strong_part, switch

ENGINES = ["log", "lsm", "btree"]


class Home:
    """A cluster's folder, in which it is started again and again."""

    def __init__(self, path, *options):
        self.path, self.options, self.port = Path(path), options, free_port()
        self.cluster = None

    def start(self):
        self.cluster = Cluster("--dir", str(self.path), *self.options, port=self.port)
        return self.cluster

    def cut_power(self):
        """Kills all processes at once; `up` first, so that it starts nobody again."""
        processes = [self.cluster.up.pid, *self.cluster.pids()]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self.cluster.up.wait()
        wait_for(lambda: not any(map(is_running, processes)), "all processes ended")
        self.cluster.up.stdout.close()

    def stores(self, node, shard=None):
        """The folders of a node's stores, newest last."""
        folders = (self.path / f"node-{node}" / "stores").glob("*" if shard is None else f"{shard}-*")
        return sorted(folders, key=lambda folder: folder.stat().st_mtime)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def at_home(path, *options):
    home = Home(path, *options)
    home.start()
    try:
        yield home
    finally:
        home.cluster.end(signal.SIGKILL)


def wait_whole(home):
    """All nodes are there and every shard has all its copies, proven."""
    wait_healed(home.cluster)


@pytest.mark.parametrize(
    "mode, datalet",
    [*(("ms+sc", engine) for engine in ENGINES), ("aa+ec", "log"), ("ms+ec", "lsm"), pytest.param("aa+sc", "btree", marks=slow)],
)
def test_all_power_goes_three_times(mode, datalet, tmp_path):
    """Each time under load, and each time everything acknowledged is there, in an order that explains the answers."""
    strong, counts = mode.endswith("+sc"), mode.startswith("ms")
    history, numbers, finals = [], [], []
    with at_home(tmp_path, "--mode", mode, "--datalet", datalet, "--fsync", "always") as home:
        for turn in range(3):
            at = ports(home.cluster)
            loads = [
                Load(at, connections=16, keys=60, retries=False, prefix="s"),
                Load(at, connections=8, keys=12, retries=False, verbs=("INCR",), prefix="n"),
            ]
            db = home.cluster.client()
            until = int(time.time() * 1000) + 3_600_000
            assert db.set(f"long{turn}", "v", pxat=until) and db.set(f"ever{turn}", "v")
            assert db.set(f"short{turn}", "v", px=1000)
            gone_at = time.monotonic() + 1
            with loads[0], loads[1]:
                wait_for(lambda: all(load.written_since(0) for load in loads), "the load is going")
                time.sleep(1)
                home.cut_power()
            unexpected = [problem for load in loads for problem in load.unexpected]
            assert not unexpected, unexpected[0]
            print(f"\n{mode} {datalet}, turn {turn}: {loads[0].summary()}")
            home.start()
            history += loads[0].operations
            numbers += loads[1].operations
            time.sleep(max(0, gone_at - time.monotonic()))
            wait_whole(home)
            for node in range(4):
                db = home.cluster.client(node=node)
                for number in range(turn + 1):
                    assert db.get(f"long{number}") == db.get(f"ever{number}") == b"v"
                    assert db.ttl(f"ever{number}") == -1 and db.get(f"short{number}") is None
                assert abs(db.pttl(f"long{turn}") - (until - time.time() * 1000)) < 5000
                assert db.get(f"short{turn}") is None
            for port in ports(home.cluster):
                final, reads = loads[0].final(port)
                finals += reads if strong else []
                assert check_nothing_lost(history, final) is None
                if counts or strong:
                    assert check_counters(numbers, loads[1].final(port)[0]) is None
            if strong:
                assert check_linearizable(history + finals) is None
            wait_same_everywhere(home.cluster, loads[0].keys + loads[1].keys)
        assert not any(shard["empty_since"] > 1 for shard in status(home.cluster)["shards"])


class Writers:
    """Clients that each write new keys one after the other until it fails: key, when it was acknowledged."""

    def __init__(self, port, count=8):
        self.port, self.acknowledged, self.enough = port, [[] for _ in range(count)], threading.Event()
        self.threads = [threading.Thread(target=self.write, args=(number,)) for number in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        for thread in self.threads:
            thread.join()

    def write(self, writer):
        client = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))
        while not self.enough.is_set():
            key = f"w{writer}:{len(self.acknowledged[writer])}"
            try:
                client.set(key, "v")
            except redis.RedisError:
                return
            self.acknowledged[writer].append((key, time.monotonic()))


@pytest.mark.parametrize("datalet", ENGINES)
def test_what_an_interval_loses_is_the_end_and_no_older_than_it(datalet, tmp_path):
    """The btree's commits that are not on disk die with its process; the others' are in the page cache."""
    with at_home(tmp_path, "--datalet", datalet, "--fsync", "interval:50", "--shards", "1") as home:
        with Writers(home.port) as writers:
            wait_for(lambda: all(len(writes) > 50 for writes in writers.acknowledged), "they write")
            time.sleep(1.5)
            died = time.monotonic()
            home.cut_power()
        home.start()
        wait_whole(home)
        db, ages = home.cluster.client(), []
        for writes in writers.acknowledged:
            there = [db.get(key) is not None for key, _ in writes]
            assert there == sorted(there, reverse=True), "a lost write is older than one that is there"
            ages += [died - at for (_, at), kept in zip(writes, there) if not kept]
        total = sum(map(len, writers.acknowledged))
        print(f"\n{datalet}, interval:50: {len(ages)} of {total} lost, the oldest {max(ages, default=0) * 1000:.0f} ms before")
        # The interval, and what a group and its commit take on a busy machine.
        assert max(ages, default=0) < 1


@contextmanager
def traced(process, file):
    """All that it reads, writes and brings to disk, in a file."""
    calls = "read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,fsync,fdatasync,msync,sync_file_range"
    command = ["strace", "-f", "-y", "-s", "300", "-e", f"trace={calls}", "-o", str(file), "-p", str(process)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert "attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)
        tracer.stderr.close()


def calls_of(file):
    """The ends of calls in order: thread, text."""
    began, calls = {}, []
    for line in file.read_text().splitlines():
        thread, text = line.split(maxsplit=1)
        if text.endswith("<unfinished ...>"):
            began[thread] = text.removesuffix("<unfinished ...>")
        else:
            resumed = re.match(r"<\.\.\. \w+ resumed>", text)
            calls.append((thread, began.pop(thread, "") + text[resumed.end() :] if resumed else text))
    return calls


def is_on_disk_first(calls, value, folder):
    """Whether between a request with a value and its answer a file of a folder was brought to disk by another thread."""
    asked = next(place for place, (_, text) in enumerate(calls) if f"{value}\\r\\n" in text and re.match("read|recv", text))
    worker, text = calls[asked]
    socket = re.match(r"\w+\((\d+)<", text)[1]
    answers = lambda place: calls[place][0] == worker and re.match(rf"(write|writev|sendto|sendmsg)\({socket}<", calls[place][1])
    answered = next(place for place in range(asked, len(calls)) if answers(place) and "+OK" in calls[place][1])
    synced = lambda call: re.match(r"(fsync|fdatasync|msync)\(", call[1]) and call[0] != worker and str(folder) in call[1]
    return any(map(synced, calls[asked:answered]))


@pytest.mark.parametrize("datalet", ENGINES)
@pytest.mark.parametrize("fsync", ["always", "never"])
def test_what_is_acknowledged_is_on_disk_first(datalet, fsync, tmp_path):
    """Seen from outside: the store's thread calls fsync or the like between a request and its answer."""
    options = ["--copies", "1", "--standbys", "0", "--shards", "1", "--datalet", datalet, "--fsync", fsync]
    with at_home(tmp_path / "home", *options) as home:
        db = home.cluster.client(single_connection_client=True)
        assert db.set("warm", "up")
        with traced(home.cluster.status()["nodes"][0]["pid"], tmp_path / "trace"):
            for number in range(20):
                assert db.set(f"key{number}", f"value-{number}-")
        calls = calls_of(tmp_path / "trace")
        first = [is_on_disk_first(calls, f"value-{number}-", home.path / "node-0" / "stores") for number in range(20)]
        # With never, the trace shows that this check can fail.
        assert all(first) if fsync == "always" else not all(first), first


def replicas(cluster, node):
    return sum(replica["node"] == node for shard in status(cluster)["shards"] for replica in shard["replicas"])


@pytest.mark.parametrize("datalet", ENGINES)
def test_a_killed_node_is_filled_again_and_leaves_no_garbage(datalet, tmp_path):
    with at_home(tmp_path, "--datalet", datalet, "--fsync", "always") as home:
        at = ports(home.cluster)
        patient = Load(at, connections=12, prefix="p")
        strict = Load(at, connections=8, keys=20, retries=False, prefix="s")
        with patient, strict:
            wait_for(lambda: patient.written_since(0), "the load is going")
            for _ in range(5):
                killed(home.cluster, status(home.cluster)["shards"][0]["replicas"][0]["node"])
                tidy = lambda: all(len(home.stores(node)) == replicas(home.cluster, node) for node in range(4))
                wait_for(tidy, "a folder for each copy, and no other")
        print(f"\n{datalet}: {patient.summary()}")
        assert not patient.errors + strict.unexpected, (patient.errors + strict.unexpected)[0]
        finals = [read for port in at for read in strict.final(port)[1]]
        assert check_linearizable(strict.operations + finals) is None
        assert check_nothing_lost(patient.operations, patient.final(home.port)[0]) is None
        wait_same_everywhere(home.cluster, patient.keys + strict.keys)


@pytest.mark.parametrize("datalet", ENGINES)
def test_a_node_that_comes_back_gets_only_what_it_lacks(datalet, tmp_path):
    """It was away while keys were written, deleted and given deadlines, and the others went on without it."""
    options = ("--datalet", datalet, "--nodes", "4", "--copies", "4", "--standbys", "0", "--shards", "2", "--no-restart")
    with at_home(tmp_path, *options) as home:
        client, cluster = redis.Redis(port=home.port), home.cluster
        for start in range(0, 40_000, 5000):
            client.mset({f"key{number}": f"{number}" * 20 for number in range(start, start + 5000)})
        os.kill(status(cluster)["nodes"][1]["pid"], signal.SIGKILL)
        wait_for(lambda: status(cluster)["health"] == "degraded", "its death is noticed")
        pipe = client.pipeline(transaction=False)
        for number in range(300):
            pipe.set(f"key{number * 100}", "changed")
            pipe.delete(f"key{number * 100 + 1}")
            pipe.set(f"new{number}", number, px=600_000)
        pipe.execute()
        back = subprocess.Popen([SARTOR, "serve", "--config", str(tmp_path / "node-1.toml")])
        try:
            wait_healed(cluster)
            shards = len(re.findall(r"node 1 is back with what there was at \S+, and gets what it lacks", cluster.banner))
            assert shards == 2 and "node 1 is being filled" not in cluster.banner, cluster.banner
            verified = subprocess.run([SARTOR, "verify", "--endpoint", f"127.0.0.1:{home.port}"], capture_output=True, text=True)
            assert verified.returncode == 0, verified.stdout + verified.stderr
            with redis.Redis(port=home.port + 1) as there:
                assert there.dbsize() == 40_000 and 0 < there.pttl("new7") <= 600_000
                assert there.mget("key100", "key101", "key102", "new7") == [b"changed", None, b"102" * 20, b"7"]
        finally:
            back.kill()
            back.wait()


def flip(folder):
    """Flips a bit in the records of a store, at a place that is read when it is opened; once more, and it is as before."""
    if (folder / "records").exists() or folder.name.endswith("btree"):
        file, place = max(folder.glob("*"), key=lambda file: file.stat().st_size), 1
    else:
        files = [file for file in folder.rglob("*") if file.is_file() and re.search(r"\.(log|jnl)$|journal", str(file))]
        file = max(files, key=lambda file: file.stat().st_size)
        data = file.read_bytes()
        place = len(data.rstrip(b"\0")) // 2
    with open(file, "r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))


def fill(cluster, count=2000):
    db = cluster.client()
    pairs = {f"key{number}": f"value{number}" * 10 for number in range(count)}
    # In several groups: a bad end of the last one may also be that it was never finished.
    for at in range(0, count, 100):
        assert db.mset(dict(list(pairs.items())[at : at + 100]))
    return {key.encode(): value.encode() for key, value in pairs.items()}


def check_there(cluster, pairs):
    keys = list(pairs)
    for port in ports(cluster):
        with redis.Redis(port=port) as db:
            assert db.mget(keys) == list(pairs.values())


@pytest.mark.parametrize("datalet", ENGINES)
def test_a_damaged_copy_is_set_aside_and_filled_from_the_others(datalet, tmp_path):
    with at_home(tmp_path, "--datalet", datalet, "--fsync", "always") as home:
        pairs = fill(home.cluster)
        node = status(home.cluster)["shards"][0]["replicas"][1]["node"]
        home.cut_power()
        (folder,) = home.stores(node, shard=0)
        flip(folder)
        damaged = {file.name for file in folder.rglob("*")}
        home.start()
        wait_whole(home)
        assert re.search(rf"shard 0 cannot be read: .*{folder.name}", home.cluster.banner)
        aside = folder.with_name(f"damaged-{folder.name}")
        wait_for(lambda: aside.exists() and not folder.exists(), "it is set aside")
        assert damaged <= {file.name for file in aside.rglob("*")}, "nothing of it is removed"
        check_there(home.cluster, pairs)
        assert status(home.cluster)["stuck"] == []


@pytest.mark.parametrize("datalet", ENGINES)
def test_a_shard_of_which_every_copy_is_damaged_stays_down(datalet, tmp_path):
    """It is never begun anew, empty, as long as somebody may be able to read what is there."""
    with at_home(tmp_path, "--datalet", datalet, "--fsync", "always") as home:
        pairs, shard_of = fill(home.cluster), shards_by_slot(home.cluster)
        holders = {replica["node"] for replica in status(home.cluster)["shards"][0]["replicas"]}
        home.cut_power()
        folders = {node: home.stores(node, shard=0)[0] for node in holders}
        for folder in folders.values():
            flip(folder)
        for _ in range(2):
            home.start()
            assert "Shard 0 stays down: no copy of it can be read" in home.cluster.banner
            said = status(home.cluster)
            assert {stuck["node"] for stuck in said["stuck"]} == holders and said["health"] == "down"
            assert said["shards"][0]["empty_since"] == 1 and all(folder.exists() for folder in folders.values())
            lost, kept = [], []
            for key in list(pairs)[:300]:
                (lost if shard_of(key.decode()) == 0 else kept).append(key)
            with redis.Redis(port=home.port, retry=Retry(NoBackoff(), 0), socket_timeout=30) as db:
                assert db.mget(kept) == [pairs[key] for key in kept]
                with pytest.raises(redis.RedisError):
                    db.get(lost[0])
                with pytest.raises(redis.RedisError):
                    db.set(lost[0], "v")
            home.cut_power()
        # Somebody brings back one that can be read.
        flip(folders[min(holders)])
        home.start()
        wait_whole(home)
        check_there(home.cluster, pairs)
        for node in holders - {min(holders)}:
            wait_for(folders[node].with_name(f"damaged-{folders[node].name}").exists, "the others are set aside")


def test_a_shard_begins_anew_once_nothing_is_left_to_be_read(tmp_path):
    """A user removes what cannot be read: that is the decision."""
    with at_home(tmp_path, "--datalet", "log", "--fsync", "always") as home:
        pairs, shard_of = fill(home.cluster), shards_by_slot(home.cluster)
        home.cut_power()
        for node in range(4):
            for folder in home.stores(node, shard=0):
                shutil.rmtree(folder)
        home.start()
        wait_whole(home)
        assert "begun anew, empty: shard 0" in home.cluster.banner
        there = {key: value for key, value in pairs.items() if shard_of(key.decode()) != 0}
        check_there(home.cluster, there)


@contextmanager
def small_disks(path, nodes, size):
    """A file system for each of these nodes."""
    folders = [path / f"node-{node}" for node in nodes]
    mounted = []
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "sartor-test", str(folder)]
            if subprocess.run(command, capture_output=True).returncode != 0:
                pytest.skip("file systems cannot be mounted here")
            mounted.append(folder)
        yield mounted
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.parametrize("nodes", [(1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("datalet", ENGINES)
def test_a_full_disk_loses_nothing_and_heals_when_there_is_room(datalet, nodes, tmp_path):
    size = 64 if datalet == "lsm" else 24
    acknowledged, refused, enough = [{} for _ in range(6)], set(), threading.Event()
    with small_disks(tmp_path, nodes, f"{size}m") as disks:
        with at_home(tmp_path, "--datalet", datalet, "--fsync", "always", "--shards", "1") as home:

            def write(writer):
                with redis.Redis(port=home.port + writer % 4, retry=Retry(NoBackoff(), 0)) as client:
                    number = 0
                    while not enough.is_set():
                        key, number = f"w{writer}:{number}", number + 1
                        value = os.urandom(5000).hex().encode()
                        try:
                            client.set(key, value)
                            acknowledged[writer][key] = value
                        except redis.RedisError as problem:
                            refused.add(f"{type(problem).__name__}: {problem}")
                            enough.wait(0.05)

            threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
            for thread in threads:
                thread.start()
            written = lambda: sum(map(len, acknowledged)) * 10_000
            full = lambda: written() > 2 * size << 20 if nodes == (1,) else refused
            wait_for(full, "a disk is full", 60)
            time.sleep(3)
            for disk in disks:
                subprocess.run(["mount", "-o", f"remount,size={8 * size}m", str(disk)], check=True)
            wait_for(lambda: re.search("No space|disk is full|os error 28", home.cluster.banner), "somebody said why")
            moment = [len(writes) for writes in acknowledged]
            again = lambda: all(len(writes) > before for writes, before in zip(acknowledged, moment))
            wait_for(again, "all write again", 60)
            enough.set()
            for thread in threads:
                thread.join()
            print(f"\n{datalet}, {nodes}: {written() >> 20} MB; refused: {sorted(refused)}")
            wait_whole(home)
            everything = {key: value for writes in acknowledged for key, value in writes.items()}
            for port in ports(home.cluster):
                with redis.Redis(port=port) as db:
                    missing = [key for key, value in everything.items() if db.get(key) != value]
                    assert not missing, f"{len(missing)} of {len(everything)} acknowledged are missing, first {missing[0]}"


def test_nobody_notices_a_switch_to_a_disk_and_back(tmp_path):
    with at_home(tmp_path, "--datalet", "hash", "--fsync", "always") as home:
        at = ports(home.cluster)
        patient = Load(at, connections=16, prefix="p")
        strict = Load(at, connections=8, keys=20, retries=False, prefix="s")
        with patient, strict:
            wait_for(lambda: patient.written_since(0), "the load is going")
            for datalet in ("lsm", "hash", "btree,log,hash,lsm", "hash"):
                began, ended = switch_datalet(home.cluster, datalet)
                print(f"\nto {datalet}: {ended - began:.2f} s")
                assert kinds(home.cluster) == set(datalet.split(","))
        print(patient.summary())
        assert not patient.errors + strict.unexpected, (patient.errors + strict.unexpected)[0]
        finals = [read for port in at for read in strict.final(port)[1]]
        assert check_linearizable(strict.operations + finals) is None
        assert check_nothing_lost(patient.operations, patient.final(home.port)[0]) is None
        wait_for(lambda: not any(home.stores(node) for node in range(4)), "nothing is left on disk")


def switch_datalet(cluster, datalet):
    return switch(cluster, "ms+sc", "--datalet", datalet)


def test_copies_on_disk_outlive_those_in_memory(tmp_path):
    """Each node another kind: after a loss of power, the shards go on with the copies that were on disk."""
    with at_home(tmp_path, "--datalet", "hash,log", "--fsync", "always") as home:
        with Load(ports(home.cluster), connections=12, retries=False, prefix="s") as load:
            wait_for(lambda: load.written_since(0), "the load is going")
            time.sleep(1)
            home.cut_power()
        home.start()
        wait_whole(home)
        finals = [read for port in ports(home.cluster) for read in load.final(port)[1]]
        assert check_linearizable(load.operations + finals) is None
