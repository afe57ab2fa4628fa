"""Histories of concurrent clients: a load that records them, and what must hold of them.

An operation took effect, if it did, at one moment between its start and its end. What a client knows of it:

- OK: it took effect, and that is its answer.
- FAILED: the server refused it before any effect.
- UNKNOWN: nobody answered. It may take effect at any time after its start, or never.
"""

import itertools
import random
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from math import inf
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"


class Operation(NamedTuple):
    """One call of one client. The value is what SET wrote, GET read (None: nothing there), INCR answered."""

    kind: str
    key: str
    value: object
    start: float
    end: float
    outcome: str = OK
    error: str = ""
    # The client library may have sent it more than once, so it may take effect more than once, the last time
    # even after its end: a copy that still waits in a stopped node is executed when that node goes on.
    repeated: bool = False

    def __str__(self):
        arrow = {"SET": "SET", "GET": "GET ->", "INCR": "INCR ->"}[self.kind]
        end = f"{self.end:.6f}" if self.outcome == OK else self.outcome
        return f"{arrow} {self.value!r} [{self.start:.6f}, {end}]"


class Zone(NamedTuple):
    """A value's operations, in short: the first that ended and the last that started."""

    first_end: float
    last_start: float
    first: Operation
    last: Operation


def by_key(operations):
    """Key -> its operations."""
    keys = defaultdict(list)
    for operation in operations:
        keys[operation.key].append(operation)
    return keys


def check_linearizable(operations):
    """The first violation of linearizability by SETs of unique values and GETs, or None.

    After Gibbons and Korach, Testing shared memories (1997). The operations of a value must be neighbours in
    any order that explains the history: its SET, then its GETs. So value A must come before value B where an
    operation of A ended before one of B started, and no two values may have to come before each other.
    That is enough: a longer circle always contains one of two. O(n log n).
    """
    for key, history in by_key(operations).items():
        violation = violation_of_key(history)
        if violation:
            return f"key {key!r}: {violation}"
    return None


def violation_of_key(history):
    writes, reads = {}, defaultdict(list)
    for operation in history:
        if operation.repeated and operation.kind == "SET":
            raise ValueError("a SET that was sent twice has no single moment: see without_repeated()")
        if operation.kind == "SET":
            if operation.value in writes or operation.value is None:
                raise ValueError(f"values must be unique: {operation}")
            writes[operation.value] = operation
        elif operation.kind != "GET":
            raise ValueError(f"only SET and GET: {operation}")
        elif operation.outcome == OK:
            reads[operation.value].append(operation)
    # What was there before everything.
    writes[None] = Operation("SET", "", None, -inf, -inf)
    for value, of_value in reads.items():
        if value not in writes:
            return f"read what nobody ever wrote: {of_value[0]}"
        write, first = writes[value], min(of_value, key=lambda read: read.end)
        if write.outcome == FAILED:
            return f"refused and yet read: {write} ({write.error}); {first}"
        if first.end < write.start:
            return f"read before it was written: {first}; {write}"
    # An UNKNOWN write that nobody read may as well never have been.
    seen = [value for value, write in writes.items() if write.outcome == OK or value in reads]
    zones = [zone_of(writes[value], reads.get(value, [])) for value in seen]
    forward = [zone for zone in zones if zone.first_end < zone.last_start]
    forward.sort(key=lambda zone: zone.first_end)
    for one, other in zip(forward, forward[1:]):
        if other.first_end < one.last_start:
            return no_order(one, other)
    # The forward zones are apart now, so only the last that began before can contain it.
    ends = [zone.first_end for zone in forward]
    for zone in zones:
        place = bisect_left(ends, zone.last_start)
        if zone.first_end >= zone.last_start and place and zone.first_end < forward[place - 1].last_start:
            return no_order(forward[place - 1], zone)
    return None


def zone_of(write, reads):
    """An UNKNOWN write has no end of its own: it is over when somebody has read it."""
    ended = [*reads, write] if write.outcome == OK else reads
    first = min(ended, key=lambda operation: operation.end)
    last = max([*reads, write], key=lambda operation: operation.start)
    return Zone(first.end, last.start, first, last)


def no_order(one, other):
    involved = {one.first, one.last, other.first, other.last}
    told = [operation for operation in involved if operation.start > -inf]
    told = "; ".join(map(str, sorted(told, key=lambda operation: (operation.start, operation.end))))
    return f"no order explains {told}"


