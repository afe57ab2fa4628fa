"""The same commands to Sartor and to a real Redis: the same replies, byte for byte."""

import random
import shlex
import socket

import pytest


class Raw:
    """A connection that keeps replies as they come."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def send(self, words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        data = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        self.socket.sendall(data)

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"$" and int(rest) >= 0:
            return line + self.file.read(int(rest) + 2)
        if kind in b"*~%" and int(rest) >= 0:
            count = int(rest) * (2 if kind == b"%" else 1)
            return line + b"".join(self.reply() for _ in range(count))
        return line

    def ask(self, *words):
        self.send(words)
        return self.reply()


@pytest.fixture
def both(cluster, redis_server):
    pair = Raw(cluster.port), Raw(redis_server)
    for connection in pair:
        connection.ask("FLUSHALL")
    return pair


COMMANDS = """
GET a|SET a 1|GET a|SET a 2 NX|SET a 2 XX|SET b 2 XX|SET b 2 NX GET|SET a 3 GET|SET a 3 XX GET|SET c x GET
SET a 1 NX XX|SET a 1 EX|SET a 1 EX 0|SET a 1 EX -1|SET a 1 EX x|SET a 1 EX 10 PX 10|SET a 1 EX 10 KEEPTTL|SET a 1 NX NX
SET a 1 EX 100|TTL a|SET a 2 KEEPTTL|TTL a|SET a 2|TTL a|TTL none|PTTL none|PTTL a|SET a 1 PXAT 1|GET a|EXISTS a
SET a 1 EXAT 99999999999|EXPIRETIME a|PEXPIRETIME a|EXPIRETIME none|PERSIST a|PERSIST a|PERSIST none|EXPIRETIME a
SETNX a 1|SETNX n 1|SETNX n 2|GET n|SETEX s 100 v|TTL s|SETEX s 0 v|SETEX s x v|PSETEX s 100000 v|TTL s|GETSET s w|GETSET t w
GETDEL s|GETDEL s|GETEX t|GETEX t EX 100|TTL t|GETEX t PERSIST|TTL t|GETEX t EX 1 PERSIST|GETEX t NOPE|GETEX none
MSET x 1 y 2 z 3|MGET x y z none|MSET x|MSET x 1 y|DEL x y none|UNLINK z none|EXISTS a a none|TOUCH a b|DEL
INCR i|INCR i|DECR i|INCRBY i 10|DECRBY i 3|INCRBY i x|INCRBY i 1.5|INCRBY i|INCR a|SET w word|INCR w|DECRBY i -9223372036854775808
SET big 9223372036854775807|INCR big|SET big " 1"|INCR big|SET big 01|INCR big|SET big -9223372036854775808|DECR big
APPEND p x|APPEND p yz|STRLEN p|STRLEN none|GETRANGE p 0 -1|GETRANGE p 1 1|GETRANGE p -2 -1|GETRANGE p 5 9|GETRANGE p -1 -3|GETRANGE none 0 1
SETRANGE p 1 AB|SETRANGE r 3 x|SETRANGE r -1 x|SETRANGE q 2 ""|EXISTS q|GET r
EXPIRE p 100|TTL p|EXPIRE p 200 NX|EXPIRE p 200 XX|EXPIRE p 100 GT|EXPIRE p 300 GT|EXPIRE p 100 LT|EXPIRE p 200 LT|TTL p
EXPIRE p 10 NX XX|EXPIRE p 10 GT LT|EXPIRE p 10 NOPE|EXPIRE p x|EXPIRE none 10|EXPIRE p -1|EXISTS p|PEXPIRE r 100000|TTL r|EXPIREAT r 1|GET r
EXPIRE a 9223372036854775807|EXPIRE a -9223372036854775808|TYPE a|TYPE none|DBSIZE|PING|PING hello|PING a b|ECHO x|ECHO|SELECT 0|SELECT x
MULTI|SET m 1|INCR m|GET m|EXEC|MULTI|MULTI|DISCARD|DISCARD|EXEC|MULTI|INCR|SET m 1|EXEC|MULTI|EXEC|WATCH m|MULTI|WATCH m|GET m|EXEC
MULTI|PING|ECHO x|SELECT 0|MGET m m|DEL m m|EXISTS m|SETNX m 5|SETNX m 6|TYPE m|EXEC|WATCH m|UNWATCH|MULTI|INCR m|SET w x|INCR w|EXEC
WATCH m|SET m 9|MULTI|GET m|EXEC|WATCH m|SET m 9|DISCARD|MULTI|GET m|DISCARD|GET m|FLUSHALL|DBSIZE|FLUSHDB|FLUSHALL ASYNC|FLUSHALL NOPE
SELECT 0|READWRITE x|HELLO 9|HELLO x|AUTH x|AUTH a b c d|CLIENT SETNAME foo|CLIENT GETNAME|CLIENT SETNAME "a b"|CLIENT NOPE|CONFIG NOPE|CONFIG GET save
COMMAND GETKEYS MSET a 1 b 2|COMMAND GETKEYS GET|COMMAND GETKEYS PING|COMMAND INFO nosuch|NOSUCH a b c|GET|GET a b|SET a|RESET|QUIT
"""


# Where a difference is on purpose, or a matter of wording only.
DIFFERENT = {
    "READWRITE x": "cluster only in Redis",
    "AUTH a b c d": "wording",
    "CLIENT NOPE": "wording",
    "CONFIG NOPE": "wording",
    "SELECT x": "wording",
    "FLUSHALL NOPE": "wording",
    "COMMAND GETKEYS GET": "wording",
    "COMMAND GETKEYS PING": "wording",
}


@pytest.mark.parametrize("resp", [2, 3])
def test_known_commands(both, resp):
    for connection in both:
        connection.ask("HELLO", resp)
    different = []
    for line in COMMANDS.strip().splitlines():
        for command in line.split("|"):
            ours, theirs = [connection.ask(*shlex.split(command)) for connection in both]
            if ours != theirs and command not in DIFFERENT:
                different.append((command, ours, theirs))
    assert not different, "\n".join(map(str, different))


def random_command(rng):
    key = rng.choice("abcdefgh")
    value = rng.choice(["1", "-5", "x", "", "hello world", "9" * 18, "a" * 100])
    number = rng.choice([0, 1, -1, 7, 100, -100])
    expiry = rng.choice([[], [], [], ["EX", 1000], ["PX", 1000000], ["KEEPTTL"]])
    return rng.choice(
        [
            ["GET", key],
            ["SET", key, value, *expiry, *rng.choice([[], [], ["NX"], ["XX"], ["GET"], ["XX", "GET"]])],
            ["DEL", key, rng.choice("abcdefgh")],
            ["INCRBY", key, number],
            ["APPEND", key, value],
            ["STRLEN", key],
            ["GETRANGE", key, number, rng.choice([0, 3, -1, 50])],
            ["SETRANGE", key, rng.choice([0, 3, 20]), value],
            ["GETDEL", key],
            ["GETSET", key, value],
            ["EXPIRE", key, rng.choice([1000, 2000]), *rng.choice([[], ["NX"], ["XX"]])],
            ["PERSIST", key],
            ["TTL", key],
            ["EXISTS", key, key, rng.choice("abcdefgh")],
            ["MGET", *"abcdefgh"],
            ["MSET", key, value, rng.choice("abcdefgh"), number],
            ["TYPE", key],
            ["DBSIZE"],
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_commands(both, seed):
    rng = random.Random(seed)
    for _ in range(40):
        batch = [random_command(rng) for _ in range(rng.choice([1, 5, 50]))]
        if rng.random() < 0.3:
            batch = [["MULTI"], *batch, ["EXEC"]]
        for connection in both:
            for words in batch:
                connection.send(words)
        replies = [[connection.reply() for _ in batch] for connection in both]
        for words, ours, theirs in zip(batch, *replies):
            assert ours == theirs, (words, batch)
