"""SARTOR.ONCE: commands that clients send again, at other nodes, while nodes die."""

import os
import signal
import subprocess
import threading
import time
import uuid
from contextlib import contextmanager

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conftest import SARTOR, free_port, wait_for
from test_failover import shards_by_slot, started, status, wait_healed

# What tells of an attempt only: the command may or may not have been done by another one.
TRY_AGAIN = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, redis.OutOfMemoryError)


def new_id():
    return str(uuid.uuid4())


def once(client, id, *words):
    return client.execute_command("SARTOR.ONCE", id, *words)


def until_answered(cluster, first_node, id, *words, seconds=20):
    """Sends a command under an id, at one node after the other, until one knows the answer."""
    deadline = time.monotonic() + seconds
    node = first_node
    while True:
        try:
            port = cluster.port + node % 4
            options = {"socket_timeout": 1, "retry": Retry(NoBackoff(), 0), "single_connection_client": True}
            with redis.Redis(port=port, **options) as client:
                return once(client, id, *words)
        except redis.RedisError as error:
            if not isinstance(error, TRY_AGAIN) and not str(error).startswith("UNCERTAIN"):
                raise
            assert time.monotonic() < deadline, f"{words} under {id}: {error}"
            time.sleep(0.02)
            node += 1


def test_every_node_gives_the_first_answer(cluster):
    clients = [cluster.client(node, decode_responses=True) for node in range(4)]
    commands = [
        (["INCR", "n"], 1),
        (["SET", "k", "v"], "OK"),
        (["SET", "k", "w", "NX"], None),
        (["GET", "k"], "v"),
        (["GETDEL", "k"], "v"),
        (["SETNX", "l", "x"], 1),
        (["APPEND", "l", "y"], 2),
        (["EXPIRE", "l", "100"], 1),
        (["TYPE", "l"], "string"),
        (["MSET", "a", "1", "b", "2", "c", "3", "d", "4"], True),
        (["MGET", "a", "b", "c", "d", "none"], ["1", "2", "3", "4", None]),
        (["DEL", "a", "b", "c", "none"], 3),
        (["EXISTS", "d", "d"], 2),
        (["SET", "d", "5", "GET"], "4"),
    ]
    ids = [new_id() for _ in commands]
    for id, (words, expected) in zip(ids, commands):
        assert once(clients[0], id, *words) in (expected, "OK"), words
    after = clients[0].mget("n", "k", "l", "a", "b", "c", "d")
    assert after == ["1", None, "xy", None, None, None, "5"]
    for client in clients:
        for id, (words, expected) in zip(ids, commands):
            assert once(client, id, *words) in (expected, "OK"), words
            if words[0] not in ("SET", "MSET"):
                assert once(client, id, *words) == expected, words
    assert clients[1].mget("n", "k", "l", "a", "b", "c", "d") == after


def test_an_error_is_an_answer_too(cluster):
    client, id = cluster.client(), new_id()
    client.set("word", "x")
    for node in range(3):
        with pytest.raises(redis.ResponseError, match="not an integer"):
            once(cluster.client(node), id, "INCR", "word")
        client.set("word", "1")
    assert client.get("word") == b"1"


def test_pipelined_repetitions_of_one_id(cluster):
    client, id = cluster.client(1), new_id()
    pipe = client.pipeline(transaction=False)
    for _ in range(50):
        pipe.execute_command("SARTOR.ONCE", id, "INCR", "pipelined")
        pipe.incr("beside")
    answers = pipe.execute()
    assert answers[::2] == [1] * 50 and answers[1::2] == list(range(1, 51))
    assert client.get("pipelined") == b"1"


