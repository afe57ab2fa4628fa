"""Today's clients with their defaults."""

import asyncio
import os
import socket
import subprocess
import time

import pytest
import redis
import redis.asyncio

from conftest import Cluster

GO_CLIENT = os.path.join(os.path.dirname(__file__), "../target/go-client")


def cli(cluster, *words, node=0, **options):
    command = ["redis-cli", "-p", str(cluster.port + node), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **options).stdout


def test_redis_cli(cluster):
    assert cli(cluster, "SET", "cli", "hello") == "OK\n"
    assert cli(cluster, "GET", "cli", node=1) == "hello\n"
    assert cli(cluster, "-3", "GET", "cli", node=3) == "hello\n"
    assert "unknown command" in cli(cluster, "NOSUCH", "x")
    script = "\n".join(f"SET cli:{i} {i}" for i in range(1000)) + "\n"
    assert cli(cluster, input=script).count("OK") == 1000
    scanned = cli(cluster, "--scan", "--pattern", "cli:*", node=2).split()
    assert sorted(scanned) == sorted(f"cli:{i}" for i in range(1000))


@pytest.mark.parametrize("depth", [1, 16])
def test_redis_benchmark(cluster, depth):
    for node in (0, 1, 3):
        out = subprocess.run(
            ["redis-benchmark", "-p", str(cluster.port + node), "-t", "set,get,incr,mset", "-c", "50"]
            + ["-n", "20000", "-P", str(depth), "-r", "10000", "--csv"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert out.returncode == 0, out.stderr
        assert not out.stderr.strip(), out.stderr
        tests = [line.split(",")[0].strip('"') for line in out.stdout.splitlines()[1:]]
        assert tests == ["SET", "GET", "INCR", "MSET (10 keys)"]


def test_redis_py(cluster):
    db, other = cluster.client(), cluster.client(node=2)
    assert db.set("py", b"\x00\r\n\xff", ex=100)
    assert other.get("py") == b"\x00\r\n\xff"
    assert 98 <= db.ttl("py") <= 100
    assert db.set("py", "new", nx=True) is None
    assert db.mset({f"py:{i}": i for i in range(100)})
    assert db.mget([f"py:{i}" for i in range(100)]) == [str(i).encode() for i in range(100)]
    assert db.delete(*(f"py:{i}" for i in range(100)), "py:none") == 100
    assert db.incr("py:n", 5) == 5
    with db.pipeline() as pipe:  # MULTI ... EXEC over all shards
        for i in range(30):
            pipe.set(f"py:t{i}", i).get(f"py:t{i}")
        assert pipe.execute() == [x for i in range(30) for x in (True, str(i).encode())]
    with db.pipeline(transaction=False) as pipe:
        for _ in range(200):
            pipe.incr("py:count")
        assert pipe.execute() == list(range(1, 201))
    with db.pipeline() as pipe:
        pipe.watch("py:w")
        other.set("py:w", "x")
        pipe.multi()
        pipe.set("py:w", "y")
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert sorted(db.scan_iter("py:t*")) == sorted(f"py:t{i}".encode() for i in range(30))
    info = db.info()
    assert info["redis_mode"] == "standalone" and info["tcp_port"] == cluster.port and info["db0"]["keys"] > 0
    assert db.config_get("pipeline-max") == {"pipeline-max": "1024"}
    assert db.client_info()["lib-name"] == "redis-py"


def test_exec_across_shards_is_a_setting(cluster):
    db = cluster.client()
    many = {f"across:{i}": i for i in range(10)}
    try:
        assert db.config_set("exec-across-shards", 0)
        with db.pipeline() as pipe, pytest.raises(redis.ResponseError, match="same shard"):
            for key, value in many.items():
                pipe.set(key, value)
            pipe.execute()
        assert db.exists(*many) == 0, "refused before any effect"
        with db.pipeline() as pipe:
            assert pipe.set("{across}a", 1).incr("{across}a").execute() == [True, 2]
    finally:
        db.config_set("exec-across-shards", 1)
    with db.pipeline() as pipe, pytest.raises(redis.ResponseError, match="same shard"):
        pipe.watch("across:0")  # with WATCH it is never allowed
        pipe.multi()
        for key, value in many.items():
            pipe.set(key, value)
        pipe.execute()
    assert db.exists(*many) == 0


def test_redis_py_resp2(cluster):
    db = cluster.client(node=1, protocol=2)
    assert db.set("py2", "x") and db.get("py2") == b"x" and db.get("py2:none") is None
    with db.pipeline() as pipe:
        assert pipe.set("py2", "y").get("py2").execute() == [True, b"y"]


def test_redis_py_asyncio(cluster):
    async def run():
        db = redis.asyncio.Redis(port=cluster.port + 1)
        for start in range(0, 200, 50):  # redis-py opens 100 connections at most
            await asyncio.gather(*(db.set(f"aio:{i}", i) for i in range(start, start + 50)))
        assert await db.mget([f"aio:{i}" for i in range(200)]) == [str(i).encode() for i in range(200)]
        async with db.pipeline() as pipe:
            assert await pipe.set("aio", "x").get("aio").execute() == [True, b"x"]
        await db.aclose()

    asyncio.run(run())


def test_go_redis(cluster):
    for node in (0, 3):
        out = subprocess.run([GO_CLIENT, f"127.0.0.1:{cluster.port + node}"], capture_output=True, text=True, timeout=60)
        assert out.returncode == 0, out.stdout + out.stderr
        cluster.client().flushall()


def test_a_connection_sees_its_own_writes_at_every_node(cluster):
    """Written through one node and read through it at once, pipelined and not, it is never the past."""
    for node in range(4):
        db = cluster.client(node=node)
        for i in range(300):
            db.set(f"own:{i % 7}", i)
            assert db.get(f"own:{i % 7}") == str(i).encode()
        with db.pipeline(transaction=False) as pipe:
            for i in range(300):
                pipe.set(f"own:{i % 7}", i).get(f"own:{i % 7}")
            assert pipe.execute()[1::2] == [str(i).encode() for i in range(300)]


def test_two_workers_are_one_node():
    cluster = Cluster("--workers", "2", "--copies", "2", "--standbys", "0", "--shards", "4")
    try:
        for node in (0, 1):
            # Connections are spread over the workers.
            clients = [cluster.client(node=node) for _ in range(8)]
            for i, db in enumerate(clients):
                assert db.mset({f"w{node}:{i}:{n}": n for n in range(50)})
            for i, db in enumerate(reversed(clients)):
                got = db.mget([f"w{node}:{len(clients) - 1 - i}:{n}" for n in range(50)])
                assert [int(v) for v in db.mget([f"w{node}:{i}:{n}" for n in range(50)])] == list(range(50)), got
        assert cluster.client().dbsize() == 800
    finally:
        cluster.end()


def test_a_reply_does_not_wait_for_what_takes_long(cluster):
    """Replies of a pipeline leave together where they can, but not at any price."""
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=3) as s:
        set_first = b"*3\r\n$3\r\nSET\r\n$5\r\nfirst\r\n$1\r\n1\r\n"
        s.sendall(set_first + b"*3\r\n$4\r\nWAIT\r\n$1\r\n9\r\n$4\r\n9000\r\n")
        assert s.recv(100) == b"+OK\r\n", "WAIT for nine copies lasts 9 s"


def test_busy_polling_starves_nothing(cluster):
    db = cluster.client()
    assert db.config_set("busy-poll-us", 1_000_000)
    try:
        epoch = cluster.status()["epoch"]
        assert db.set("short", "x", px=100)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert db.set("busy", "y") and db.get("busy") == b"y"
        assert db.get("short") is None and db.dbsize() >= 1
        assert cluster.status()["epoch"] == epoch, "heartbeats and leases went on"
    finally:
        assert db.config_set("busy-poll-us", 0)
