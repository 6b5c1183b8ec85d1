"""All bugs that are planted."""

from tests.mutants import plan, preparing, reading, running, shards

MUTANTS = [*plan.MUTANTS, *shards.MUTANTS, *reading.MUTANTS, *running.MUTANTS, *preparing.MUTANTS]
