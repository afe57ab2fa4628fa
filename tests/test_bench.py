"""`sartor bench`: its outputs can be read and add up, and what it says of a server is so."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import redis

from conftest import SARTOR, Cluster, free_port, wait_for

WORKLOADS = ["a", "b", "c", "d", "f", "job-launch", "io-forwarding", "monitoring", "etc"]
COMPARE = os.path.join(os.path.dirname(__file__), "../bench/compare")
SWEEP = os.path.join(os.path.dirname(__file__), "../bench/sweep")


def bench(target, *options, code=0):
    """What `sartor bench` printed."""
    words = [SARTOR, "bench", "--target", target, *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def measured(target, *options):
    """The one run of it."""
    (run,) = json.loads(bench(target, "-o", "json", "--warmup", 0, *options))["runs"]
    return run


@pytest.fixture(scope="module", params=["redis", "sartor"])
def target(request):
    if request.param == "redis":
        yield f"127.0.0.1:{request.getfixturevalue('redis_server')}"
    else:
        cluster = Cluster("--shards", "2", "--copies", "2")
        yield f"127.0.0.1:{cluster.port}"
        cluster.end()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_runs_and_its_numbers_add_up(target, workload):
    run = measured(target, "-w", workload, "--load", "--keys", 2000, "--requests", 6000, "--depth", 4, "-c", 10)
    assert run["errors"] == {} and run["reconnects"] == 0 and run["unanswered"] == 0
    actions = run["actions"]
    whole = actions.pop("READ-MODIFY-WRITE", {"count": 0})["count"]
    assert run["requests"] == 6000 + whole == sum(action["count"] for action in actions.values())
    assert run["requests"] == sum(round(point["requests_per_second"]) for point in run["points"])
    assert run["latency"]["count"] == run["requests"]
    assert run["hits"] + run["not_found"] == actions["READ"]["count"]
    if "INSERT" not in actions:
        assert run["not_found"] == 0
    for latency in [run["latency"], *actions.values()]:
        order = [latency[name] for name in ("min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us")]
        assert order == sorted(order) and order[0] > 0


def test_what_the_server_counted_is_what_was_told(redis_server):
    client = redis.Redis(port=redis_server)
    client.flushall()
    target = f"127.0.0.1:{redis_server}"
    assert measured(target, "--load", "--keys", 3000, "--requests", 1)["requests"] == 1
    assert client.dbsize() == 3000
    assert {len(key) for key in client.scan_iter(count=1000)} == {16}
    assert {len(value) for value in client.mget(list(client.scan_iter(count=1000)))} == {32}
    client.config_resetstat()
    run = measured(target, "--keys", 3000, "--mix", "get=3,set=1", "--requests", 8000, "--threads", 2, "--depth", 7)
    stats = client.info("commandstats")
    # One more read looks whether the target speaks the protocol.
    assert stats["cmdstat_get"]["calls"] == run["actions"]["READ"]["count"] + 1
    assert stats["cmdstat_set"]["calls"] == run["actions"]["UPDATE"]["count"]
    assert client.info("stats")["keyspace_misses"] == run["not_found"] == 0


def test_unknown_keys_are_not_found(redis_server):
    redis.Redis(port=redis_server).flushall()
    run = measured(f"127.0.0.1:{redis_server}", "--mix", "get=1", "--requests", 1000)
    assert (run["not_found"], run["hits"]) == (1000, 0)


def test_outputs_can_be_read(target, tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "hgrm", "html")}
    marks = tmp_path / "marks"
    marks.write_text(f"{time.time() + 0.5} something <happened>\n")
    options = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    text = bench(
        target, "--load", "--keys", 2000, "--rate", "1000,2000", "--seconds", 1, "--warmup", 0, "--mark-file", marks,
        "--cpu", f"me={os.getpid()}", *options,
    )
    assert "offered: 1,000" in text and "offered: 2,000" in text and "CPU of me" in text
    report = json.loads(files["json"].read_text())
    assert [run["offered"] for run in report["runs"]] == [1000, 2000]
    for run in report["runs"]:
        assert run["requests"] + run["unanswered"] == pytest.approx(run["offered"], abs=2)
    assert report["environment"]["kernel"] == os.uname().release
    assert report["marks"][0]["words"] == "something <happened>"
    rows = [line.split() for line in files["hgrm"].read_text().splitlines() if re.match(r"^ +[\d.]+ +[\d.]+ +\d+", line)]
    assert float(rows[-1][1]) == 1.0 and int(rows[-1][2]) == report["runs"][1]["latency"]["count"]
    html = files["html"].read_text()
    assert html.count("<svg") == html.count("</svg>") == 4 and "http" not in html.replace("http://127", "")
    assert "something &lt;happened&gt;" in html or report["runs"][1]["began"] > float(marks.read_text().split()[0])


def test_ycsb_lines_and_properties(target, tmp_path):
    properties = tmp_path / "workloada"
    properties.write_text("# A\nrecordcount=1000\noperationcount=2000\nworkload=site.ycsb.workloads.CoreWorkload\nreadproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian\n")
    text = bench(target, "-P", properties, "-p", "operationcount=3000", "-p", "threadcount=5", "--load", "--warmup", 0, "--output", "ycsb")
    lines = {tuple(line.split(", ")[:2]): line.split(", ")[2] for line in text.splitlines()}
    assert all(re.fullmatch(r"\[[A-Z-]+\], [^,]+, [\d.]+", line) for line in text.splitlines()), text
    operations = [int(lines[(f"[{name}]", "Operations")]) for name in ("READ", "UPDATE")]
    assert sum(operations) == 3000 and min(operations) > 1300
    assert int(lines[("[READ]", "Return=OK")]) == operations[0]
    assert int(lines[("[READ]", "99thPercentileLatency(us)")]) <= int(lines[("[READ]", "MaxLatency(us)")])
    seconds = float(lines[("[OVERALL]", "RunTime(ms)")]) / 1000
    assert float(lines[("[OVERALL]", "Throughput(ops/sec)")]) * seconds == pytest.approx(3000, rel=0.05)


def test_a_table_of_its_own(redis_server):
    here = redis.Redis(port=redis_server, db=3)
    here.flushdb()
    before = redis.Redis(port=redis_server).dbsize()
    for depth in ("1", "16"):
        done = measured(f"127.0.0.1:{redis_server}", "--table", "3", "--mix", "set=100", "--requests", "3000", "--keys", "500", "--depth", depth)
        assert done["errors"] == {} and done["requests"] == 3000
    opened = measured(f"127.0.0.1:{redis_server}", "--table", "3", "--rate", "2000", "--seconds", "0.5", "--keys", "500")
    assert opened["errors"] == {} and opened["requests"] > 500
    assert 400 < here.dbsize() <= 500 and redis.Redis(port=redis_server).dbsize() == before
    refused = bench(f"127.0.0.1:{redis_server}", "--table", "99", code=1)
    assert "out of range" in refused and len(refused.splitlines()) == 1


def test_unix_sockets_and_memcached(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    path = folder / "redis"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
    try:
        wait_for(path.exists, "redis-server's socket")
        run = measured(f"unix:{path}", "--load", "--keys", 1000, "--requests", 5000, "--depth", 8)
        assert (run["requests"], run["not_found"]) == (5000, 0)
    finally:
        server.kill()
        server.wait()
    port = free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    server = subprocess.Popen([shutil.which("memcached"), "-p", str(port), "-l", "127.0.0.1", *user])
    try:
        target = f"127.0.0.1:{port}"
        wait_for(lambda: subprocess.run([SARTOR, "bench", "--target", target, "--protocol", "memcached", "-n", "1", "--warmup", "0"], capture_output=True).returncode == 0, "memcached")
        run = measured(target, "--protocol", "memcached", "--load", "--keys", 1000, "--requests", 5000, "--depth", 8, "--mix", "get=1,set=1")
        assert (run["requests"], run["not_found"], run["errors"]) == (5000, 0, {})
    finally:
        server.kill()
        server.wait()


def test_waits_for_replicas(redis_server):
    run = measured(f"127.0.0.1:{redis_server}", "--mix", "set=1", "--wait", "batch", "--wait-replicas", 0, "--requests", 1000, "--depth", 10)
    assert (run["requests"], run["errors"]) == (1000, {})


def test_a_server_that_dies_is_met_again(tmp_path):
    port = free_port()
    words = ["redis-server", "--port", str(port), "--save", "", "--dir", tmp_path]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def answers():
        try:
            return redis.Redis(port=port).ping()
        except redis.ConnectionError:
            return False

    try:
        wait_for(answers, "redis-server")
        options = ["-o", "json", "--warmup", "0", "--seconds", "4", "-c", "5", "--mix", "get=1"]
        load = subprocess.Popen([SARTOR, "bench", "--target", f"127.0.0.1:{port}", *options], stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        server.kill()
        server.wait()
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        (run,) = json.loads(load.communicate(timeout=60)[0])["runs"]
        assert run["reconnects"] == 5 and run["errors"]["connection-lost"] == 5
        assert run["requests"] > 0 and run["points"][-1]["requests_per_second"] > 0
    finally:
        server.kill()
        server.wait()


def test_what_cannot_be_is_one_line(redis_server):
    target = f"127.0.0.1:{redis_server}"
    for options, wanted in [
        (["-w", "e"], "cannot scan"),
        (["-w", "x"], "no workload"),
        (["-p", "recordcont=1"], "no property"),
        (["--protocol", "memcached"], "does not speak memcached"),
        (["--cpu", "x=0", "--seconds", "1"], "no process 0"),
    ]:
        error = bench(target, *options, code=1 if "process" in wanted or "speak" in wanted else 2)
        assert wanted in error and len(error.strip().splitlines()) == 1, error
    error = bench("127.0.0.1:1", code=1)
    assert "cannot connect to 127.0.0.1:1" in error and len(error.strip().splitlines()) == 1


def test_an_interrupt_ends_it(redis_server):
    load = subprocess.Popen([SARTOR, "bench", "--target", f"127.0.0.1:{redis_server}", "--seconds", "100"], stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    load.send_signal(signal.SIGINT)
    assert "interrupted" in load.communicate(timeout=20)[1] and load.returncode == 1


def test_compare_and_sweep_run(tmp_path):
    if not shutil.which("nutcracker", path="/usr/sbin:/usr/bin"):
        pytest.fail("nutcracker is missing; run tests/setup")
    path, page = tmp_path / "c.json", tmp_path / "c.html"
    environment = {**os.environ, "SARTOR": os.path.abspath(SARTOR)}
    words = [COMPARE, "--rounds", "1", "--seconds", "0.5", "--depths", "8", "--json", path, "--html", page]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["row"] for row in rows] == ["redis", "redis-unix", "echo", "twemproxy", "proxy", "memcached", "wait-each", "wait-batch", "async"]
    assert all(min(row["requests_per_second"]) > 0 and min(row["p99_us"]) > 0 for row in rows)
    assert len(done.stdout.splitlines()) == 10 and "<svg" in page.read_text()
    path, page = tmp_path / "s.json", tmp_path / "s.html"
    words = [SWEEP, "--quick", "--axes", "depth,copies", "--beside", "redis", "--seconds", "0.5", "--json", path, "--html", page]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    axes = json.loads(path.read_text())["axes"]
    assert [point["value"] for point in axes["depth"]["redis"]] == [1, 16, 128]
    assert list(axes["copies"]) == ["sartor"] and page.read_text().count("<svg") == 2
    error = subprocess.run([COMPARE, "--rows", "none"], capture_output=True, text=True, env=environment)
    assert error.returncode == 1 and "no row is called none" in error.stderr and len(error.stderr.splitlines()) == 1
