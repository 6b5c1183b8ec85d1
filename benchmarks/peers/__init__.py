"""This package beside other loaders, in one table: `python -m benchmarks.peers`.

The driver (`__main__`, `environment`, `processes`, `campaign`, `table`, `report`, `targets`) needs
the standard library only. `child` and what it imports run in the environment of the peers, one
fresh process for each run.
"""
