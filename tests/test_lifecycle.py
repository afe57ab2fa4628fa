"""Starting, ending, dying: no process and no port is left behind."""

import os
import signal
import socket
import subprocess
import time

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conftest import SARTOR, Cluster, free_port, wait_for


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # It may end between the two.
        return False


def ports_free(port):
    for offset in [0, 1, 2, 3, 200, 201, 300, 301, 302, 303]:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port + offset))
            except OSError:
                return False
    return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_is_complete(how):
    cluster = Cluster()
    pids = cluster.pids()
    assert len(pids) == 5 and all(alive(pid) for pid in pids)
    os.kill(pids[2], signal.SIGSTOP)  # A stopped process must go too.
    cluster.up.send_signal(how)
    wait_for(lambda: not any(map(alive, pids)) and cluster.up.poll() is not None, "processes end", 5)
    wait_for(lambda: ports_free(cluster.port), "ports are free", 5)
    cluster.end()


def test_the_status():
    cluster = Cluster()
    try:
        status = cluster.status(node=3)
        assert status["health"] == "healthy"
        assert [node["state"] for node in status["nodes"]] == ["up", "up", "up", "standby"]
        assert [node["id"] for node in status["nodes"]] == [0, 1, 2, 3]
        assert status["nodes"][1]["addr"] == f"127.0.0.1:{cluster.port + 1}"
        slots = [shard["slots"] for shard in status["shards"]]
        assert slots[0][0][0] == 0 and slots[-1][-1][1] == 16383
        for shard in status["shards"]:
            assert shard["mode"] == "ms+sc" and shard["table"] == "default"
            assert [r["role"] for r in shard["replicas"]] == ["head", "middle", "tail"]
            assert {r["datalet"] for r in shard["replicas"]} == {"hash"}
        # Without the coordinator it still answers, and says so.
        os.kill(status["coordinator"]["pid"], signal.SIGSTOP)
        wait_for(lambda: cluster.status()["coordinator"]["state"] == "down", "the coordinator is missed", 5)
        assert cluster.status()["health"] == "healthy"
        os.kill(status["coordinator"]["pid"], signal.SIGCONT)
        wait_for(lambda: cluster.status()["coordinator"]["state"] == "up", "the coordinator is back", 5)
    finally:
        cluster.end()


def test_who_dies_is_told_and_started_again():
    cluster = Cluster("--shards", "1")
    try:
        db = cluster.client()
        db.set("k", "v")
        before = cluster.status()
        tail = before["nodes"][2]["pid"]
        os.kill(tail, signal.SIGKILL)
        # Started again, it is not the old member: that one is gone, and the standby has its place.
        node = lambda: cluster.status()["nodes"][2]
        wait_for(lambda: node()["pid"] not in (0, tail) and node()["state"] == "standby", "it is back", 10)
        wait_for(lambda: cluster.status()["health"] == "healthy", "the standby has its place", 10)
        assert [r["node"] for r in cluster.status()["shards"][0]["replicas"]] == [0, 1, 3]
        assert cluster.client(node=2).get("k") == b"v"
        assert db.set("k", "w")
        settled = lambda: cluster.status()["nodes"][3]["state"] == "up"
        wait_for(settled, "the newcomer counts", 10)
        before = cluster.status()
        os.kill(before["coordinator"]["pid"], signal.SIGKILL)
        wait_for(lambda: cluster.status()["coordinator"]["pid"] != before["coordinator"]["pid"], "coordinator is back", 5)
        time.sleep(1)
        assert cluster.status()["epoch"] == before["epoch"], "its map is on disk, and nobody is taken for dead"
    finally:
        cluster.end()


def test_the_dead_stay_dead_if_told_so():
    cluster = Cluster("--no-restart")
    try:
        os.kill(cluster.status()["nodes"][0]["pid"], signal.SIGKILL)
        wait_for(lambda: cluster.status(node=1)["nodes"][0]["state"] == "down", "the death is noticed", 5)
        healthy = lambda: cluster.status(node=1)["health"] == "healthy"
        wait_for(healthy, "the standby has its place", 10)
        # The next two leave one copy of each shard, the last one none of some.
        for node in (1, 2):
            os.kill(cluster.status(node=3)["nodes"][node]["pid"], signal.SIGKILL)
            gone = lambda node=node: all(
                node not in [r["node"] for r in shard["replicas"]] for shard in cluster.status(node=3)["shards"]
            )
            wait_for(gone, "it is taken out", 10)
        status = cluster.status(node=3)
        assert status["health"] == "degraded" and status["tolerates"] == 0
        assert cluster.client(node=3).set("k", "v")
    finally:
        cluster.end()


