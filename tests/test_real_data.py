"""The machine's Debian package index, loaded at one node through redis-cli --pipe, read back at another."""

import subprocess

import pytest


@pytest.fixture(scope="module")
def index():
    """Package -> stanza; the last stanza of a package counts."""
    dump = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True).stdout
    stanzas = {}
    for stanza in dump.split(b"\n\n"):
        if stanza.startswith(b"Package: "):
            stanzas[stanza.split(b"\n", 1)[0][len(b"Package: ") :]] = stanza
    assert len(stanzas) > 10_000, "is the package index there? apt-get update"
    return stanzas


def test_the_debian_index(cluster, index):
    def command(*words):
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    load = b"".join(command(b"SET", b"deb:" + name, stanza) for name, stanza in index.items())
    done = subprocess.run(["redis-cli", "-p", str(cluster.port), "--pipe"], input=load, capture_output=True, timeout=300)
    assert b"errors: 0, replies: %d" % len(index) in done.stdout, done.stdout + done.stderr
    assert cluster.client().wait(2, 10_000) == 2
    for node in (1, 3):
        other = cluster.client(node=node)
        names = list(index)
        for at in range(0, len(names), 1000):
            batch = names[at : at + 1000]
            assert other.mget([b"deb:" + name for name in batch]) == [index[name] for name in batch]
        found = set(other.scan_iter(b"deb:*", count=2000))
        assert found == {b"deb:" + name for name in index}
