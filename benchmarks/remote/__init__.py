"""Training from remote shards measured behind a link of known latency and speed.

`python -m benchmarks.remote`, from the root, is the only command. It starts nginx and a proxy that
shapes what goes through it. `proxy` and `drain` are programs of their own and need the standard
library alone; what `child` runs is imported by the processes that measure.
"""
