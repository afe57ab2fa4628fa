"""Serves a store of yours to Sartor: the protocol of ../datalet.proto, with nothing but the standard library.

Inherit from Datalet, and give one to main(). Calls come one at a time, from one thread. What they raise is told to
Sartor, whose replica then steps back and is filled again from the others.
"""

import itertools
import os
import secrets
import selectors
import socket
import stat
import struct
import sys

VERSION = 1
FRAME_BYTES_MAX = 64 << 20
CONNECTIONS_MAX = 16


class Datalet:
    """A store. Keys and values are bytes of any kind; get, put, delete and walk are all that you owe."""

    name = "mine"
    ordered = False  # True: walk and scan are in key order, and a walk sees what is put behind its place.
    durable = False  # True: commit and mark are there, and a new process finds what the last commit left.
    key_bytes_max = 0  # 0: as long as fits into a frame.
    value_bytes_max = 0

    def get(self, key):
        """The value of key, or None."""
        raise NotImplementedError

    def put(self, key, value):
        """Sets key, whether it is there or not."""
        raise NotImplementedError

    def delete(self, key):
        """Removes key; that it is not there is fine."""
        raise NotImplementedError

    def walk(self, after):
        """Yields (key, value) from behind the key `after` on (None: from the start), in an order that stays.

        A pair that is there during the whole walk must be seen, whatever is written between two calls.
        """
        raise NotImplementedError

    def scan(self, start, end):
        """Yields (key, value) with start <= key < end (None: to the last) in key order."""
        raise NotImplementedError("this store keeps no key order")

    def len(self):
        return sum(1 for _ in self.walk(None))

    def clear(self):
        for key in [key for key, _ in self.walk(None)]:
            self.delete(key)

    def commit(self, mark, durably):
        raise NotImplementedError("this store is not durable")

    def mark(self):
        return None


# The messages. A field is a varint of its number and form (0: varint, 2: bytes), then its content.


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, content):
    """A field, whatever it holds; what is empty is there too."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    return varint(number << 3) + varint(int(content))


def read_varint(message, at):
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def fields(message):
    """Yields number and content of each field."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        form = key & 7
        if form == 0:
            content, at = read_varint(message, at)
        elif form in (1, 2, 5):
            size, at = read_varint(message, at) if form == 2 else ({1: 8, 5: 4}[form], at)
            content, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("a message is cut short")
        else:
            raise ValueError(f"a field has the unknown form {form}")
        yield key >> 3, content


def encode_pair(key, value):
    return field(1, key) + field(2, value)


DONE, NOTHING = field(2, b""), field(4, b"")


class Server:
    """What a store answers, by batches. The kinds of operations and results are numbered as in datalet.proto."""

    def __init__(self, datalet):
        self.datalet = datalet
        self.owner = None
        self.generation = new_generation()

    def answer(self, message, is_owner):
        """The results of a batch, and whether who sent it is the owner now."""
        operations, bytes_max = [], 0
        for number, content in fields(message):
            if number == 1:
                operations.append(content)
            elif number == 2:
                bytes_max = content
        results, size = [], 0
        for operation in operations:
            kind, content = next(fields(operation), (0, b""))
            try:
                if kind == 1:
                    is_owner = True
                elif not is_owner:
                    raise PermissionError("say hello first")
                result, added = self.do(kind, content)
            except Exception as error:  # Whatever it is, it is for Sartor to know.
                results.append(field(2, field(1, f"{type(error).__name__}: {error}".encode())))
                break
            results.append(field(2, result))
            size += added
            if 0 < bytes_max <= size:
                break
        return field(1, self.generation) + b"".join(results), is_owner

    def do(self, kind, content):
        """A result, and how many bytes of keys and values it has."""
        store = self.datalet
        if kind == 2:
            value = store.get(content)
            return (NOTHING, 0) if value is None else (field(3, value), len(value))
        if kind == 4:
            store.delete(content)
            return DONE, 0
        asked = dict(fields(content))
        if kind == 3:
            store.put(asked.get(1, b""), asked.get(2, b""))
            return DONE, 0
        if kind == 5:
            return page(store.walk(asked.get(1)), asked.get(2, 0), asked.get(3, 0))
        if kind == 6:
            return page(store.scan(asked.get(1, b""), asked.get(2)), asked.get(3, 0), asked.get(4, 0))
        if kind == 7:
            return field(6, store.len()), 0
        if kind == 8:
            store.clear()
            return DONE, 0
        if kind == 9:
            store.commit(asked.get(1, b""), bool(asked.get(2, 0)))
            return DONE, 0
        if kind == 10:
            mark = store.mark()
            return (NOTHING if mark is None else field(3, mark)), 0
        if kind == 1:
            return field(7, self.hello(asked.get(2, 0))), 0
        raise NotImplementedError(f"operation {kind} is unknown; is there a newer sartor_datalet.py?")

    def hello(self, owner):
        """Another owner cannot rely on what the one before knew, nor the other way round."""
        if self.owner != owner:
            self.owner, self.generation = owner, new_generation()
        store = self.datalet
        said = [VERSION, store.name.encode(), store.ordered, store.durable, store.key_bytes_max, store.value_bytes_max]
        return b"".join(field(number, content) for number, content in enumerate(said, 1))


