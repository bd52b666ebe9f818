"""gunicorn reads this file by itself, and binds to $PORT by itself."""

import os

# Where Ebb tells how many requests come at a time (serving.ebb.dev/concurrency-variable), a worker for each.
# Otherwise one worker with eight threads: what a single pod does at once is then its containerConcurrency.
workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
threads = 1 if "WEB_CONCURRENCY" in os.environ else 8
timeout = 0
