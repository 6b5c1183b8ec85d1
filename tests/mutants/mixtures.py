"""Bugs in mixtures: their settings, their source, their batches and what a resume compares."""

from tests.mutants.planting import Mutant

BUILD = "build/test_mixtures.py"
ROWS = "readers/mixtures/test_mixture_indexed.py"

MUTANTS = [
    Mutant("build.mixtures:make_slots", "round_units * config.unit)", "round_units)", ROWS),
    Mutant("build.mixtures:_require_whole_units", "config.unit % batch_size:", "False:", BUILD),
    Mutant("build.sources:_make_mixture", "component_seed(data.seed, name)", "data.seed", BUILD),
    Mutant("saved_state:require_resumable", "epochs + read_count", "0 * read_count", BUILD),
    Mutant("saved_state:require_whole_units", "samples % epochs.batch_size", "False", BUILD),
    Mutant(
        "readers.mixtures.readers:ComponentReaders._look_up_of",
        "(rows[batch] + spans[batch][0])",
        "rows[batch]",
        f"{ROWS} workers/test_same_bytes.py",
    ),
    Mutant(
        "readers.mixtures.readers:_taken",
        "for row in rows.tolist()",
        "for row in [0] * len(rows)",
        ROWS,
    ),
    Mutant("readers.mixtures.scatter:_joined_lists", "joined[row] = value", "pass", ROWS),
    Mutant("readers.mixtures.scatter:_joined_arrays", "joined[rows] = column", "pass", ROWS),
    Mutant("readers.mixtures.rows:MixtureRows.collated", "require_alike(firsts)", "pass", ROWS),
    Mutant(
        "readers.mixtures.rows:MixtureRows.look_up",
        "self.order.components_of(ids[:, 0])",
        "np.zeros(len(ids), np.int64)",
        ROWS,
    ),
    Mutant("readers.mixtures.indexed:MixtureSource.batches", "=stretch)", "=STRETCH)", ROWS),
    Mutant(
        "readers.mixtures.indexed:MixtureSource._component_of",
        "int(self.order.components_of(shard))",
        "0",
        ROWS,
    ),
    Mutant(
        "readers.mixtures.indexed:MixtureSource._fields_together",
        '"transforms", "sample_transforms", "joins"',
        '"sample_transforms", "joins"',
        ROWS,
    ),
    Mutant("readers.mixtures.fields:_differ", "(each.decodings, ", "(", ROWS),
    Mutant("readers.mixtures.fields:_differ_in_gaps", "each.default, ", "", ROWS),
    Mutant(
        "readers.batch_reader:BatchReader._column", "not own.is_optional", "own.is_optional", ROWS
    ),
    Mutant(
        "readers.mixtures.indexed:MixtureSource.first_sample",
        "if not self._is_apart and",
        "if",
        ROWS,
    ),
    Mutant("plan.mixtures.mixture:MixtureOrder.components_of", 'side="right"', 'side="left"', ROWS),
    Mutant(
        "config.parsing:_copied", "isinstance(value, Mapping)", "False", "config/test_mixtures.py"
    ),
    Mutant(
        "config.splits:SplitConfig.component_splits",
        "**component.overrides()",
        "urls=component.urls",
        "config/test_mixtures.py",
    ),
]