def new_generation():
    return secrets.randbits(63) + 1


def page(pairs, pairs_max, bytes_max):
    """As many pairs as a page holds, and one more to see whether it is the last page."""
    out, size = [], 0
    for count, (key, value) in enumerate(pairs):
        if count >= max(pairs_max, 1) or (count > 0 and size >= bytes_max):
            out.append(field(2, last))
            break
        out.append(field(1, encode_pair(key, value)))
        size += len(key) + len(value)
        last = key
    return field(5, b"".join(out)), size


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.input = bytearray()
        self.is_owner = False

    def frames(self):
        """Reads what is there; yields whole messages."""
        got = self.sock.recv(1 << 18)
        if not got:
            raise ConnectionError("closed")
        self.input += got
        while len(self.input) >= 4:
            (size,) = struct.unpack_from("<I", self.input)
            if size > FRAME_BYTES_MAX:
                raise ConnectionError(f"a frame of {size} bytes; is that Sartor?")
            if len(self.input) < 4 + size:
                break
            message = bytes(self.input[4 : 4 + size])
            del self.input[: 4 + size]
            yield message


def listen(address):
    """A socket that listens at HOST:PORT, or at the path of a Unix socket."""
    if address.startswith("/"):
        if os.path.exists(address) and stat.S_ISSOCK(os.stat(address).st_mode):
            os.unlink(address)  # A process that is no more left it.
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        return listener
    host, _, port = address.rpartition(":")
    return socket.create_server((host or "127.0.0.1", int(port)))


def serve(datalet, address):
    """Serves until the process ends."""
    server, listener, selector = Server(datalet), listen(address), selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    connections = []

    def close(connection):
        connections.remove(connection)
        selector.unregister(connection.sock)
        connection.sock.close()

    while True:
        for key, _ in selector.select():
            if key.data is None:
                sock, _ = listener.accept()
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(30)  # For who does not read what it asked for.
                connections.append(Connection(sock))
                selector.register(sock, selectors.EVENT_READ, connections[-1])
                idle = [connection for connection in connections if not connection.is_owner]
                for connection in itertools.islice(idle, max(len(idle) - CONNECTIONS_MAX, 0)):
                    close(connection)
            elif key.data in connections:
                connection = key.data
                try:
                    for message in connection.frames():
                        was_owner = connection.is_owner
                        results, connection.is_owner = server.answer(message, was_owner)
                        if connection.is_owner and not was_owner:
                            for other in [other for other in connections if other.is_owner and other is not connection]:
                                close(other)
                        connection.sock.sendall(struct.pack("<I", len(results)) + results)
                except (OSError, ValueError, IndexError) as error:
                    if str(error) != "closed":
                        print(f"a connection ends: {error}", file=sys.stderr)
                    close(connection)


def main(datalet):
    """Serves at the address that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT, or /PATH/OF/SOCKET")
    try:
        serve(datalet, sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"cannot listen at {sys.argv[1]}: {error}")
    except KeyboardInterrupt:
        pass
