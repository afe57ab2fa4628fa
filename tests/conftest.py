"""Clusters of real processes for the tests."""

import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
import redis

SARTOR = os.environ.get("SARTOR", os.path.join(os.path.dirname(__file__), "../target/release/sartor"))

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_for(condition, what, seconds=20):
    """Waits until condition() holds; its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def free_port():
    """A port such that all those a cluster takes are free."""
    for port in range(20000 + os.getpid() % 5000, 60000, 500):
        try:
            for offset in [*range(10), *range(200, 206), *range(300, 310)]:
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(("127.0.0.1", port + offset))
            return port
        except OSError:
            continue
    raise AssertionError("no free ports")


class Cluster:
    """A `sartor up` and what it started."""

    def __init__(self, *options, port=None, wait=True, program=SARTOR):
        self.port = port or free_port()
        self.up = subprocess.Popen(
            [program, "up", "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if wait:
            self.banner = ""
            while "Ctrl-C ends it" not in self.banner:
                line = self.up.stdout.readline()
                assert line, f"sartor up ended: {self.banner}"
                self.banner += line
            # Somebody must read what the processes say, or they wait for it.
            threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        try:
            for line in self.up.stdout:
                self.banner += line
        except ValueError:  # It is closed at the end.
            pass

    def client(self, node=0, **options):
        return redis.Redis(port=self.port + node, **options)

    def status(self, node=0):
        done = subprocess.run(
            [SARTOR, "status", "--endpoint", f"127.0.0.1:{self.port + node}", "-o", "json"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def pids(self):
        status = self.status()
        return [status["coordinator"]["pid"], *(node["pid"] for node in status["nodes"])]

    def end(self, how=signal.SIGINT):
        if self.up.poll() is None:
            self.up.send_signal(how)
        try:
            self.up.wait(10)
        finally:
            self.up.kill()
            self.up.stdout.close()


@contextmanager
def running(*options):
    """A cluster with these options, for as long as it is used."""
    cluster = Cluster(*options)
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def cluster():
    """A cluster as `sartor up` starts it, shared by the tests of a file."""
    cluster = Cluster()
    yield cluster
    cluster.end()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A real Redis to compare with; its port."""
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
    )

    def answers():
        try:
            return redis.Redis(port=port).ping()
        except redis.ConnectionError:
            return False

    wait_for(answers, "redis-server")
    yield port
    server.kill()
    server.wait()
