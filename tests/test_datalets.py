"""`sartor datalet`: real stores pass the conformance kit, and what cannot be a datalet is refused with a reason."""

import json
import subprocess

import pytest
import redis

from conftest import SARTOR, free_port, wait_for


def datalet(*words):
    """The exit code of `sartor datalet`, and what it printed."""
    done = subprocess.run([SARTOR, "datalet", *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


class Server:
    """A server that ends with its test."""

    def __init__(self, kind, *command):
        self.port = free_port()
        self.address = f"{kind}://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [word.format(port=self.port) for word in command], stdout=subprocess.DEVNULL
        )
        self.connection = redis.Redis(port=self.port)

    def __enter__(self):
        wait_for(self.answers, self.address)
        return self

    def answers(self):
        try:
            # memcached answers too, with an error.
            self.connection.ping()
        except redis.ConnectionError:
            return False
        except redis.RedisError:
            pass
        return True

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def redis_server(folder, *options):
    return Server(
        "redis", "redis-server", "--port", "{port}", "--save", "", "--bind", "127.0.0.1", "--dir", str(folder), *options
    )


def test_the_kinds_are_listed():
    code, text = datalet("list")
    assert code == 0 and "redis[://HOST]" in text and "memcached" in text, text
    code, text = datalet("list", "-o", "json")
    kinds = {kind["name"]: kind for kind in json.loads(text)["datalets"]}
    assert code == 0 and kinds["tree"]["ordered"] and not kinds["hash"]["ordered"]
    assert kinds["redis"]["started_by_sartor"] and not kinds["ssdb"]["started_by_sartor"]
    assert kinds["memcached"]["evicting"] and not kinds["memcached"]["walks"] and kinds["redis"]["walks"]


@pytest.mark.parametrize("kind", ["hash", "tree", "redis"])
def test_what_is_built_in_passes(kind):
    code, text = datalet("check", kind)
    assert code == 0 and f"{kind} does all that it declares" in text and "FAILED" not in text, text


def test_a_real_redis_passes(tmp_path):
    with redis_server(tmp_path) as server:
        other = redis.Redis(port=server.port, db=1)
        other.set("other", "stays")
        code, text = datalet("check", server.address)
        assert code == 0 and "redis does all that it declares" in text, text
        code, text = datalet("check", server.address, "-o", "json")
        checks = json.loads(text)["checks"]
        assert code == 0 and len(checks) >= 10 and all(check["failed"] is None for check in checks)
        assert server.connection.dbsize() == 0 and other.get("other") == b"stays"


def test_a_real_memcached_passes():
    with Server("memcached", "memcached", "-p", "{port}", "-l", "127.0.0.1", "-U", "0", "-u", "nobody") as server:
        code, text = datalet("check", server.address)
        assert code == 0 and "memcached does all that it declares" in text, text


def test_what_is_in_a_store_is_not_removed_unasked(tmp_path):
    with redis_server(tmp_path) as server:
        server.connection.set("precious", "data")
        code, text = datalet("check", server.address)
        assert code == 2 and "there are 1 pairs" in text and "--clear" in text, text
        assert server.connection.get("precious") == b"data"
        code, text = datalet("check", server.address, "--clear")
        assert code == 0 and server.connection.dbsize() == 0, text


def test_a_redis_with_other_things_than_strings_is_refused_by_name(tmp_path):
    with redis_server(tmp_path) as server:
        server.connection.set("fine", "1")
        server.connection.rpush("jobs:queue", "a")
        for options in [], ["--clear"]:
            code, text = datalet("check", server.address, *options)
            assert code == 2 and "'jobs:queue' (list)" in text and len(text.splitlines()) == 1, text
        assert server.connection.dbsize() == 2


def test_one_that_fails_is_told(tmp_path):
    with redis_server(tmp_path, "--maxmemory", "3mb") as server:
        code, text = datalet("check", server.address)
        assert code == 1 and "FAILED  values up to the largest" in text and "no memory left" in text, text
        assert "ok      puts, gets and deletes" in text and "checks failed" in text, text


@pytest.mark.parametrize(
    "kind, why",
    [
        ("redsi://h", "unknown datalet 'redsi'; there is: hash, tree"),
        ("ssdb", "as in ssdb://127.0.0.1"),
        ("hash://h", "has no address"),
        ("redis://127.0.0.1:x", "'x' is no port"),
        ("redis://127.0.0.1:1", "is it running there?"),
        ("redis:///nowhere/redis.sock", "cannot connect"),
    ],
)
def test_bad_kinds_get_one_clear_line(kind, why):
    code, text = datalet("check", kind)
    assert code == 2 and why in text and len(text.splitlines()) == 1, text
