"""Ranges: records in key order over several shards, while others are written."""

import random
import subprocess
import threading

import pytest
import redis

from conftest import SARTOR, running

KEYS = 20_000


@pytest.fixture(scope="module")
def tree():
    with running("--datalet", "tree", "--shards", "3", "--copies", "2", "--standbys", "0") as cluster:
        yield cluster


def fill(client, keys):
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.set(key, b"v" + key)
    pipe.execute()


def names(count):
    return [b"%06d" % (number * 7) for number in range(count)]


def pages(client, start, end, *options):
    """All of a range, page by page."""
    found, place = [], 1 if "REV" in options else 0
    bounds = [start, end]
    while bounds[place] is not None:
        bounds[place], more = client.execute_command("SARTOR.RANGE", *bounds, *options)
        found += more
    return found


def test_a_range_is_complete_and_in_order_while_others_write(tree):
    client = tree.client(0)
    keys = names(KEYS)
    fill(client, keys)
    stop = threading.Event()

    def write():
        own, chance = tree.client(1), random.Random(3)
        while not stop.is_set():
            # Between those that stay.
            key = b"%06d" % (chance.randrange(KEYS) * 7 + 3)
            own.set(key, "other") if chance.random() < 0.6 else own.delete(key)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for start, end in ((b"", b""), (b"007", b"1"), (keys[5000], keys[5001])):
            found = pages(client, start, end, "LIMIT", 777)
            assert found == sorted(found) and len(set(found)) == len(found)
            wanted = [key for key in keys if key >= start and (not end or key < end)]
            there = set(keys)
            assert [key for key in found if key in there] == wanted
            found = pages(client, start, end, "LIMIT", 777, "REV")
            assert found == sorted(found, reverse=True) and len(set(found)) == len(found)
            assert [key for key in found if key in there] == wanted[::-1]
    finally:
        stop.set()
        writer.join()
    for key in client.scan_iter(count=1000):
        if int(key) % 7:
            client.delete(key)
    pairs = pages(client, b"", b"", "WITHVALUES", "LIMIT", "5000")
    assert pairs[::2] == keys and pairs[1::2] == [b"v" + key for key in keys]


def test_dead_records_and_large_ones(tree):
    client = tree.client(0)
    client.flushall()
    client.set("a", "1", px=1)
    client.set("b", "2", ex=1000)
    for number in range(40):
        client.set(b"large%02d" % number, b"x" * 300_000)
    next_, found = client.execute_command("SARTOR.RANGE", "", "", "WITHVALUES")
    assert next_ is not None, "an answer is bounded by bytes"
    assert pages(client, b"", b"") == [b"b"] + [b"large%02d" % number for number in range(40)]
    assert len(pages(client, b"large", b"", "WITHVALUES")) == 80
    backwards = pages(client, b"b", b"", "WITHVALUES", "REV")
    assert backwards[::2] == [b"large%02d" % number for number in reversed(range(40))] + [b"b"]
    # The empty key is the first one: behind it, nothing is left.
    client.set("", "empty")
    assert pages(client, b"", b"c", "REV", "LIMIT", "1") == [b"b", b""]
    client.delete("")


def test_bad_ranges_are_clear_errors(tree):
    client = tree.client(0)
    for words, why in (
        (("b", "a"), "ends before it begins"),
        (("a", "b", "LIMIT", "0"), "LIMIT must be from 1"),
        (("a", "b", "LIMIT", "x"), "syntax"),
        (("a", "b", "NOISE"), "syntax"),
        (("a", "b", "LIMIT"), "syntax"),
    ):
        with pytest.raises(redis.ResponseError, match=why):
            client.execute_command("SARTOR.RANGE", *words)
    assert client.execute_command("SARTOR.RANGE", "a", "a") == [None, []]
    assert client.execute_command("SARTOR.RANGE", "a", "a", "REV") == [None, []]


def test_scan_prints_lines(tree):
    client = tree.client(0)
    client.flushall()
    fill(client, names(2500))
    endpoint = f"127.0.0.1:{tree.port + 1}"
    run = lambda *words: subprocess.run([SARTOR, "scan", "--endpoint", endpoint, *words], capture_output=True, text=True)
    assert run().stdout.split() == [name.decode() for name in names(2500)]
    assert run("--start", "000007", "--end", "000021", "--values").stdout == "000007\tv000007\n000014\tv000014\n"
    assert len(run("--limit", "1234").stdout.split()) == 1234
    backwards = run("--reverse", "--start", "000007", "--end", "007000").stdout.split()
    assert backwards == [name.decode() for name in reversed(names(1000)[1:])]
    assert run("--reverse", "--limit", "1", "--values").stdout == f"{names(2500)[-1].decode()}\tv{names(2500)[-1].decode()}\n"
    wrong = run("--start", "b", "--end", "a")
    assert wrong.returncode == 1 and "ends before it begins" in wrong.stderr


def test_an_engine_without_order_says_so():
    with running("--datalet", "hash", "--shards", "2", "--copies", "1", "--standbys", "0") as cluster:
        client = cluster.client()
        client.set("a", "1")
        with pytest.raises(redis.ResponseError, match="ordered"):
            client.execute_command("SARTOR.RANGE", "", "")
        assert client.get("a") == b"1", "the store goes on"


@pytest.mark.parametrize("engine", ["log", "lsm", "btree"])
def test_engines_on_disk_scan_in_both_orders(engine):
    with running("--datalet", engine, "--shards", "2", "--copies", "1", "--standbys", "0") as cluster:
        client = cluster.client()
        fill(client, names(3000))
        for key in names(3000)[::3]:
            client.delete(key)
        wanted = [key for place, key in enumerate(names(3000)) if place % 3]
        assert pages(client, b"", b"", "LIMIT", 700) == wanted
        assert pages(client, b"", b"", "LIMIT", 700, "REV") == wanted[::-1]
