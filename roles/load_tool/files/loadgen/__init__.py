"""gpurun's builtin load client: streaming OpenAI-compatible requests, timed by the kernel's receive stamps.

    python -m loadgen SPEC.json RAW.json      measure; RAW is written also when requests failed or after a SIGTERM
    python -m loadgen --check SPEC.json       validate the spec and the imports, send nothing

spec.py      SPEC.json, validated; every complaint names its key
prompts.py   the prompts, from a seed or a file, with exact token counts where the server can count
wire.py      one HTTP connection: request bytes out, body fragments with arrival times in
stream.py    body fragments -> content events, usage, errors (pure)
window.py    the event loop: when to send, what came back
record.py    what is written: RAW and the progress file

How the time is measured, and why like this. A client that also parses and schedules reads late when many streams are
open, and a clock read after that waiting adds the client's own queue to the server's latency. So arrival is the time
at which the kernel received the bytes (SO_TIMESTAMPNS, which Linux fills in for TCP too), not the time at which Python
got round to reading them. One thread drains the ready sockets and does no more than feed httptools (llhttp: a C
parser, well kept) and set the fragments aside; events are decoded when nothing is ready. On two cores shared with a
stub server, mean TTFT is 0.04 ms too high at 32 streams and 2 ms at 256; a plain aiohttp client's is 3 ms and 33 ms
too high, and it saturates at a fifth of the request rate. tests/benchmarks/load_tool.py measures both, side by side.
"""

__version__ = "1.2"
