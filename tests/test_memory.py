"""--memory bounds what a node holds."""

import pytest
import redis

from conftest import Cluster, wait_for


def test_writes_beyond_the_limit_are_refused_and_deletes_help():
    cluster = Cluster("--memory", "4mb")
    try:
        db = cluster.client()
        assert db.config_get("maxmemory") == {"maxmemory": str(4 << 20)}
        value = b"v" * 1000
        written = 0
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for written in range(100_000):
                db.set(f"k{written}", value)
        # Every node holds three copies' worth of a third each: all of it.
        assert 2000 < written < 8000, written
        assert db.get("k0") == value and db.dbsize() >= written
        for command in [("append", "k0", "x"), ("incr", "n"), ("mset", "a", "1", "b", "2")]:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                db.execute_command(*command)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            db.pipeline(transaction=True).set("a", "1").execute()
        assert db.expire("k0", 100) and db.delete(*[f"k{i}" for i in range(written // 2)]) > 0
        # The other copies tell that they have room again.
        wait_for(lambda: can_write(db), "room", 5)
        assert db.config_set("maxmemory", 0)
    finally:
        cluster.end()


def can_write(db):
    try:
        return all(db.set(f"new{i}", "1") for i in range(50))
    except redis.exceptions.OutOfMemoryError:
        return False


def test_one_full_node_stops_writes_of_its_shards_only_while_it_is_full():
    cluster = Cluster("--shards", "1")
    try:
        head, tail = cluster.client(node=0), cluster.client(node=2)
        assert head.set("k", "v" * 1000)
        assert tail.config_set("maxmemory", 1)

        def refused():
            try:
                head.set("k", "w")
            except redis.exceptions.OutOfMemoryError as error:
                return str(error)

        assert "another copy" in wait_for(refused, "the head hears that the tail is full", 5)
        assert head.get("k") in (b"v" * 1000, b"w") and head.delete("k") == 1
        assert tail.config_set("maxmemory", 0)
        wait_for(lambda: refused() is None, "it has room again", 5)
    finally:
        cluster.end()