def without_repeated(operations):
    """The operations on keys of which no SET was sent twice. A GET sent twice is harmless."""
    loose = {operation.key for operation in operations if operation.repeated and operation.kind != "GET"}
    return [operation for operation in operations if operation.key not in loose]


def check_nothing_lost(operations, final):
    """The first key that ends as something older than an acknowledged SET, or None. final: key -> value.

    Holds for clients that send again too. An UNKNOWN or repeated SET may be the last, whenever it was sent.
    """
    for key, history in by_key(operations).items():
        writes = {operation.value: operation for operation in history if operation.kind == "SET"}
        done = [write for write in writes.values() if write.outcome == OK]
        newest = max(done, key=lambda write: write.start, default=None)
        value = final.get(key)
        if value is None:
            if newest:
                return f"key {key!r} is gone; acknowledged was {newest}"
        elif value not in writes:
            return f"key {key!r} ends as {value!r}, which nobody ever wrote"
        elif writes[value].outcome == FAILED:
            return f"key {key!r} ends as what was refused: {writes[value]}"
        elif writes[value].outcome == OK and not writes[value].repeated and writes[value].end < newest.start:
            return f"key {key!r} ends as {writes[value]}; acknowledged after it was {newest}"
    return None


def check_counters(operations, final):
    """The first wrong counter of INCRs, or None. final: key -> value (None: 0).

    Counters start at 0. Clients must not send again by themselves.
    """
    for key, history in by_key(operations).items():
        done = [operation for operation in history if operation.outcome == OK]
        unknown = sum(operation.outcome == UNKNOWN for operation in history)
        value = int(final.get(key) or 0)
        if any(operation.kind != "INCR" or operation.repeated for operation in history):
            raise ValueError(f"only INCRs that were sent once: {key!r}")
        if not len(done) <= value <= len(done) + unknown:
            return f"counter {key!r} is {value} after {len(done)} acknowledged and {unknown} unknown INCRs"
        previous = latest = None
        for operation in sorted(done, key=lambda operation: (operation.value, operation.start)):
            if previous and previous.value == operation.value:
                return f"counter {key!r} gave the same answer twice: {previous}; {operation}"
            if not 1 <= operation.value <= value:
                return f"counter {key!r} is {value}, but answered {operation}"
            if latest and operation.end < latest.start:
                return f"counter {key!r} went back: {operation}; {latest}"
            # Of those with smaller answers, the one that started last.
            previous, latest = operation, max(latest or operation, operation, key=lambda one: one.start)
    return None


def longest_gap(operations, shard_of=None):
    """The longest time without an acknowledged write, in seconds; with shard_of(key), shard -> that."""
    if not operations:
        return {} if shard_of else 0.0
    begin, end = min(op.start for op in operations), max(op.end for op in operations)
    # A shard of which no write ever came through counts with the whole time.
    shards = {op.key: shard_of(op.key) if shard_of else None for op in operations}
    moments = {shard: [begin] for shard in shards.values()}
    for operation in sorted(operations, key=lambda operation: operation.end):
        if operation.kind != "GET" and operation.outcome == OK:
            moments[shards[operation.key]].append(operation.end)
    gaps = {shard: max(b - a for a, b in zip(ends, [*ends[1:], end])) for shard, ends in moments.items()}
    return gaps if shard_of else gaps[None]


# Whether the client library of this thread has lost a connection since the flag was taken back.
lost = threading.local()


class NotingRetry(Retry):
    """Retries as its parent does, and notes that what was sent may have taken effect already."""

    def call_with_retry(self, do, fail, *arguments, **options):
        def noting(error, *rest):
            # LOADING is a refusal, so sending again does not double anything.
            lost.flag = getattr(lost, "flag", False) or not isinstance(error, redis.BusyLoadingError)
            return fail(error, *rest)

        return super().call_with_retry(do, noting, *arguments, **options)


def client_of(port, retries):
    if not retries:
        return redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
    client = redis.Redis(port=port)
    # In place, so that all its settings stay the defaults of the library.
    client.get_retry().__class__ = NotingRetry
    return client


def outcome_of(error):
    """What is known after an exception."""
    if isinstance(error, (redis.BusyLoadingError, redis.exceptions.TryAgainError)):
        return FAILED
    return UNKNOWN


def is_expected(error):
    """Whether a client without retries has to live with it while nodes die."""
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, redis.exceptions.TryAgainError)):
        return True
    return isinstance(error, redis.ResponseError) and str(error).startswith("UNCERTAIN")


