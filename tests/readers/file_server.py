"""A server of a folder, which notes what it is asked for."""

import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class NotingHandler(SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *args):
        pass


@contextmanager
def serving(folder):
    """A server on a free port of the loopback interface, with its `folder` and what was `asked`."""
    handler = partial(NotingHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.folder, server.asked = folder, []
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:  # else a test that fails would never end
            server.shutdown()
            thread.join()
