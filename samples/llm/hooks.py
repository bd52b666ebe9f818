"""What Ebb calls before the pod sleeps and after it woke, at a port inside the pod only."""

import ctypes
import http.server
import os
import threading


def serve(model, port=9000):
    """Answers the calls on a thread. model is the file with the weights."""
    weights = os.open(model, os.O_RDONLY)

    class Hooks(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            if self.path == "/sleep":
                ctypes.CDLL(None).malloc_trim(0)  # what prompts left need not be kept, or compressed
            elif self.path == "/wake":
                # Memory that sleeps loses the weights first, because they are in a file. They are read in one go, not a page at a time
                # under the first prompt.
                os.posix_fadvise(weights, 0, 0, os.POSIX_FADV_WILLNEED)
            else:
                self.send_error(404)
                return
            self.send_response(204)
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Hooks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