class Load:
    """Clients in threads, each in a loop over random keys, spread over the ports; used as a context.

    With retries they are as the library makes them by default: they send again what got no answer. Without,
    each call is one attempt, and what gets no answer is UNKNOWN. Held ones connect and wait for go: they can
    ask a stopped node after others wrote elsewhere, and their questions are the first that it finds when it
    goes on. (What was under way when it stopped proves nothing: it may be answered with what was true then.)
    """

    serials = itertools.count()

    # How long a client may need for its last answer: redis-py sends ten times and waits 5 s for each answer.
    patience = 60

    def __init__(
        self,
        ports,
        *,
        connections=50,
        keys=200,
        retries=True,
        verbs=("SET", "GET"),
        prefix="load",
        held=False,
    ):
        self.keys = [f"{prefix}:{number}" for number in range(keys)]
        self.retries, self.verbs = retries, verbs
        # Loads may share keys, so their values must differ.
        self.serial = next(Load.serials)
        self.connected = threading.Semaphore(0)
        self.go = threading.Event()
        if not held:
            self.go.set()
        self.unexpected = []
        self.records = [[] for _ in range(connections)]
        self.enough = threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(number, ports[number % len(ports)]), daemon=True)
            for number in range(connections)
        ]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        for _ in self.threads:
            self.connected.acquire(timeout=self.patience)
        return self

    def __exit__(self, *failure):
        self.enough.set()
        self.go.set()
        deadline = time.monotonic() + self.patience
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        stuck = sum(thread.is_alive() for thread in self.threads)
        # A failure inside says more than this one.
        assert failure[0] or not stuck, f"{stuck} clients got no answer within {self.patience} s"

    @property
    def operations(self):
        """All that was recorded. What is under way is missing, so check it only after the end."""
        return [operation for record in self.records for operation in list(record)]

    @property
    def errors(self):
        """What reached the application."""
        return [f"{failed.kind} {failed.key}: {failed.error}" for failed in self.operations if failed.error]

    def written_since(self, moment):
        """The keys of writes sent after that moment and acknowledged by now."""
        keys = set()
        for record in self.records:
            for operation in reversed(record):
                if operation.start < moment:
                    break
                if operation.kind != "GET" and operation.outcome == OK:
                    keys.add(operation.key)
        return keys

    def summary(self):
        operations = self.operations
        of = lambda outcome: sum(operation.outcome == outcome for operation in operations)
        again = sum(operation.repeated for operation in operations)
        known = f"{of(OK)} ok, {of(FAILED)} refused, {of(UNKNOWN)} unknown, {again} sent again"
        return f"{len(operations)} operations: {known}"

    def run(self, number, port):
        record, choices, count = self.records[number], random.Random(number), 0
        client = client_of(port, self.retries)
        try:
            client.ping()
        except redis.RedisError as problem:
            self.unexpected.append(f"PING: {problem}")
        self.connected.release()
        self.go.wait()
        while not self.enough.is_set():
            kind, key = choices.choice(self.verbs), choices.choice(self.keys)
            count += 1
            value, outcome, error = f"{self.serial}.{number}.{count}" if kind == "SET" else None, OK, ""
            lost.flag = False
            start = time.monotonic()
            try:
                if kind == "SET":
                    client.set(key, value)
                elif kind == "INCR":
                    value = client.incr(key)
                else:
                    answer = client.get(key)
                    value = None if answer is None else answer.decode()
            except Exception as problem:  # A thread must not end silently.
                outcome, error = outcome_of(problem), f"{type(problem).__name__}: {problem}"
                if self.retries or not is_expected(problem):
                    self.unexpected.append(f"{kind} {key}: {error}")
            end = time.monotonic()
            record.append(Operation(kind, key, value, start, end, outcome, error, self.retries and lost.flag))
            if error:
                # A dead node refuses connections faster than anybody could use.
                self.enough.wait(0.02)
        client.close()

    def final(self, port):
        """Key -> value, read at a port now, and these reads as operations. Keys go a few at a time."""
        values, reads, client = {}, [], redis.Redis(port=port)
        for at in range(0, len(self.keys), 50):
            keys = self.keys[at : at + 50]
            start = time.monotonic()
            answers = client.mget(keys)
            end = time.monotonic()
            for key, answer in zip(keys, answers):
                values[key] = None if answer is None else answer.decode()
                reads.append(Operation("GET", key, values[key], start, end))
        client.close()
        return values, reads
