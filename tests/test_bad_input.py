"""Clients that are broken, slow or hostile: they get an error or are closed; others notice nothing."""

import os
import resource
import socket
import time

import pytest
import redis

from conftest import Cluster, wait_for


def connect(cluster, node=0):
    return socket.create_connection(("127.0.0.1", cluster.port + node), timeout=10)


def rss(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def read_all(sock):
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize(
    "sent, said",
    [
        (b"*x\r\n", b"invalid multibulk length"),
        (b"*1\r\n:1\r\n", b"expected '$'"),
        (b"*1\r\n$-5\r\n", b"invalid bulk length"),
        (b"*2000000000\r\n", b"invalid multibulk length"),
        (b"*1\r\n$1073741824\r\n", b"invalid bulk length"),
        (b"*1\r\n$4\r\nPINGxx", b"does not end"),
        (b"SET a b\r\n", b"plain lines are off"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"plain lines are off"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100 + b"\n", b"plain lines are off"),
        (b"x" * 100000, b"too big inline request"),
    ],
)
def test_broken_framing_is_answered_and_closed(cluster, sent, said):
    with connect(cluster) as sock:
        sock.sendall(sent)
        answer = read_all(sock)
    assert said in answer and answer.startswith(b"-ERR" if said else b"")
    assert cluster.client().ping()


def test_ping_as_a_plain_line(cluster):
    with connect(cluster) as sock:
        sock.sendall(b"PING\r\nECHO you\r\nQUIT\r\n")
        assert read_all(sock) == b"+PONG\r\n$3\r\nyou\r\n+OK\r\n"


def test_oversized_keys_and_values(cluster):
    db = cluster.client()
    assert db.set("k" * 65536, "v") and db.get("k" * 65536) == b"v"
    with pytest.raises(redis.ResponseError, match="key-bytes-max"):
        db.set("k" * 65537, "v")
    value = b"v" * (16 << 20)
    assert db.set("big", value) and cluster.client(node=1).get("big") == value
    with pytest.raises(redis.ResponseError, match="value-bytes-max"):
        db.set("big", value + b"x")
    with pytest.raises(redis.ResponseError, match="exceeds maximum"):
        db.append("big", "x")
    assert db.strlen("big") == 16 << 20, "the connection goes on"
    with db.pipeline(transaction=False) as pipe:
        pipe.set("after", "1").set("big", value + b"x").get("after")
        answers = pipe.execute(raise_on_error=False)
    assert answers[0] is True and isinstance(answers[1], redis.ResponseError) and answers[2] == b"1"
    db.delete("big")


def test_announced_and_never_sent(cluster):
    pids = [node["pid"] for node in cluster.status()["nodes"]]
    before = rss(pids[0])
    socks = [connect(cluster) for _ in range(200)]
    for sock in socks:
        sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777216\r\nx")
    assert cluster.client().set("k", "v")
    assert rss(pids[0]) - before < 64 << 20, "memory follows what came, not what was announced"
    for sock in socks:
        sock.close()


def test_half_a_request_then_silence():
    cluster = Cluster("--copies", "1", "--standbys", "0")
    try:
        db = cluster.client()
        assert db.config_set("stall-timeout-ms", 300)
        with connect(cluster) as sock, connect(cluster) as idle:
            sock.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nhel")
            assert read_all(sock) == b""
            idle.sendall(b"PING\r\n")
            assert idle.recv(100) == b"+PONG\r\n", "who is idle between requests stays"
    finally:
        cluster.end()


def test_ten_thousand_idle_connections(cluster):
    pids = [node["pid"] for node in cluster.status()["nodes"]]
    before = rss(pids[1])
    socks = [connect(cluster, node=1) for _ in range(10_000)]
    try:
        assert cluster.client(node=1).set("idle", "x")
        assert rss(pids[1]) - before < 200 << 20
        for sock in socks[::1000]:
            sock.sendall(b"PING\r\n")
            assert sock.recv(100) == b"+PONG\r\n"
    finally:
        for sock in socks:
            sock.close()
    connected = lambda: cluster.client(node=1).info("clients")["connected_clients"] < 100
    wait_for(connected, "connections are gone")


def test_a_client_that_never_reads(cluster):
    db = cluster.client()
    assert db.set("mute", b"x" * (1 << 20))
    pids = [node["pid"] for node in cluster.status()["nodes"]]
    before = sum(map(rss, pids))
    get = b"*2\r\n$3\r\nGET\r\n$4\r\nmute\r\n"
    with connect(cluster) as sock:
        sock.settimeout(1)
        try:
            for _ in range(2000):
                sock.sendall(get * 100)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        for i in range(200):
            assert db.set("others", i) and db.get("others") == str(i).encode()
        assert sum(map(rss, pids)) - before < 400 << 20
    db.delete("mute")


def test_a_few_words_that_ask_for_too_much(cluster):
    db = cluster.client()
    assert db.set("{fat}", b"x" * (16 << 20))
    before = sum(rss(node["pid"]) for node in cluster.status()["nodes"])
    answers = db.mget(["{fat}"] * 1000)
    assert len(answers[0]) == 16 << 20 and "too large for one request" in str(answers[-1])
    del answers
    assert db.ping()
    assert sum(rss(node["pid"]) for node in cluster.status()["nodes"]) - before < 1 << 30
    db.delete("{fat}")


def test_too_many_connections_are_refused_clearly():
    cluster = Cluster("--copies", "1", "--standbys", "0")
    try:
        db = cluster.client()
        assert db.config_set("clients-max", 20)
        socks = [connect(cluster) for _ in range(30)]
        answers = []
        for sock in socks:
            sock.settimeout(0.3)
            try:
                answers.append(sock.recv(100))
            except TimeoutError:
                answers.append(None)
        assert any(answer and b"max number of clients" in answer for answer in answers)
        assert db.ping()
        for sock in socks:
            sock.close()
    finally:
        cluster.end()


def test_replies_come_even_if_the_client_closes_its_side(cluster):
    with connect(cluster, node=3) as sock:
        sock.sendall(b"".join(b"*2\r\n$4\r\nINCR\r\n$4\r\nhalf\r\n" for _ in range(2000)))
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"".join(b":%d\r\n" % i for i in range(1, 2001))


def test_the_peer_port_takes_no_client_commands(cluster):
    for offset in (300, 301, 201):
        with socket.create_connection(("127.0.0.1", cluster.port + offset), timeout=10) as sock:
            sock.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n" * 10)
            assert read_all(sock) == b""


def pipelined(cluster, *commands, node=0):
    """Raw replies to commands sent in one write, and then QUIT."""
    words = [command.split() for command in commands] + [["QUIT"]]
    data = b"".join(
        b"*%d\r\n" % len(w) + b"".join(b"$%d\r\n%s\r\n" % (len(x), x.encode()) for x in w) for w in words
    )
    with connect(cluster, node) as sock:
        sock.sendall(data)
        return read_all(sock).removesuffix(b"+OK\r\n")


def test_a_slow_reader_is_not_cut_off_while_it_reads():
    cluster = Cluster("--copies", "1", "--standbys", "0")
    try:
        assert cluster.client().config_set("stall-timeout-ms", 500)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.connect(("127.0.0.1", cluster.port))
            echo = b"*2\r\n$4\r\nECHO\r\n$20000\r\n" + b"x" * 20000 + b"\r\n"
            sock.sendall(echo * 200)
            got = 0
            while got < 200 * 20010:
                time.sleep(0.02)
                chunk = sock.recv(60000)
                assert chunk, f"cut off after {got} bytes"
                got += len(chunk)
    finally:
        cluster.end()


def test_a_client_that_leaves_during_wait_is_gone(cluster):
    db = cluster.client()
    for _ in range(50):
        with connect(cluster) as sock:
            sock.sendall(b"*3\r\n$4\r\nWAIT\r\n$1\r\n9\r\n$1\r\n0\r\n")
    wait_for(lambda: db.info("clients")["connected_clients"] < 10, "they are gone", 5)


def test_replies_behind_a_slow_command_are_bounded(cluster):
    pid = cluster.status()["nodes"][0]["pid"]
    before = rss(pid)
    echo = b"*2\r\n$4\r\nECHO\r\n$4000000\r\n" + b"x" * 4000000 + b"\r\n"
    with connect(cluster) as sock:
        sock.settimeout(1)
        sock.sendall(b"*3\r\n$4\r\nWAIT\r\n$1\r\n9\r\n$4\r\n3000\r\n")
        with pytest.raises(TimeoutError):
            for _ in range(60):
                sock.sendall(echo)
        assert rss(pid) - before < 64 << 20


def test_what_is_too_large_spoils_its_transaction(cluster):
    huge = "x" * ((16 << 20) + 1)
    answers = pipelined(cluster, "MULTI", "SET {s}a 1", f"SET {{s}}b {huge}", "SET {s}c 1", "EXEC", "EXISTS {s}a")
    assert answers.startswith(b"+OK\r\n+QUEUED\r\n-ERR a value")
    assert answers.endswith(b"-EXECABORT Transaction discarded because of previous errors.\r\n:0\r\n")


@pytest.mark.parametrize("forget", ["UNWATCH", "MULTI|DISCARD", "RESET"])
def test_a_watch_is_forgotten_even_if_its_answer_is_on_the_way(cluster, forget):
    answers = pipelined(cluster, "WATCH a", *forget.split("|"), "MULTI", "SET b 1", "EXEC", node=3)
    assert answers.endswith(b"*1\r\n+OK\r\n"), answers


def test_replies_speak_the_protocol_of_their_command(cluster):
    assert pipelined(cluster, "GET none:x", "HELLO 3").startswith(b"$-1\r\n%")
    assert pipelined(cluster, "HELLO 3", "GET none:x", "RESET", node=3).endswith(b"_\r\n+RESET\r\n")


def test_what_changes_the_connection_has_no_place_in_a_transaction(cluster):
    answers = pipelined(cluster, "MULTI", "CLIENT REPLY OFF", "SET m 2", "EXEC", "PING")
    assert b"not allowed inside of MULTI" in answers and answers.endswith(b"-EXECABORT Transaction discarded because of previous errors.\r\n+PONG\r\n")


def test_idle_clients_do_not_count_for_what_they_were_sent():
    cluster = Cluster("--copies", "1", "--standbys", "0")
    try:
        db = cluster.client()
        assert db.config_set("client-bytes-max", 20_000_000)
        idle = [cluster.client() for _ in range(120)]
        assert all(len(client.echo("x" * 200_000)) == 200_000 for client in idle)
        assert db.set("k", b"x" * 3_000_000)
    finally:
        cluster.end()


def test_running_out_of_file_descriptors_is_survived():
    cluster = Cluster("--copies", "1", "--standbys", "0")
    try:
        pid = cluster.status()["nodes"][0]["pid"]
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 30, used + 30))
        socks = [connect(cluster) for _ in range(50)]
        time.sleep(0.3)
        for sock in socks[:25]:
            sock.close()
        for sock in socks[30:45]:
            sock.sendall(b"PING\r\n")
            assert sock.recv(100) == b"+PONG\r\n", "it waited until there was room"
        for sock in socks[25:]:
            sock.close()
    finally:
        cluster.end()
