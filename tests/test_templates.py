"""Stores of a user's own: the templates in three languages pass the conformance suite, their messages are those of
datalet.proto, and a program with a datalet or modes of its own has all of Sartor around them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys

import pytest
import redis
from google.protobuf import descriptor_pb2, message_factory, text_format

from conftest import SARTOR, Cluster, free_port, wait_for
from history import Load, check_nothing_lost

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
TEMPLATES = os.path.join(ROOT, "templates")
TARGET = os.environ.get("TARGET", os.path.join(ROOT, "target"))
LANGUAGES = ["python", "go", "cpp"]

sys.path.insert(0, os.path.join(TEMPLATES, "python"))
import sartor_datalet  # noqa: E402


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """How to start the template of each language, and the checker."""
    out = os.path.join(TARGET, "templates")
    os.makedirs(out, exist_ok=True)
    run = lambda *command, **options: subprocess.run(command, check=True, **options)
    run("go", "build", "-o", f"{out}/map_datalet_go", ".", cwd=f"{TEMPLATES}/go")
    run("make", "-s", f"OUT={out}", cwd=f"{TEMPLATES}/cpp")
    run("cargo", "build", "-q", "-p", "sartor-datalets", "--example", "check_remote", "--target-dir", TARGET, cwd=ROOT)
    return {
        "python": [sys.executable, f"{TEMPLATES}/python/dict_datalet.py"],
        "go": [f"{out}/map_datalet_go"],
        "cpp": [f"{out}/map_datalet"],
        "check": [f"{TARGET}/debug/examples/check_remote"],
    }


@pytest.fixture(params=LANGUAGES)
def start(request, programs):
    """Starts a store of this language at an address."""
    started = []

    def start(address):
        store = subprocess.Popen([*programs[request.param], address], stderr=subprocess.PIPE, text=True)
        started.append(store)
        return store

    yield start
    for store in started:
        store.kill()
        store.wait()
        store.stderr.close()


def connect(address):
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
    else:
        host, port = address.split(":")
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(30)
    return sock


def listens(address):
    try:
        connect(address).close()
        return True
    except OSError:
        return False


def test_each_template_is_short():
    for file in ["python/dict_datalet.py", "go/main.go", "cpp/map_datalet.cpp"]:
        with open(os.path.join(TEMPLATES, file)) as text:
            assert len(text.readlines()) < 100, file


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_each_template_conforms(start, programs, tmp_path, where):
    address = f"127.0.0.1:{free_port()}" if where == "tcp" else f"{tmp_path}/store.sock"
    if where == "unix":
        # A process that was killed has left it.
        old = socket.socket(socket.AF_UNIX)
        old.bind(address)
        old.close()
    start(address)
    wait_for(lambda: listens(address), "it listens")
    done = subprocess.run([*programs["check"], address], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") >= 9 and "FAILS" not in done.stdout, done.stdout


def test_the_checker_fails_where_nobody_is(programs):
    done = subprocess.run([*programs["check"], "127.0.0.1:1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "cannot connect" in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """The messages of datalet.proto, as protobuf itself makes them."""
    file = str(tmp_path_factory.mktemp("proto") / "datalet")
    subprocess.run(["protoc", "-I", TEMPLATES, f"--descriptor_set_out={file}", "datalet.proto"], check=True)
    with open(file, "rb") as descriptors:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read())
    prefix = "sartor.datalet.v1."
    return {name.removeprefix(prefix): kind for name, kind in message_factory.GetMessages(files.file).items()}


def test_the_golden_messages_are_those_of_the_proto(messages):
    with open(os.path.join(TEMPLATES, "golden.txt")) as text:
        _, *parts = text.read().strip().split("\n\n")
    assert [part.split("\n")[0] for part in parts] == ["Batch", "Results"]
    for part in parts:
        name, *words, golden = part.split("\n")
        message = text_format.Parse("\n".join(words), messages[name]())
        assert message.SerializeToString(deterministic=True).hex() == golden, name


def batch(messages, *operations, bytes_max=0):
    return messages["Batch"](operations=operations, bytes_max=bytes_max)


def exchange(messages, sock, batch):
    message = batch.SerializeToString()
    sock.sendall(len(message).to_bytes(4, "little") + message)
    return receive(messages, sock)


def receive(messages, sock):
    def exactly(size):
        got = b""
        while len(got) < size:
            more = sock.recv(size - len(got))
            if not more:
                raise ConnectionError("closed")
            got += more
        return got

    return messages["Results"].FromString(exactly(int.from_bytes(exactly(4), "little")))


def test_each_template_has_one_owner_and_says_what_is_wrong(start, messages, tmp_path):
    address = f"{tmp_path}/store.sock"
    start(address)
    wait_for(lambda: listens(address), "it listens")
    hello = lambda owner: dict(hello=dict(version=1, owner=owner))
    ask = lambda sock, *operations, **options: exchange(messages, sock, batch(messages, *operations, **options))
    first, second = connect(address), connect(address)
    # Who did not say hello is told to.
    results = ask(second, dict(put=dict(key=b"k", value=b"v")), dict(get=b"k"))
    assert len(results.results) == 1 and "hello" in results.results[0].error
    results = ask(first, hello(1), dict(put=dict(key=b"k", value=b"v")), dict(get=b"k"), dict(get=b"none"), dict(mark={}))
    kinds = [result.WhichOneof("result") for result in results.results]
    assert kinds[:4] == ["capabilities", "done", "value", "nothing"] and kinds[4] in ("nothing", "error")
    assert results.results[2].value == b"v" and results.generation != 0
    # The same owner on another connection finds what it left; the old connection is closed.
    again = ask(second, hello(1), dict(get=b"k"))
    assert again.generation == results.generation and again.results[1].value == b"v"
    with pytest.raises(ConnectionError):
        ask(first, dict(get=b"k"))
    # Another owner is another life.
    third = connect(address)
    other = ask(third, hello(2), dict(get=b"k"))
    assert other.generation not in (0, results.generation) and other.results[1].value == b"v"
    # The first error is the last result, and what is behind it is not done.
    failed = ask(third, dict(commit=dict(mark=b"m")), dict(clear={}))
    assert [result.WhichOneof("result") for result in failed.results] == ["error"]
    assert ask(third, dict(len={})).results[0].count == 1
    # So is an operation of a newer version; a field that is not known is passed over.
    newer = b"\x0a\x03\xf2\x06\x00" + b"\x78\x07"
    assert "error" == exchange(messages, third, messages["Batch"].FromString(newer)).results[0].WhichOneof("result")
    # Once there are as many bytes as are wanted, the rest is not done.
    cut = ask(third, dict(get=b"k"), dict(get=b"k"), dict(get=b"k"), bytes_max=2)
    assert len(cut.results) == 2
    first.close(), second.close(), third.close()


def test_each_template_survives_garbage(start, messages, tmp_path):
    address = f"{tmp_path}/store.sock"
    store = start(address)
    wait_for(lambda: listens(address), "it listens")
    owner = connect(address)
    hello = batch(messages, dict(hello=dict(version=1, owner=1)), dict(put=dict(key=b"k", value=b"v")))
    assert len(exchange(messages, owner, hello).results) == 2
    noise = random.Random(1)
    frames = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xff", b"\x05\x00"]
    for size in range(1, 40):
        frames.append(size.to_bytes(4, "little") + noise.randbytes(size))
    for frame in frames:
        other = connect(address)
        other.sendall(frame)
        # It is answered or closed, with or without what it sent having been read.
        with contextlib.suppress(ConnectionError, OSError):
            other.shutdown(socket.SHUT_WR)
            while other.recv(1000):
                pass
        other.close()
    assert exchange(messages, owner, batch(messages, dict(get=b"k"))).results[0].value == b"v"
    assert store.poll() is None
    owner.close()


def test_the_codec_in_python_is_protobuf(messages):
    """Random messages: what the codec makes of them and what protobuf does are the same."""
    chance = random.Random(7)
    data = lambda: chance.randbytes(chance.choice([0, 1, 127, 128, 300, 70000]))
    number = lambda: chance.choice([0, 1, 127, 128, 1 << 32, (1 << 64) - 1])
    for _ in range(300):
        assert sartor_datalet.read_varint(sartor_datalet.varint(value := number()), 0)[0] == value
        pair, walk = (data(), data()), (data(), number(), number())
        asked = batch(
            messages,
            dict(put=dict(key=pair[0], value=pair[1])),
            dict(walk=dict(after=walk[0], pairs_max=walk[1], bytes_max=walk[2])),
            bytes_max=number(),
        )
        fields = list(sartor_datalet.fields(asked.SerializeToString()))
        assert dict(fields).get(2, 0) == asked.bytes_max
        ((kind, content),) = sartor_datalet.fields(fields[0][1])
        assert kind == 3 and [dict(sartor_datalet.fields(content)).get(i, b"") for i in (1, 2)] == list(pair)
        ((kind, content),) = sartor_datalet.fields(fields[1][1])
        got = dict(sartor_datalet.fields(content))
        assert kind == 5 and (got.get(1), got.get(2, 0), got.get(3, 0)) == walk
        pairs = [(data(), data()) for _ in range(chance.randrange(4))]
        answer, size = sartor_datalet.page(iter(pairs), 2, 1 << 40)
        page = messages["Result"].FromString(answer).pairs
        assert [(pair.key, pair.value) for pair in page.pairs] == pairs[:2]
        assert page.HasField("next") == (len(pairs) > 2) and page.next == (pairs[1][0] if len(pairs) > 2 else b"")
        assert size == sum(len(key) + len(value) for key, value in pairs[:2])


@pytest.fixture(scope="module")
def own():
    """The example of a program of one's own."""
    folder = os.path.join(ROOT, "examples/own-datalet")
    for verb in ("test", "build"):
        subprocess.run(["cargo", verb, "-q", "--locked", "--target-dir", TARGET], cwd=folder, check=True)
    return os.path.join(TARGET, "debug/own-datalet")


