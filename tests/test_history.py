"""The checker of histories finds what is wrong, and nothing else."""

import itertools
import random
import subprocess
import time
from math import inf

import pytest
import redis

from conftest import free_port, wait_for
from history import (
    FAILED,
    OK,
    UNKNOWN,
    Load,
    Operation,
    check_counters,
    check_linearizable,
    check_nothing_lost,
    longest_gap,
    without_repeated,
)


def put(value, start, end, outcome=OK, key="k", **more):
    return Operation("SET", key, value, start, end, outcome, **more)


def get(value, start, end, outcome=OK, key="k"):
    return Operation("GET", key, value, start, end, outcome)


def incr(value, start, end, outcome=OK):
    return Operation("INCR", "n", value, start, end, outcome)


RIGHT = {
    "nothing": [],
    "nothing there": [get(None, 0, 1)],
    "one after the other": [put("a", 0, 1), get("a", 2, 3), put("b", 4, 5), get("b", 6, 7)],
    "reads during a write see either": [put("a", 0, 9), get(None, 1, 2), get("a", 3, 4), get("a", 5, 6)],
    "writes at once, either order": [put("a", 0, 9), put("b", 0, 9), get("b", 10, 11), get("b", 12, 13)],
    "writes at once, both seen": [put("a", 0, 9), put("b", 0, 9), get("b", 1, 2), get("a", 3, 4)],
    "a slow read may see the past": [put("a", 0, 1), get("a", 2, 9), put("b", 3, 4), get("b", 5, 6)],
    "a write within a slow read": [put("a", 0, 1), get("b", 2, 9), put("b", 3, 4)],
    "unknown and never seen": [put("a", 0, 1), put("b", 2, 3, UNKNOWN), get("a", 4, 5)],
    "unknown and seen at once": [put("a", 0, 1), put("b", 2, 3, UNKNOWN), get("b", 4, 5), get("b", 6, 7)],
    "unknown and seen late": [
        put("a", 0, 1),
        put("b", 2, 3, UNKNOWN),
        get("a", 4, 5),
        put("c", 6, 7),
        get("b", 8, 9),
    ],
    "two unknown, in the other order": [
        put("a", 0, 1, UNKNOWN),
        put("b", 2, 3, UNKNOWN),
        get(None, 4, 5),
        get("b", 6, 7),
        get("a", 8, 9),
    ],
    "refused and never seen": [put("a", 0, 1), put("b", 2, 3, FAILED), get("a", 4, 5)],
    "no answer says nothing": [put("a", 0, 1), get(None, 2, 3, UNKNOWN), get(None, 2, 3, FAILED)],
    "touching in time is at once": [put("a", 0, 1), put("b", 1, 2), get("a", 2, 3)],
    "all at one moment": [put("a", 0, 2), get("a", 4, 5), put("b", 1, 2), get("b", 2, 3)],
    "keys do not know each other": [
        put("a", 0, 1, key="x"),
        get(None, 2, 3, key="y"),
        put("a", 4, 5, key="y"),
    ],
}

