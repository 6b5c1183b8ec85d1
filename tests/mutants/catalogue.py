"""All bugs that are planted."""

from tests.mutants import plan, preparing, reading, running

MUTANTS = [*plan.MUTANTS, *reading.MUTANTS, *running.MUTANTS, *preparing.MUTANTS]
