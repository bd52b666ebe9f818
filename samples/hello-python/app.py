"""The smallest useful Python service: a WSGI application, served by gunicorn on $PORT."""

import os


def app(environ, start_response):
    """Say hello to $TARGET."""
    body = f"Hello {os.environ.get('TARGET', 'World')}!\n".encode()
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("X-Worker", str(os.getpid()))])
    return [body]
