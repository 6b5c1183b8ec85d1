"""All bugs that are planted."""

from tests.mutants import (
    filters,
    joining,
    mixture_streams,
    mixtures,
    plan,
    preparing,
    reading,
    remote,
    running,
    seen,
    sets,
    shards,
    streams,
    values,
    workers,
)

MUTANTS = [
    *plan.MUTANTS,
    *mixtures.MUTANTS,
    *mixture_streams.MUTANTS,
    *shards.MUTANTS,
    *remote.MUTANTS,
    *streams.MUTANTS,
    *seen.MUTANTS,
    *reading.MUTANTS,
    *values.MUTANTS,
    *running.MUTANTS,
    *sets.MUTANTS,
    *workers.MUTANTS,
    *joining.MUTANTS,
    *preparing.MUTANTS,
    *filters.MUTANTS,
]