def test_a_program_of_ones_own_has_all_of_sartor(own):
    cluster = Cluster("--datalet", "mine", "--shards", "2", program=own)
    try:
        status = cluster.status()
        assert {r["datalet"] for shard in status["shards"] for r in shard["replicas"]} == {"mine"}
        assert cluster.client().set("k", "v") and cluster.client(node=1).get("k") == b"v"
        # Its nodes are started from the same program: one that died comes back with the same store.
        os.kill(status["nodes"][2]["pid"], signal.SIGKILL)
        settled = lambda: (now := cluster.status())["health"] == "healthy" and now["nodes"][2]["state"] == "standby"
        wait_for(settled, "it is back", 20)
        assert all(cluster.client(node=node).get("k") == b"v" for node in (0, 1, 3))
        # It can be switched from and to by name.
        assert cluster.client().execute_command("SARTOR.SWITCH", "DATALET", "hash")
        assert cluster.client().execute_command("SARTOR.SWITCH", "DATALET", "mine")
        assert cluster.client().get("k") == b"v"
    finally:
        cluster.end()
    done = subprocess.run([own, "up", "--datalet", "nosuch"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2 and "mine" in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def own_modes():
    """The example of a program with modes of one's own."""
    folder = os.path.join(ROOT, "examples/own-controlet")
    for verb in ("test", "build"):
        subprocess.run(["cargo", verb, "-q", "--locked", "--target-dir", TARGET], cwd=folder, check=True)
    return os.path.join(TARGET, "debug/own-controlet")


def test_a_mode_of_ones_own_is_begun_in_and_switched_to(own_modes):
    cluster = Cluster("--mode", "semi-sync", "--shards", "1", program=own_modes)
    try:
        status = cluster.status()
        assert [r["role"] for r in status["shards"][0]["replicas"]] == ["primary", "secondary", "secondary"]
        at = [cluster.port + node for node in range(3)]
        load = Load(at, connections=9, prefix="p")
        with load:
            wait_for(lambda: load.written_since(0), "the load is going")
            os.kill(status["nodes"][0]["pid"], signal.SIGKILL)
            wait_for(lambda: cluster.status(1)["health"] == "healthy", "it is repaired", 20)
            for mode in "ms+sc", "semi-sync", "aa+ec", "semi-sync":
                command = [own_modes, "switch", "--mode", mode, "--endpoint", f"127.0.0.1:{at[1]}"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                assert done.returncode == 0 and f": {mode}, 3 copies" in done.stdout, done
        assert not load.errors, load.errors[0]
        assert check_nothing_lost(load.operations, load.final(at[1])[0]) is None
        # Another controlet is behind that one: at once it is said that no table can go there.
        command = [own_modes, "switch", "--mode", "first-only", "--endpoint", f"127.0.0.1:{at[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "different controlets" in done.stderr, done
        strong = cluster.client(1).execute_command
        with pytest.raises(redis.ResponseError, match="semi-sync, which cannot answer strongly"):
            strong("SARTOR.CONSISTENCY", "strong")
    finally:
        cluster.end()
    cluster = Cluster("--mode", "first-only", "--shards", "1", program=own_modes)
    try:
        assert cluster.client(1).set("k", "v") and cluster.client(2).get("k") == b"v"
        assert [r["role"] for r in cluster.status()["shards"][0]["replicas"]] == ["head", "spare", "spare"]
    finally:
        cluster.end()
    for words in ["up"], ["sim"], ["chaos"], ["switch"]:
        done = subprocess.run([own_modes, *words, "--mode", "nosuch"], capture_output=True, text=True, timeout=10)
        assert done.returncode == 2 and "semi-sync, first-only" in done.stderr and done.stderr.count("\n") == 1
        done = subprocess.run([own_modes, *words, "--help"], capture_output=True, text=True, timeout=10)
        assert "semi-sync" in done.stdout
    # Sartor itself does not know it.
    done = subprocess.run([SARTOR, "up", "--mode", "semi-sync"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2 and "unknown mode" in done.stderr
