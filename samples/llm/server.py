"""llama.cpp's own server on $PORT: OpenAI's API with streams and usage, and /metrics with what runs and what waits."""

import os
import signal

import xllamacpp

import hooks

# The threads of llama.cpp inherit this, so that the signal comes here. Ebb sends it when no request is left.
END = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, END)

batch = int(os.environ.get("BATCH", "4"))
params = xllamacpp.CommonParams()
params.model.path = os.environ.get("MODEL", "/models/model.gguf")
params.model_alias = {os.environ.get("MODEL_NAME", "gemma-3-270m")}
params.hostnames = ["0.0.0.0"]
params.port = int(os.environ.get("PORT", "8080"))
params.endpoint_metrics = True
params.endpoint_slots = False  # it would tell callers of one another
params.ui = False
params.n_threads_http = 128  # each prompt that runs or waits has one, and /metrics needs one: more than containerConcurrency
params.n_parallel = batch
params.n_ctx = 2048 * batch  # tokens of memory: as many prompts at a time, of as many tokens with their answers
params.n_predict = 1024  # an answer ends, also where the model does not
params.cache_ram_mib = 0  # by default, 8 GiB of prompts that were answered
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("THREADS", "1"))

server = xllamacpp.Server(params)  # returns when the model is loaded and the port is open
hooks.serve(params.model.path)
print(f"{server.listening_address} serves {params.model.path}", flush=True)
signal.sigwait(END)
os._exit(0)
