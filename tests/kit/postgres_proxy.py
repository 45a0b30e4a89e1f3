"""A proxy before PostgreSQL that counts round trips.

A round trip is: the client says something, then the server answers. Counted is how often the
client speaks after the server did, on whichever connection, so that nothing depends on how the
bytes are cut into packets.
"""

import selectors
import socket
import threading
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    def __init__(self, url):
        to = conninfo_to_dict(url)
        self._target = (to["host"], int(to["port"]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://{to['user']}@127.0.0.1:{port}/{to['dbname']}"
        self._count = 0
        self._loses_the_next = threading.Event()
        self.is_silent = threading.Event()  # all data is accepted, nothing is passed on
        self._clients = []
        self._lock = threading.Lock()
        self._serving = [threading.Thread(target=self._accept, daemon=True)]
        self._serving[0].start()

    @contextmanager
    def trips(self, expected):
        """The block makes exactly so many round trips."""
        with self._lock:
            before = self._count
        yield
        with self._lock:
            made = self._count - before
        assert made == expected, f"{made} round trips, not {expected}"

    def lose_the_next_answer(self):
        """The server runs the next command, but the connection breaks before its reply."""
        self._loses_the_next.set()

    @property
    def has_lost_it(self):
        return not self._loses_the_next.is_set()

    def close(self):
        # (closing alone would not wake up the thread that accepts)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._serving:
            thread.join(10)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            thread = threading.Thread(target=self._relay, args=(client,), daemon=True)
            self._serving.append(thread)
            thread.start()

    def _relay(self, client):
        with client, socket.create_connection(self._target) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pass_on(client, server)

    def _pass_on(self, client, server):
        selector = selectors.DefaultSelector()
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        server_spoke = True
        with selector:
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    if self.is_silent.is_set():
                        continue
                    if key.fileobj is server and self._loses_the_next.is_set():
                        self._loses_the_next.clear()
                        return
                    if key.fileobj is client and server_spoke:
                        with self._lock:
                            self._count += 1
                    server_spoke = key.fileobj is server
                    key.data.sendall(data)


@contextmanager
def proxy(url):
    found = Proxy(url)
    try:
        yield found
    finally:
        found.close()