WRONG = {
    "stale read": [put("a", 0, 1), put("b", 2, 3), get("a", 4, 5)],
    "lost write": [put("a", 0, 1), get(None, 2, 3)],
    "lost write, later": [put("a", 0, 1), get("a", 2, 3), put("b", 4, 5), get("a", 6, 7), get("a", 8, 9)],
    "read, then gone": [put("a", 0, 1), put("b", 2, 9), get("b", 3, 4), get("a", 5, 6)],
    "read, then nothing there": [put("a", 0, 9), get("a", 1, 2), get(None, 3, 4)],
    "never written": [put("a", 0, 1), get("c", 2, 3)],
    "read before it was written": [put("a", 0, 1), get("b", 2, 3), put("b", 4, 5)],
    "refused and yet read": [put("a", 0, 1), put("b", 2, 3, FAILED), get("b", 4, 5)],
    "unknown, read, then gone": [put("a", 0, 1), put("b", 2, 3, UNKNOWN), get("b", 4, 5), get("a", 6, 7)],
    "unknown, read, overwritten, back": [
        put("a", 0, 1, UNKNOWN),
        get("a", 2, 3),
        put("b", 4, 5),
        get("b", 6, 7),
        get("a", 8, 9),
    ],
    "unknown, read before it was sent": [put("a", 0, 1), get("b", 2, 3), put("b", 4, 5, UNKNOWN)],
    "overwritten between two reads": [put("a", 0, 1), get("a", 2, 3), put("b", 4, 5), get("a", 6, 7)],
    "two readers disagree on the order": [
        put("a", 0, 1),
        put("b", 0, 1),
        get("a", 2, 3),
        get("b", 4, 5),
        get("a", 6, 7),
    ],
    "overlapping writes, turns taken": [
        put("a", 0, 20),
        put("b", 0, 20),
        get("a", 1, 2),
        get("b", 3, 4),
        get("a", 5, 6),
    ],
    "back from the past": [
        put("a", 0, 1),
        put("b", 2, 3),
        get("b", 4, 5),
        put("c", 6, 7),
        get("b", 8, 9),
    ],
    "in one key of two": [
        put("a", 0, 1, key="x"),
        get("a", 2, 3, key="x"),
        put("a", 0, 1, key="y"),
        get(None, 2, 3, key="y"),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_is_right(name):
    assert check_linearizable(RIGHT[name]) is None
    assert check_linearizable(RIGHT[name][::-1]) is None, "their order in the list says nothing"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_found_and_told_in_a_line(name):
    for history in (WRONG[name], WRONG[name][::-1]):
        violation = check_linearizable(history)
        assert violation and "\n" not in violation and violation.startswith("key '")
    assert "key 'y'" in violation or name != "in one key of two"


def test_the_violation_names_the_operations():
    assert check_linearizable(WRONG["stale read"]) == (
        "key 'k': no order explains SET 'a' [0.000000, 1.000000]; SET 'b' [2.000000, 3.000000]; "
        "GET -> 'a' [4.000000, 5.000000]"
    )


def test_what_cannot_be_checked_is_refused():
    for history in [
        [put("a", 0, 1), put("a", 2, 3)],
        [put("a", 0, 1, repeated=True)],
        [incr(1, 0, 1)],
    ]:
        with pytest.raises(ValueError):
            check_linearizable(history)


def is_linearizable(history):
    """By trying every order: what the definition says, for a handful of operations of one key."""
    surely = [op for op in history if op.outcome == OK]
    maybe = [op for op in history if op.outcome == UNKNOWN and op.kind == "SET"]
    end = lambda op: op.end if op.outcome == OK else inf

    def explain(value, left):
        if not any(op.outcome == OK for op in left):
            return True
        for op in left:
            if any(end(other) < op.start for other in left if other is not op):
                continue
            if op.kind == "GET" and op.value != value:
                continue
            if explain(op.value, [other for other in left if other is not op]):
                return True
        return False

    chosen = itertools.chain.from_iterable(itertools.combinations(maybe, n) for n in range(len(maybe) + 1))
    return any(explain(None, [*surely, *some]) for some in chosen)


def test_it_agrees_with_trying_every_order():
    """Random small histories, of which a good part is wrong."""
    choices, verdicts = random.Random(1), {True: 0, False: 0}
    for _ in range(6000):
        writes = choices.randrange(1, 4)
        history = []
        for n in range(writes + choices.randrange(1, 5)):
            start = choices.randrange(12)
            length = choices.randrange(1, 7)
            if n < writes:
                history.append(put(f"v{n}", start, start + length, choices.choice([OK, OK, UNKNOWN, FAILED])))
            else:
                value = choices.choice([None, *(f"v{n}" for n in range(writes))])
                history.append(get(value, start, start + length, choices.choice([OK, OK, OK, FAILED])))
        expected = is_linearizable(history)
        assert (check_linearizable(history) is None) == expected, history
        verdicts[expected] += 1
    assert min(verdicts.values()) > 1000, verdicts


def simulated(count, keys, seed=2):
    """What many clients of a right register record; some writes take effect long after they were given up."""
    choices, held, history, late = random.Random(seed), {}, [], []
    for n in range(count):
        key = f"k{choices.randrange(keys)}"
        # Moments are a unit apart; operations stretch around theirs and so overlap with tens of others.
        start, end = n - choices.random() * 40, n + choices.random() * 40
        for place, value in [entry[1:] for entry in late if entry[0] == n]:
            held[place] = value
        if choices.random() < 0.5:
            history.append(get(held.get(key), start, end, key=key))
        elif choices.random() < 0.98:
            held[key] = f"v{n}"
            history.append(put(f"v{n}", start, end, key=key))
        else:
            outcome = choices.choice([FAILED, UNKNOWN])
            history.append(put(f"v{n}", start, end, outcome, key=key))
            if outcome == UNKNOWN and choices.random() < 0.7:
                late = [entry for entry in late if entry[0] > n]
                late.append((n + choices.randrange(1, 500), key, f"v{n}"))
    return history


def test_100_000_operations_take_seconds():
    history = simulated(100_000, 300)
    start = time.monotonic()
    assert check_linearizable(history) is None
    # It takes half a second; a quadratic check would take minutes.
    assert time.monotonic() - start < 10


def test_one_wrong_answer_among_many_is_found():
    """A read that gives what was long overwritten, a read that sees nothing, a write that is not there."""
    history = simulated(20_000, 50)
    assert check_linearizable(history) is None
    choices, mutations = random.Random(3), 0
    for _ in range(60):
        place = choices.randrange(10_000, 20_000)
        victim = history[place]
        own = [op for op in history if op.key == victim.key and op.kind == "SET" and op.outcome == OK]
        before = [op for op in own if op.end < victim.start]
        if victim.kind == "GET":
            old = choices.choice([None, before[len(before) // 2].value])
            mutated = [*history[:place], victim._replace(value=old), *history[place + 1 :]]
        elif any(op.kind == "GET" and op.value == victim.value and op.key == victim.key for op in history):
            mutated = history[:place] + history[place + 1 :]
        else:
            continue
        violation = check_linearizable(mutated)
        assert violation and f"key {victim.key!r}" in violation, (victim, violation)
        mutations += 1
    assert mutations > 30


def test_a_repeated_write_takes_its_key_out():
    right = [put("a", 0, 1, key="x"), get("a", 2, 3, key="x")]
    loose = [put("a", 0, 1, key="y", repeated=True), put("b", 2, 3, key="y"), get("a", 4, 5, key="y")]
    assert without_repeated(right + loose) == right
    again = [get("a", 2, 3, key="x")._replace(repeated=True)]
    assert without_repeated(right + again) == right + again


@pytest.mark.parametrize(
    "history, final, wrong",
    [
        ([put("a", 0, 1), put("b", 2, 3)], "b", None),
        ([put("a", 0, 1), put("b", 2, 3)], "a", "acknowledged after it was SET 'b'"),
        ([put("a", 0, 1), put("b", 2, 3)], None, "is gone"),
        ([put("a", 0, 1), put("b", 2, 3)], "c", "nobody ever wrote"),
        ([put("a", 0, 3), put("b", 2, 4)], "a", None),
        ([put("a", 0, 1), put("b", 2, 3, UNKNOWN)], "a", None),
        ([put("a", 0, 1), put("b", 2, 3, UNKNOWN)], "b", None),
        ([put("a", 0, 1, UNKNOWN), put("b", 2, 3)], "a", None),
        ([put("a", 0, 1, UNKNOWN)], None, None),
        ([put("a", 0, 1, FAILED), put("b", 2, 3)], "a", "refused"),
        ([put("a", 0, 1, repeated=True), put("b", 2, 3)], "a", None),
        ([put("a", 0, 1, repeated=True), put("b", 2, 3)], None, "is gone"),
        # Not even a repeated one brings back what is older than another acknowledged one.
        ([put("a", 0, 1), put("b", 2, 3, repeated=True)], "a", "acknowledged after it was SET 'b'"),
    ],
)
def test_lost_writes(history, final, wrong):
    violation = check_nothing_lost(history, {"k": final})
    assert violation is None if wrong is None else violation and wrong in violation
    assert (check_nothing_lost(history, {}) is None) == (check_nothing_lost(history, {"k": None}) is None)


@pytest.mark.parametrize(
    "history, final, wrong",
    [
        ([], None, None),
        ([incr(1, 0, 1), incr(2, 2, 3)], "2", None),
        ([incr(2, 0, 9), incr(1, 1, 8)], "2", None),
        ([incr(1, 0, 1), incr(2, 2, 3)], "1", "after 2 acknowledged and 0 unknown"),
        ([incr(1, 0, 1), incr(2, 2, 3)], "3", "after 2 acknowledged and 0 unknown"),
        ([incr(1, 0, 1), incr(2, 2, 3)], None, "after 2 acknowledged"),
        ([incr(1, 0, 1), incr(None, 2, 3, UNKNOWN)], "1", None),
        ([incr(1, 0, 1), incr(None, 2, 3, UNKNOWN)], "2", None),
        ([incr(1, 0, 1), incr(None, 2, 3, UNKNOWN)], "3", "1 unknown"),
        ([incr(None, 0, 1, UNKNOWN), incr(2, 2, 3)], "2", None),
        ([incr(1, 0, 1), incr(None, 2, 3, FAILED)], "2", "0 unknown"),
        ([incr(1, 0, 9), incr(1, 1, 8), incr(None, 2, 3, UNKNOWN)], "2", "same answer twice"),
        ([incr(2, 0, 1), incr(1, 2, 3)], "2", "went back"),
        ([incr(3, 0, 1), incr(1, 0, 9), incr(2, 2, 3)], "3", "went back"),
        ([incr(1, 0, 1), incr(3, 2, 3)], "2", "but answered"),
    ],
)
def test_counters(history, final, wrong):
    violation = check_counters(history, {"n": final})
    assert violation is None if wrong is None else violation and wrong in violation


def test_the_longest_gap():
    history = [
        put("a", 0, 1, key="x"),
        put("b", 1, 2, key="y"),
        put("c", 2, 4, UNKNOWN, key="y"),
        get("a", 4, 5, key="x"),
        put("d", 5, 6, key="x"),
        get("b", 6, 9, key="y"),
    ]
    assert longest_gap(history) == 4
    assert longest_gap(history, lambda key: key) == {"x": 5, "y": 7}
    assert longest_gap([get(None, 0, 3), put("a", 1, 2, FAILED)]) == 3
    assert longest_gap([]) == 0


def test_a_real_redis_is_linearizable(redis_server):
    """It does one thing after the other, so a violation would be one of the load or the check."""
    for retries in (True, False):
        with Load([redis_server], connections=20, keys=20, retries=retries, prefix=f"real{retries}") as load:
            time.sleep(1)
        final, reads = load.final(redis_server)
        assert not load.errors and len(load.operations) > 1000
        assert check_linearizable([*load.operations, *reads]) is None
        assert check_nothing_lost(load.operations, final) is None
        # The same history as a store would leave that forgot everything in the end.
        assert check_nothing_lost(load.operations, {})
        assert check_linearizable([*load.operations, *(read._replace(value=None) for read in reads)])
    with Load([redis_server], connections=20, keys=3, retries=False, verbs=("INCR",), prefix="n") as load:
        time.sleep(0.5)
    final, _ = load.final(redis_server)
    assert check_counters(load.operations, final) is None
    assert check_counters(load.operations[1:], final)


class RedisServer:
    """A redis-server that may be killed: it forgets everything."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--dir", self.folder]
            + ["--bind", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
        )
        wait_for(self.answers, "redis-server")

    def answers(self):
        try:
            return redis.Redis(port=self.port).ping()
        except redis.ConnectionError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def mortal_redis(tmp_path):
    server = RedisServer(str(tmp_path))
    yield server
    server.kill()


def test_what_a_killed_server_does_to_a_load(mortal_redis):
    """Without retries a call in flight is UNKNOWN; with them it is sent again, and noted."""
    port = mortal_redis.port
    with Load([port], connections=10, keys=1000, prefix="p") as patient:
        with Load([port], connections=10, keys=1000, retries=False, prefix="s") as strict:
            time.sleep(0.5)
            mortal_redis.kill()
            time.sleep(0.3)
            mortal_redis.start()
            time.sleep(0.5)
    assert not patient.errors and 1 <= sum(op.repeated for op in patient.operations) <= 10
    outcomes = {op.outcome for op in strict.operations}
    assert UNKNOWN in outcomes and not strict.unexpected and strict.errors
    # It came back empty.
    final, reads = strict.final(port)
    assert check_nothing_lost(strict.operations, final)
    assert check_linearizable([*strict.operations, *reads])
    final, reads = patient.final(port)
    assert check_nothing_lost(patient.operations, final)
    assert check_linearizable([*without_repeated(patient.operations), *without_repeated(reads)])
    assert longest_gap(patient.operations) > 0.25