def test_a_shard_without_any_copy_says_so_and_begins_anew_empty():
    cluster = Cluster("--shards", "1", "--copies", "1", "--standbys", "0", "--nodes", "2")
    try:
        assert cluster.client().set("k", "v")
        status = cluster.status(node=1)
        other = cluster.client(node=1, retry=Retry(NoBackoff(), 0), socket_timeout=30)
        # It stands still for longer than a request waits: nobody else has the data, so nobody may take over.
        os.kill(status["nodes"][0]["pid"], signal.SIGSTOP)
        wait_for(lambda: cluster.status(node=1)["health"] == "down", "it is missed", 5)
        for command in [("set", "k", "w"), ("get", "k")]:
            with pytest.raises(redis.exceptions.BusyLoadingError):
                other.execute_command(*command)
        os.kill(status["nodes"][0]["pid"], signal.SIGCONT)
        wait_for(lambda: cluster.status(node=1)["health"] == "healthy", "it is back", 5)
        assert other.get("k") == b"v"
        os.kill(status["nodes"][0]["pid"], signal.SIGKILL)
        wait_for(lambda: cluster.status(node=1)["shards"][0]["empty_since"] > 1, "it begins anew", 10)
        wait_for(lambda: cluster.status(node=1)["health"] == "healthy", "it serves", 5)
        assert cluster.client(node=1).get("k") is None
    finally:
        cluster.end()


def test_a_folder_is_started_again_as_it_was(tmp_path):
    cluster = Cluster("--dir", str(tmp_path), "--shards", "2", "--copies", "2", "--datalet", "tree")
    first = cluster.status()
    assert cluster.client().set("k", "v")
    cluster.end()
    done = subprocess.run([SARTOR, "up", "--dir", str(tmp_path), "--shards", "5"], capture_output=True, text=True)
    assert done.returncode == 2 and "another shape" in done.stderr and done.stderr.count("\n") == 1
    again = Cluster("--dir", str(tmp_path))
    try:
        status = again.status()
        assert len(status["shards"]) == 2 and status["epoch"] > first["epoch"]
        assert all(shard["empty_since"] > 1 for shard in status["shards"]), "it says that the data is gone"
        assert {r["datalet"] for shard in status["shards"] for r in shard["replicas"]} == {"tree"}
        # In memory nothing is kept, and nothing old is mixed with it.
        assert all(again.client(node=node).get("k") is None for node in range(3))
        other = subprocess.run([SARTOR, "up", "--dir", str(tmp_path)], capture_output=True, text=True)
        assert other.returncode == 2 and "another cluster runs in" in other.stderr
    finally:
        again.end()


