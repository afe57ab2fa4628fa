"""The workload: samples of a parallel file system's servers come in, and an analysis reads them.

A sample is one record: `ost0042/write_bytes/0000001234` is what object storage target 42 had written at second 1234. Keys in
order are time series, so that "the last hundred samples of this one" is a range, read backwards.

A batch of requests is one write to the socket with an ECHO behind it: all are answered once its word is there. So Python has
nothing to parse, and is not what is measured.
"""

import random
import socket
import time

METRICS = ("read_bytes", "write_bytes", "read_ops", "write_ops", "queue", "stripes", "locks", "free")
# Per server: an MDS and OSSs tell of themselves and of their targets (SC'18, section VI-A).
SERVERS = [f"mdt{number:04d}" for number in range(2)] + [f"ost{number:04d}" for number in range(62)]
SERIES = [f"{server}/{metric}" for server in SERVERS for metric in METRICS]
VALUE_BYTES = 32
SCANNED = 100
PUTS, GETS, SCANS = 64, 64, 8
DONE = b"all-of-them-are-answered"


def words(*parts):
    """A request."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def sample(series, second):
    return b"%s/%010d" % (series.encode(), second)


class Failed(Exception):
    """A request was refused."""


class Connection:
    """One client, whose batches are answered before the next one is sent."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = words("ECHO", DONE)
        self.tail = b"$%d\r\n%s\r\n" % (len(DONE), DONE)

    def send(self, requests):
        self.socket.sendall(requests + self.end)

    def answers(self):
        """All that came before the last word."""
        found = bytearray()
        while not found.endswith(self.tail):
            more = self.socket.recv(1 << 20)
            if not more:
                raise Failed("the node closed the connection")
            found += more
        # Keys and values have neither line ends nor '-' at their beginning.
        if found.startswith(b"-") or b"\r\n-" in found:
            start = 0 if found.startswith(b"-") else found.index(b"\r\n-") + 2
            raise Failed(found[start:].split(b"\r\n")[0].decode())
        return bytes(found[: -len(self.tail)])

    def ask(self, *parts):
        self.send(words(*parts))
        return self.answers()


class Collect:
    """Probes at the servers: every second brings a sample of each series."""

    counts = PUTS

    def __init__(self, second):
        self.second, self.place = second, 0
        self.value = b"%0*d" % (VALUE_BYTES, 0)

    def batch(self):
        requests = []
        for _ in range(PUTS):
            key = sample(SERIES[self.place], self.second)
            requests.append(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, VALUE_BYTES, self.value))
            self.place += 1
            if self.place == len(SERIES):
                self.place, self.second = 0, self.second + 1
                self.value = b"%0*d" % (VALUE_BYTES, self.second * 7919)
        return b"".join(requests)

    def check(self, answers):
        assert answers == b"+OK\r\n" * PUTS, answers[:100]


class Lookup:
    """The analysis reads single samples, all as often (the paper's: uniform)."""

    counts = GETS

    def __init__(self, seconds):
        self.seconds, self.random = seconds, random.Random(7)

    def batch(self):
        requests = []
        for _ in range(GETS):
            key = sample(self.random.choice(SERIES), self.random.randrange(self.seconds))
            requests.append(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        return b"".join(requests)

    def check(self, answers):
        assert len(answers) == GETS * (VALUE_BYTES + 7), "samples are missing"


class Window:
    """The analysis reads the last hundred samples of a series; counted in samples."""

    counts = SCANS * SCANNED

    def __init__(self, seconds):
        self.random = random.Random(9)
        self.scanned = min(SCANNED, seconds)
        self.counts = SCANS * self.scanned

    def batch(self):
        requests = []
        for _ in range(SCANS):
            series = self.random.choice(SERIES)
            # '0' is what comes behind '/'.
            requests.append(words("SARTOR.RANGE", series + "/", series + "0", "LIMIT", self.scanned, "REV", "WITHVALUES"))
        return b"".join(requests)

    def check(self, answers):
        assert answers.count(b"\r\n$%d\r\n" % VALUE_BYTES) == self.counts, "samples are missing"


def run(load, port, seconds, connections=4):
    """So many a second, all connections together, one batch on its way on each."""
    clients = [Connection(port) for _ in range(connections)]
    done, began = 0, time.monotonic()
    for client in clients:
        client.send(load.batch())
    while True:
        ends = time.monotonic() - began >= seconds
        for client in clients:
            answers = client.answers()
            done += load.counts
            if not ends:
                client.send(load.batch())
            if done <= load.counts * connections:
                load.check(answers)
        if ends:
            return done / (time.monotonic() - began)


def fill(port, seconds):
    """The first samples of all series; back when all copies have them."""
    client, load = Connection(port), Collect(0)
    while load.second < seconds:
        client.send(load.batch())
        load.check(client.answers())
    wait_for_copies(client)
    return load.second


def wait_for_copies(client):
    if client.ask("WAIT", 2, 20000) != b":2\r\n":
        raise Failed("the copies did not come up to the first one within 20 s")
