"""Training from remote shards measured behind a link of known latency and speed.

`python -m benchmarks.remote`, from the root, is the only command. It starts nginx and a proxy that
shapes what goes through it: `proxy` is a program of its own, and needs the standard library alone.
"""