@pytest.mark.parametrize(
    "options, said",
    [
        (["--shards", "0"], "--shards 0"),
        (["--shards", "x"], "'x'"),
        (["--shards", "99999"], "99999"),
        (["--copies", "0"], "--copies 0"),
        (["--nodes", "2"], "need 4 nodes"),
        (["--workers", "0"], "--workers 0"),
        (["--mode", "nosuch"], "ms+ec"),
        (["--datalet", "nosuch"], "hash, tree"),
        (["--port", "65500"], "--port 65500"),
        (["--dir", "/proc/nosuch"], "/proc/nosuch"),
        (["--nosuch"], "--nosuch"),
    ],
)
def test_bad_options_are_one_clear_line(options, said):
    done = subprocess.run([SARTOR, "up", *options], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_taken_port_is_one_clear_line():
    with socket.socket() as taken:
        port = free_port()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port + 201))
        taken.listen()
        done = subprocess.run([SARTOR, "up", "--port", str(port)], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert f"127.0.0.1:{port + 201} is taken" in done.stderr and done.stderr.count("\n") == 1


def test_status_of_nobody_is_one_clear_line():
    done = subprocess.run([SARTOR, "status", "--endpoint", "127.0.0.1:1"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1


def test_nobody_reads_the_output(cluster):
    command = f"{SARTOR} status --endpoint 127.0.0.1:{cluster.port} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("Healthy") and done.stderr == ""


def test_replicas_end_equal_and_expiry_is_the_same_everywhere(cluster):
    db = cluster.client()
    for i in range(500):
        db.set(f"e:{i}", i, px=None if i % 2 else 300)
    assert db.wait(2, 5000) == 2
    nodes = [cluster.client(node=node) for node in range(4)]
    readers = [node for node in nodes if node.execute_command("READONLY")]
    want = {f"e:{i}".encode() for i in range(1, 500, 2)}
    for node in readers:
        wait_for(lambda: set(node.scan_iter("e:*", count=1000)) == want, "expired everywhere", 5)
    wait_for(lambda: db.dbsize() == 250, "removed", 5)
    with pytest.raises(redis.ResponseError, match="out of range"):
        db.execute_command("SELECT", 1)


def test_processes_from_files(tmp_path):
    """The files of docs/running.md, on this machine."""
    port = free_port()
    text = open(os.path.join(os.path.dirname(__file__), "../docs/running.md")).read()
    coordinator, node = [part.split("```")[0] for part in text.split("```toml\n")[1:]]

    def here(toml, index):
        for there, port_here in [("10.0.0.1:7580", port + 201), ("127.0.0.1:7579", port + 200)]:
            toml = toml.replace(there, f"127.0.0.1:{port_here}")
        toml = toml.replace("10.0.0.2:7379", f"127.0.0.1:{port + index}")
        toml = toml.replace("10.0.0.2:7679", f"127.0.0.1:{port + 300 + index}")
        toml = toml.replace("/run/sartor/node-0.sock", str(tmp_path / f"node-{index}.sock"))
        return toml.replace("node = 0", f"node = {index}").replace("/var/lib/sartor", str(tmp_path))

    verbs = [("coordinator", here(coordinator, 0))] + [("serve", here(node, i)) for i in range(4)]
    processes = []
    try:
        for number, (verb, toml) in enumerate(verbs):
            file = tmp_path / f"{number}.toml"
            file.write_text(toml)
            processes.append(subprocess.Popen([SARTOR, verb, "--config", str(file)]))

        def serves():
            try:
                return redis.Redis(port=port + 3).set("k", "v") and redis.Redis(port=port).get("k") == b"v"
            except redis.RedisError:
                return False

        wait_for(serves, "the cluster serves")
        assert redis.Redis(unix_socket_path=str(tmp_path / "node-3.sock")).get("k") == b"v"
        assert redis.Redis(port=port).config_get("pipeline-max") == {"pipeline-max": "2048"}
    finally:
        for process in processes:
            process.kill()
            process.wait()
    exposed = tmp_path / "exposed.toml"
    exposed.write_text(verbs[1][1].replace("127.0.0.1", "0.0.0.0").replace("unprotected = true", ""))
    done = subprocess.run([SARTOR, "serve", "--config", str(exposed)], capture_output=True, text=True)
    assert done.returncode == 1 and "no authentication" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_clients_of_this_machine_may_use_unix_sockets(tmp_path, workers):
    """The same cluster is behind them, also after a node was killed and its socket left behind."""
    cluster = Cluster("--unix", str(tmp_path / "new"), "--workers", workers)
    sockets = [tmp_path / "new" / f"node-{node}.sock" for node in range(4)]
    client = lambda node: redis.Redis(unix_socket_path=str(sockets[node]))
    try:
        clients = [client(node) for node in range(4) for _ in range(4)]
        for number, db in enumerate(clients):
            assert db.set(f"key:{number}", number)
        large = os.urandom(3 << 20)
        assert client(0).set("large", large) and client(3).get("large") == large
        pipe = client(1).pipeline(transaction=False)
        for number in range(5000):
            pipe.set(f"many:{number}", number)
        assert pipe.execute() == [True] * 5000
        assert cluster.client(2).mget(f"key:{n}" for n in range(16)) == [b"%d" % n for n in range(16)]
        assert any(c["addr"] == f"{sockets[0]}:0" for c in client(0).client_list()) or workers == "2"
        pid = cluster.pids()[1]
        os.kill(pid, signal.SIGKILL)
        again = lambda: alive_at(client(0)) and cluster.pids()[1] not in (0, pid)
        wait_for(again, "node 0 answers at the same path")
    finally:
        cluster.end()
    assert not any(path.exists() for path in sockets)


def alive_at(client):
    try:
        return client.get("key:0") == b"0"
    except redis.RedisError:
        return False


def test_a_taken_path_is_one_clear_line(tmp_path):
    (tmp_path / "node-0.sock").write_text("not a socket")
    long = tmp_path / ("x" * 100)
    for folder in (tmp_path, long):
        done = subprocess.run([SARTOR, "up", "--port", str(free_port()), "--unix", str(folder)], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith(f"sartor: cannot listen on unix:{folder}/node-0.sock"), done.stderr
    assert (tmp_path / "node-0.sock").read_text() == "not a socket"
    done = subprocess.run([SARTOR, "up", "--unix", "/proc/nowhere"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("sartor: --unix /proc/nowhere: "), done.stderr
    assert done.stderr.count("\n") == 1
