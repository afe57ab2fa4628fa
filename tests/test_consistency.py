"""A connection, or one read, asks for more or less than its table's mode promises."""

import signal
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conftest import wait_for
from test_failover import shards_by_slot, signalled, started, status, stopped

ONE = {"single_connection_client": True, "retry": Retry(NoBackoff(), 0), "decode_responses": True}
WORDS = "mode, strong, bounded <ms>, causal or eventual"


def refuses(db, words, text):
    with pytest.raises(redis.ResponseError) as refused:
        db.execute_command(*words.split())
    assert str(refused.value).startswith(text), refused.value


@pytest.mark.parametrize("mode", ["ms+sc", "ms+ec", "aa+sc", "aa+ec", "aa-ms"])
def test_levels(mode):
    with started("--mode", mode) as cluster:
        db = cluster.client(node=1, **ONE)
        assert db.set("k", "v") and db.execute_command("SARTOR.CONSISTENCY") == "mode"
        assert db.execute_command("SARTOR.GET", "k") == ["v", "mode"]
        assert db.execute_command("SARTOR.GET", "none") == [None, "mode"]
        for level in ("eventual", "causal", "bounded 5000", "bounded 0", "mode"):
            assert db.execute_command("SARTOR.GET", "k", "CONSISTENCY", *level.split()) == ["v", level]
            assert db.execute_command("sartor.consistency", *level.upper().split())
            assert db.execute_command("SARTOR.CONSISTENCY") == level
            assert db.get("k") == "v" and db.mget("k", "none") == ["v", None]
        if mode.endswith("sc"):
            assert db.execute_command("SARTOR.GET", "k", "CONSISTENCY", "STRONG") == ["v", "strong"]
            assert db.execute_command("SARTOR.CONSISTENCY", "strong") and db.get("k") == "v"
        else:
            why = f"table default is in {mode}, which cannot answer strongly"
            refuses(db, "SARTOR.GET k CONSISTENCY STRONG", why)
            refuses(db, "SARTOR.CONSISTENCY strong", why)
        refuses(db, "SARTOR.CONSISTENCY best", f"a level of consistency is {WORDS}")
        refuses(db, "SARTOR.CONSISTENCY bounded", f"a level of consistency is {WORDS}")
        refuses(db, "SARTOR.CONSISTENCY bounded x", "value is not an integer")
        refuses(db, "SARTOR.GET k strong", "syntax: SARTOR.GET key [CONSISTENCY level]")
        # What was sent before keeps its level.
        pipe = cluster.client(node=2, **ONE).pipeline(transaction=False)
        for words in ("GET k", "READONLY", "SARTOR.CONSISTENCY", "GET k", "READWRITE", "SARTOR.CONSISTENCY"):
            pipe.execute_command(*words.split())
        assert pipe.execute() == ["v", True, "eventual", "v", True, "mode"]


def test_a_strong_connection_is_told_when_the_mode_no_longer_can():
    with started("--mode", "ms+sc") as cluster:
        dbs = [cluster.client(node=node, **ONE) for node in range(4)]
        dbs[0].set("k", "v")
        assert all(db.execute_command("SARTOR.CONSISTENCY", "strong") and db.get("k") == "v" for db in dbs)
        dbs[0].execute_command("SARTOR.SWITCH", "ms+ec")
        for db in dbs:
            refuses(db, "GET k", "this table's mode cannot answer strongly")
            assert db.set("k", "w") and db.execute_command("SARTOR.GET", "k") == ["w", "mode"]


def test_a_copy_that_hears_nobody_answers_what_may_be_old():
    """Of a shard with two copies the primary stands still, and no other node may take its place: the rest waits."""
    with started("--mode", "ms+ec", "--copies", "2", "--standbys", "0", "--nodes", "2", "--no-restart") as cluster:
        shard_of = shards_by_slot(cluster)
        shard = status(cluster)["shards"][0]
        head, other = [replica["node"] for replica in shard["replicas"]]
        key = next(key for key in map("r:{}".format, range(600)) if shard_of(key) == 0)
        db = cluster.client(node=other, socket_timeout=10, **ONE)
        assert db.set(key, "v") and db.wait(1, 5000) == 1
        read = lambda *level: db.execute_command("SARTOR.GET", key, "CONSISTENCY", *level)[0]
        wait_for(lambda: read("bounded", 300) == "v", "it is known to be fresh")
        signalled(status(cluster)["coordinator"], signal.SIGSTOP)
        try:
            with stopped(status(cluster)["nodes"][head], 0):
                assert read("eventual") == "v" and read("causal") == "v" and read("bounded", 60_000) == "v"
                time.sleep(3)
                assert read("eventual") == "v" and read("causal") == "v" and read("bounded", 60_000) == "v"
                for level in (["bounded", 500], ["mode"]):
                    with pytest.raises(redis.RedisError, match="LOADING|shard 0 does not answer"):
                        read(*level)
        finally:
            signalled(status(cluster)["coordinator"], signal.SIGCONT)
        wait_for(lambda: read("bounded", 500) == "v" and read("mode") == "v", "it goes on")