def test_the_same_id_at_all_nodes_at_once(cluster):
    for attempt in range(20):
        id, answers = new_id(), []
        go = threading.Barrier(8)

        def ask(node, id=id, answers=answers, go=go):
            with cluster.client(node) as client:
                client.ping()
                go.wait()
                answers.append(once(client, id, "INCR", "raced"))

        threads = [threading.Thread(target=ask, args=(node % 4,)) for node in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [attempt + 1] * 8


def test_another_command_under_an_id_is_refused(cluster):
    client, id = cluster.client(), new_id()
    assert once(client, id, "SET", "own", "1")
    for words in (["SET", "own", "2"], ["GET", "own"], ["SET", "own", "1", "EX", "9"]):
        with pytest.raises(redis.ResponseError, match="belongs to another command"):
            once(cluster.client(1), id, *words)
    assert once(client, id, "set", "own", "1"), "the case of its name does not matter"
    assert client.get("own") == b"1"


@pytest.mark.parametrize(
    "words, text",
    [
        (["id"], "wrong number of arguments for 'sartor.once' command"),
        (["", "GET", "k"], "must have 1 to 64 bytes"),
        (["x" * 65, "GET", "k"], "must have 1 to 64 bytes"),
        (["id", "NOSUCH", "k"], "does not know the command 'NOSUCH'"),
        (["id", "GET"], "wrong number of arguments for 'get' command"),
        (["id", "SET", "k", "v", "PX"], "syntax error"),
        *(
            (["id", *words], f"it cannot run {words[0]}")
            for words in (
                ["MULTI"],
                ["EXEC"],
                ["WATCH", "k"],
                ["SCAN", "0"],
                ["WAIT", "0", "0"],
                ["INFO"],
                ["PING"],
                ["CONFIG", "SET", "pipeline-max", "7"],
                ["CLIENT", "SETNAME", "n"],
                ["SARTOR.STATUS"],
                ["SARTOR.ONCE", "id", "GET", "k"],
            )
        ),
    ],
)
def test_what_it_refuses(cluster, words, text):
    with cluster.client(single_connection_client=True) as client:
        before = client.config_get("pipeline-max"), client.client_getname()
        with pytest.raises(redis.ResponseError, match=text):
            client.execute_command("SARTOR.ONCE", *words)
        assert (client.config_get("pipeline-max"), client.client_getname()) == before
        # The connection goes on, and the id is free.
        assert once(client, new_id(), "SET", "k", "v")


def test_in_a_transaction_it_is_refused_and_exec_with_it(cluster):
    with cluster.client(single_connection_client=True) as client:
        client.execute_command("MULTI")
        with pytest.raises(redis.ResponseError, match="not allowed inside of MULTI"):
            once(client, new_id(), "SET", "k", "v")
        with pytest.raises(redis.exceptions.ExecAbortError):
            client.execute_command("EXEC")


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_is_a_command_like_the_others(cluster, protocol):
    client = cluster.client(protocol=protocol, decode_responses=True)
    assert "sartor.once" in client.command_list()
    client.response_callbacks.clear()  # redis-py takes every answer to COMMAND for a list of commands.
    assert "movablekeys" in str(client.execute_command("COMMAND", "INFO", "sartor.once"))
    assert "once" in str(client.execute_command("COMMAND", "DOCS", "sartor.once"))
    keys = client.execute_command("COMMAND", "GETKEYS", "SARTOR.ONCE", "id", "MSET", "a", "1", "b", "2")
    assert keys == ["a", "b"]
    with pytest.raises(redis.ResponseError):
        client.execute_command("COMMAND", "GETKEYS", "SARTOR.ONCE", "id")
    client = cluster.client(protocol=protocol, decode_responses=True)
    assert client.config_get("once-*") == {"once-ms": "600000", "once-max-bytes": str(16 << 20)}
    with pytest.raises(redis.ResponseError, match="at the start"):
        client.config_set("once-ms", 5)


def test_a_dead_head_takes_no_answer_along():
    with started() as cluster:
        shard_of = shards_by_slot(cluster)
        before = status(cluster)
        keys = {shard_of(key): key for key in (f"key{i}" for i in range(50))}
        ids = {shard: new_id() for shard in keys}
        for shard, key in keys.items():
            assert until_answered(cluster, 3, ids[shard], "INCR", key) == 1
        victim = before["shards"][0]["replicas"][0]["node"]
        os.kill(before["nodes"][victim]["pid"], signal.SIGKILL)
        for shard, key in keys.items():
            assert until_answered(cluster, victim + 1, ids[shard], "INCR", key) == 1
            assert until_answered(cluster, victim + 1, new_id(), "INCR", key) == 2
        wait_healed(cluster, before["epoch"])
        for shard, key in keys.items():
            for node in range(4):
                assert until_answered(cluster, node, ids[shard], "INCR", key) == 1


def test_increments_are_counted_once_while_nodes_are_killed():
    """Each client sends INCR under an id until it is answered; some send it again although it was."""
    with started() as cluster:
        stop, failures, counts = threading.Event(), [], {}

        def count(name):
            key, done = f"count{name}", 0
            try:
                while not stop.is_set():
                    id = new_id()
                    answer = until_answered(cluster, name, id, "INCR", key)
                    if done % 3 == 0:
                        assert until_answered(cluster, name + 1, id, "INCR", key) == answer
                    done += 1
                    assert answer == done, f"{key}: {answer} after {done}"
            except Exception as error:  # noqa: BLE001 (told by the main thread)
                failures.append(error)
            counts[key] = done

        threads = [threading.Thread(target=count, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for node in (0, 1, 2, 0):
            before = status(cluster)
            os.kill(before["nodes"][node]["pid"], signal.SIGKILL)
            wait_healed(cluster, before["epoch"])
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not failures, failures[0]
        assert sum(counts.values()) > 100
        for key, done in counts.items():
            assert int(cluster.client().get(key)) == done
        print(f"{sum(counts.values())} increments, each counted once, over 4 killed nodes")


@contextmanager
def small(folder, **settings):
    """A node alone, with these settings, and its coordinator; a client of it."""
    port = free_port()
    common = "cluster = 7\ndetect_ms = 500\n"
    coordinator = f'seed = 9\nlisten = "127.0.0.1:{port + 201}"\nhttp = "127.0.0.1:{port + 200}"\n'
    coordinator += f'dir = "{folder}"\nnodes = 1\nstandbys = 0\nshards = 1\ncopies = 1\n'
    coordinator += 'mode = "ms+sc"\ndatalet = "hash"\n'
    node = f'node = 0\nworkers = 1\nlisten = "127.0.0.1:{port}"\npeer_listen = "127.0.0.1:{port + 300}"\n'
    node += f'coordinator = "127.0.0.1:{port + 201}"\n[settings]\n'
    node += "".join(f"{name.replace('_', '-')} = {value}\n" for name, value in settings.items())
    processes = []
    try:
        for verb, text in (("coordinator", coordinator), ("serve", node)):
            file = folder / f"{verb}.toml"
            file.write_text(common + text)
            processes.append(subprocess.Popen([SARTOR, verb, "--config", str(file)]))
        client = redis.Redis(port=port, decode_responses=True)

        def answers():
            try:
                return client.set("ready", 1)
            except (redis.ConnectionError, redis.BusyLoadingError):
                return False

        wait_for(answers, "a node that serves")
        yield client
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_an_id_lasts_for_its_time_and_a_full_table_forgets_none(tmp_path):
    with small(tmp_path, once_ms=2000, once_max_bytes=3000) as client:
        start, ids = time.monotonic(), [new_id() for _ in range(30)]
        done = []
        for id in ids:
            try:
                once(client, id, "INCR", "n")
                done.append(id)
            except redis.OutOfMemoryError as error:
                assert "once-max-bytes" in str(error)
        assert 5 < len(done) < 20 and done == ids[: len(done)]
        assert int(client.get("n")) == len(done), "what is refused has no effect"
        answers = [once(client, id, "INCR", "n") for id in done]
        if time.monotonic() < start + 1.9:
            assert answers == list(range(1, len(done) + 1))
            assert client.incr("n") == len(done) + 1, "other commands go on"
        time.sleep(2.1)
        before = int(client.get("n"))
        assert [once(client, id, "INCR", "n") for id in ids[:3]] == [before + 1, before + 2, before + 3]
