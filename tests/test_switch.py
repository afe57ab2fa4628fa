"""Tables go from one mode to another under load.

What clients saw is checked; how long it took is printed (pytest -s) and never checked.
"""

import signal
import subprocess
import threading
import time

import pytest
import redis

from conftest import SARTOR, wait_for
from history import Load, check_counters, check_linearizable, check_nothing_lost, longest_gap
from test_failover import ports, signalled, slow, started, status, stopped, wait_healed, wait_same_everywhere

MODES = ["ms+sc", "ms+ec", "aa+sc", "aa+ec", "aa-ms"]
WEAK = {"ms+ec", "aa+ec", "aa-ms"}


def all_pairs():
    """A way from each mode to each other, once."""
    ways = {mode: [other for other in MODES if other != mode] for mode in MODES}
    path, circuit = [MODES[0]], []
    while path:
        if ways[path[-1]]:
            path.append(ways[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return circuit[::-1]


def switch(cluster, mode, *options, node=0):
    """Runs the verb to its end; when it began and ended."""
    began = time.monotonic()
    command = [SARTOR, "switch", "--mode", mode, "--endpoint", f"127.0.0.1:{cluster.port + node}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return began, time.monotonic()


def modes(cluster):
    return {shard["mode"] for shard in status(cluster)["shards"]}


def strong_part(operations, weak):
    """What must be linearizable where these were times of a weak mode: what was read then is left out, and what was written
    then may have taken effect at any moment until they were over."""
    part = []
    for operation in operations:
        during = [end for begin, end in weak if operation.start <= end and operation.end >= begin]
        if not during:
            part.append(operation)
        elif operation.kind == "SET":
            part.append(operation._replace(end=max(operation.end, *during)))
    return part


def test_nobody_notices_that_modes_change():
    with started("--mode", "ms+sc") as cluster:
        at, weak, took, path = ports(cluster), [], [], all_pairs()
        patient = Load(at, connections=50, prefix="p")
        strict = Load(at, connections=16, keys=20, retries=False, prefix="s")
        counting = Load(at, connections=8, keys=12, retries=False, verbs=("INCR",), prefix="n")
        with patient, strict, counting:
            wait_for(lambda: patient.written_since(0), "the load is going")
            for place, (old, mode) in enumerate(zip(path, path[1:])):
                began, ended = switch(cluster, mode, node=place % 4)
                took.append(f"{mode} {ended - began:.2f}")
                if mode in WEAK and old not in WEAK:
                    weak.append((began, float("inf")))
                elif old in WEAK and mode not in WEAK:
                    weak[-1] = (weak[-1][0], ended)
                time.sleep(0.3)
        print(f"\nswitches, seconds: {', '.join(took)}; longest time without a write {longest_gap(strict.operations):.3f} s")
        print(f"  patient: {patient.summary()}\n  strict: {strict.summary()}")
        for load in (patient, strict, counting):
            assert not load.errors, load.errors[0]
        finals = {load: [load.final(port) for port in at] for load in (patient, strict, counting)}
        history = strong_part(strict.operations, weak) + [read for _, reads in finals[strict] for read in reads]
        assert check_linearizable(history) is None
        for final, _ in finals[patient]:
            assert check_nothing_lost(patient.operations, final) is None
        for final, _ in finals[counting]:
            assert check_counters(counting.operations, final) is None
        wait_same_everywhere(cluster, patient.keys + strict.keys + counting.keys)


@slow
def test_a_minute_with_strong_modes_is_linearizable_throughout():
    """From ms+sc to aa+sc and back under clients with the library's defaults: every answer of 60 s belongs to one order."""
    with started("--mode", "ms+sc") as cluster:
        at = ports(cluster)
        patient = Load(at, connections=50, prefix="p")
        strict = Load(at, connections=16, keys=20, retries=False, prefix="s")
        with patient, strict:
            for mode in ("aa+sc", "ms+sc"):
                time.sleep(20)
                began, ended = switch(cluster, mode)
                answers = [op for op in patient.operations if op.end >= began and op.start <= ended + 0.5]
                longest = max(op.end - op.start for op in answers)
                print(f"\n{mode}: {ended - began:.2f} s; the longest that a client waited for an answer {longest:.3f} s")
            time.sleep(20)
        print(f"  patient: {patient.summary()}\n  strict: {strict.summary()}")
        assert not patient.errors + strict.errors, (patient.errors + strict.errors)[0]
        finals = [strict.final(port) for port in at]
        assert check_linearizable(strict.operations + [read for _, reads in finals for read in reads]) is None
        assert check_nothing_lost(patient.operations, patient.final(cluster.port)[0]) is None


def kinds(cluster):
    return {replica["datalet"] for shard in status(cluster)["shards"] for replica in shard["replicas"]}


def copies(cluster):
    return {len(shard["replicas"]) for shard in status(cluster)["shards"]}


@pytest.mark.parametrize("mode", ["ms+sc", "aa+sc"])
def test_copies_and_datalets_change_under_load(mode):
    """Strong all the time, also where mode, copies and datalet change at once; with no standby left, copies change places."""
    with started("--mode", mode, "--datalet", "hash") as cluster:
        at = ports(cluster)
        patient = Load(at, connections=20, prefix="p")
        strict = Load(at, connections=12, keys=20, retries=False, prefix="s")
        with patient, strict:
            wait_for(lambda: patient.written_since(0), "the load is going")
            other = "aa+sc" if mode == "ms+sc" else "ms+sc"
            steps = (
                (mode, ["--datalet", "tree"], 3, "tree"),
                (mode, ["--copies", "4"], 4, "tree"),
                (mode, ["--datalet", "hash"], 4, "hash"),
                (mode, ["--copies", "1"], 1, "hash"),
                (other, ["--copies", "3", "--datalet", "tree"], 3, "tree"),
            )
            for place, (to, options, wants, kind) in enumerate(steps):
                began, ended = switch(cluster, to, *options, node=place % 4)
                print(f"\n{' '.join(options)}: {ended - began:.2f} s")
                assert (modes(cluster), copies(cluster), kinds(cluster)) == ({to}, {wants}, {kind})
        print(f"  longest time without a write {longest_gap(strict.operations):.3f} s")
        for load in (patient, strict):
            assert not load.errors, load.errors[0]
        finals = [strict.final(port) for port in at]
        assert check_linearizable(strict.operations + [read for _, reads in finals for read in reads]) is None
        for port in at:
            assert check_nothing_lost(patient.operations, patient.final(port)[0]) is None


def test_a_node_that_slept_through_a_switch_does_no_harm():
    with started("--mode", "ms+ec") as cluster:
        exact = {"keys": 20, "retries": False, "prefix": "m"}
        others = [port for port in ports(cluster) if port != cluster.port + 1]
        asleep = Load([cluster.port + 1], connections=6, held=True, **exact)
        with Load(others, connections=12, **exact) as load, asleep:
            wait_for(lambda: load.written_since(0), "the load is going")
            began = time.monotonic()
            with stopped(status(cluster)["nodes"][1], 0):
                _, ended = switch(cluster, "ms+sc")
                time.sleep(0.5)  # Others write in that time what it does not know.
                asleep.go.set()
            time.sleep(1)
        print(f"\nswitch past a stopped node: {ended - began:.2f} s; asked it afterwards: {asleep.summary()}")
        assert modes(cluster) == {"ms+sc"}
        history = strong_part(load.operations + asleep.operations, [(0, ended)])
        assert check_linearizable(history) is None


def test_the_coordinator_dies_in_a_switch():
    with started("--mode", "ms+sc") as cluster:
        with Load(ports(cluster), connections=20, prefix="c") as load:
            wait_for(lambda: load.written_since(0), "the load is going")
            dead = set()

            def alive():
                coordinator = status(cluster)["coordinator"]
                return coordinator["pid"] not in dead and coordinator["state"] == "up" and coordinator

            for mode, delay in (("aa-ms", 0.0), ("aa+sc", 0.03), ("aa+ec", 0.06), ("ms+sc", 0.1)):
                coordinator = wait_for(alive, "a coordinator leads")
                dead.add(coordinator["pid"])
                kill = threading.Timer(delay, signalled, (coordinator, signal.SIGKILL))
                kill.start()
                began, ended = switch(cluster, mode)
                kill.join()
                print(f"\n{mode}, coordinator killed after {delay} s: {ended - began:.2f} s")
                assert modes(cluster) == {mode}
        assert not load.errors, load.errors[0]
        final, _ = load.final(cluster.port)
        assert check_nothing_lost(load.operations, final) is None


def test_a_node_dies_in_a_switch():
    """What ms+ec had acknowledged alone may be lost, but nobody sees an error, and all copies end equal."""
    with started("--mode", "ms+sc") as cluster:
        with Load(ports(cluster), connections=20, prefix="d") as load:
            wait_for(lambda: load.written_since(0), "the load is going")
            for mode, node, delay in (("aa+ec", 0, 0.0), ("ms+sc", 1, 0.02), ("ms+ec", 2, 0.04), ("aa+sc", 0, 0.06)):
                before = status(cluster)
                kill = threading.Timer(delay, lambda: signalled(before["nodes"][node], signal.SIGKILL))
                kill.start()
                began, ended = switch(cluster, mode, node=3)
                kill.join()
                print(f"\n{mode}, node {node} killed after {delay} s: {ended - began:.2f} s")
                assert modes(cluster) == {mode}
                wait_healed(cluster, before["epoch"] + 1)
        assert not load.errors, load.errors[0]
        wait_same_everywhere(cluster, load.keys)


def test_from_a_program_and_what_is_wrong_is_said(cluster):
    db = cluster.client(node=3)
    assert db.execute_command("SARTOR.SWITCH", "ms+ec") and modes(cluster) == {"ms+ec"}
    assert db.execute_command("sartor.switch", "MS+SC", "table", "default", "timeout", 9000)
    pipe = db.pipeline(transaction=False)
    for words in (["SET", "k", "v"], ["SARTOR.SWITCH", "ms+ec"], ["GET", "k"], ["SARTOR.SWITCH", "ms+sc"]):
        pipe.execute_command(*words)
    assert pipe.execute() == [True, b"OK", b"v", b"OK"]
    wrong = {
        ("ms",): f"there is no mode ms; there is: {', '.join(MODES)}",
        ("ms+ec", "TABLE", "x"): "there is no table x; there is: default",
        ("ms+ec", "TABLE"): "syntax: SARTOR.SWITCH",
        ("ms+ec", "TIMEOUT", "x"): "syntax: SARTOR.SWITCH",
        ("TABLE", "default"): "syntax: SARTOR.SWITCH",
        ("COPIES", "5"): "5 copies need as many nodes; there are 4",
        ("COPIES", "0"): "0 copies need as many nodes",
        ("DATALET", "x"): "unknown datalet .x.; there is: hash, tree",
        ("ms+ec", "DATALET", "tree"): "in ms+ec the first copy alone may have what it acknowledged",
    }
    for words, text in wrong.items():
        with pytest.raises(redis.ResponseError, match="^" + text.replace("+", r"\+")):
            db.execute_command("SARTOR.SWITCH", *words)
    before = status(cluster)["epoch"]
    for options, code, text in (
        (["--mode", "ms+ec", "--dry-run"], 0, "ms+sc to ms+ec"),
        (["--mode", "ms"], 2, "unknown mode 'ms'"),
        (["--copies", "2", "--dry-run"], 0, "3 to 2 copies"),
        ([], 2, "nothing to change; name one at least"),
        (["--mode", "ms+ec", "--table", "x"], 2, "there is no table x"),
        (["--mode", "ms+ec", "--endpoint", "127.0.0.1:1"], 1, "no node answers at 127.0.0.1:1"),
    ):
        where = [] if "--endpoint" in options else ["--endpoint", f"127.0.0.1:{cluster.port}"]
        done = subprocess.run([SARTOR, "switch", *options, *where], capture_output=True, text=True)
        assert done.returncode == code and text in done.stdout + done.stderr, done
    assert status(cluster)["epoch"] == before


def test_a_switch_waits_for_repairs_and_says_so():
    with started("--mode", "ms+sc", "--copies", "3", "--standbys", "0", "--no-restart") as cluster:
        signalled(status(cluster)["nodes"][2], signal.SIGKILL)
        wait_for(lambda: status(cluster)["health"] == "degraded", "the dead node is known")
        # Fewer copies than wanted are no obstacle: those that are there serve.
        switch(cluster, "ms+ec")
        assert modes(cluster) == {"ms+ec"}
