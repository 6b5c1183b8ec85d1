"""Bugs in mixtures that are streamed: whose rows, whose draws, and what one batch may hold."""

from tests.mutants.planting import Mutant

STREAM = "readers/mixtures/test_mixture_stream.py"
PARTS = "readers/mixtures/test_mixture_parts.py readers/mixtures/test_mixture_source.py"

MUTANTS = [
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._batch",
        "worker_epoch.span(step)",
        "worker_epoch.plan.rank_span(step, 0)",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._batch",
        "rows = [next(in_turn[number]) for number in numbers]",
        "rows = [row for each in in_turn.values() for row in each]",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._streams",
        "seed=component_seed(self.slots.seed, name),",
        "seed=self.slots.seed,",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._streams",
        "ComponentNumbers(number, first_shard)",
        "ComponentNumbers(number, 0)",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:_Pipeline.rows",
        "if self.draws_from_globals:",
        "if False:",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._batches_of",
        "preserved_globals() if draws_from_globals else nullcontext()",
        "nullcontext()",
        STREAM,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._batches_of",
        "for bad in pipeline.ledger.take()",
        "for bad in pipeline.ledger.take()[:0]",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.stream:_Pipeline.rows",
        "if len(rows) < size:",
        "if not rows:",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.stream:_Pipeline.close",
        "self._samples.close()",
        "pass",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.stream:MixtureStreamSource._layouts_of",
        "all(other.get(name) == layout for other in others)",
        "True",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.alike:with_one_kind",
        "== {True, False}:",
        "== set():",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.alike:require_alike",
        "require_same_names(first.name, first.fields, other.name, other.fields)",
        "pass",
        PARTS,
    ),
    Mutant(
        "readers.mixtures.choice:reader_of_mixture",
        'if choice.sampling != "resampled":',
        "if False:",
        PARTS,
    ),
    Mutant(
        "readers.reader_choice:ReaderChoice._must_stream",
        " and not self.in_mixture",
        "",
        PARTS,
    ),
    Mutant(
        "readers.shard_samples:ReadSlices._read",
        "(self.first_shard + shard, number)",
        "(shard, number)",
        STREAM,
    ),
]
