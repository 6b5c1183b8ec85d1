"""All bugs that are planted."""

from tests.mutants import plan, preparing, reading, remote, running, seen, shards, streams, workers

MUTANTS = [
    *plan.MUTANTS,
    *shards.MUTANTS,
    *remote.MUTANTS,
    *streams.MUTANTS,
    *seen.MUTANTS,
    *reading.MUTANTS,
    *running.MUTANTS,
    *workers.MUTANTS,
    *preparing.MUTANTS,
]
