"""Bugs in mixtures: their settings, their source, their batches and what a resume compares."""

from tests.mutants.planting import Mutant

BUILD = "build/test_mixtures.py"
ROWS = "readers/mixtures/test_mixture_indexed.py"
COLUMNS = "readers/mixtures/test_differing_columns.py"
JOINED = "readers/mixtures/test_joined_components.py"
COUNTS = "plan/test_mixture_composition.py"
LINES = "build/test_mixture_lines.py"
PLAN = "tools/test_plan_mixture.py"

MUTANTS = [
    Mutant("build.mixtures:make_slots", "round_units * config.unit,", "round_units,", BUILD),
    Mutant("build.mixtures:_require_whole_units", "config.unit % batch_size:", "False:", BUILD),
    Mutant("build.sources:_make_mixture", "component_seed(data.seed, name)", "data.seed", BUILD),
    Mutant("saved_state:require_resumable", "epochs + read_count", "0 * read_count", BUILD),
    Mutant("saved_state:_require_whole_units", "samples % epochs.batch_size", "False", BUILD),
    Mutant(
        "readers.mixtures.readers:ComponentReaders._look_up_of",
        "(rows[batch] + spans[batch][0])",
        "rows[batch]",
        f"{ROWS} workers/test_same_bytes_of_splits.py",
    ),
    Mutant(
        "readers.mixtures.readers:_taken",
        "for row in rows.tolist()",
        "for row in [0] * len(rows)",
        ROWS,
    ),
    Mutant(
        "readers.mixtures.readers:ComponentReaders._joined",
        "columns_of.keys() != made[0].keys()",
        "False",
        COLUMNS,
    ),
    Mutant("build.mixtures:_backend_text", "backend == image_backend({})", "True", BUILD),
    Mutant(
        "saved_state:require_resumable",
        "{None, *trained_names}",
        "{None, *description.mixture.components}",
        JOINED,
    ),
    Mutant("readers.mixtures.scatter:_joined_lists", "joined[row] = value", "pass", ROWS),
    Mutant("readers.mixtures.scatter:joined_arrays", "joined[rows] = column", "pass", ROWS),
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
        '"transforms", "sample_transforms"',
        '"sample_transforms"',
        ROWS,
    ),
    Mutant("readers.mixtures.fields:_differ", "(each.decodings, ", "(", ROWS),
    Mutant("readers.mixtures.fields:_differ_in_gaps", "each.default, ", "", ROWS),
    Mutant("readers.mixtures.columns:_decoded", "not field.is_optional", "field.is_optional", ROWS),
    Mutant(
        "readers.mixtures.columns:DifferingColumns._of_group",
        "[batch.start - first : batch.stop - first]",
        "[: len(batch)]",
        COLUMNS,
    ),
    Mutant(
        "readers.mixtures.columns:DifferingColumns._of_group",
        "if batches > 1 else None",
        "if False else None",
        COLUMNS,
    ),
    Mutant(
        "readers.mixtures.columns:DifferingColumns._together",
        "or _JSON in field.decodings",
        "",
        COLUMNS,
    ),
    Mutant(
        "readers.mixtures.columns:DifferingColumns._together",
        "column.dtype != parts[0][1].dtype",
        "False",
        COLUMNS,
    ),
    Mutant(
        "readers.mixtures.columns:DifferingColumns._together",
        "except ColumnError:",
        "except ZeroDivisionError:",
        COLUMNS,
    ),
    Mutant(
        "readers.mixtures.columns:DifferingColumns.begin",
        "self._groups: dict[str, _Group] = {}",
        "self._groups: dict[str, _Group] = getattr(self, '_groups', {})",
        COLUMNS,
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
        "config.mixtures:ComponentConfig.require_one_filter",
        "if value is not None and",
        "if False and",
        "config/test_mixtures.py",
    ),
    Mutant(
        "config.files:_require_no_base_60",
        'name in {"weight", "passes"}',
        "False",
        "config/test_mixtures.py",
    ),
    Mutant("cli:_values_of_data", "value if equals else following", "value", "cli/test_refused.py"),
    Mutant(
        "config.mixtures:ComponentConfig.joined",
        "**(inherited or {})",
        "**{}",
        "config/test_mixtures.py",
    ),
    Mutant(
        "samples.optional_fields:suffixes_of",
        "part.strip()",
        "part",
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.mixtures:is_key_of",
        "ends_in(each, key)",
        'f".{each}".endswith(key)',
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.mixtures:with_lower_suffixes",
        'key.startswith(".")',
        "False",
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.module:_require_taken",
        "(*parts.values(), *(config.mix or {}).values())",
        "parts.values()",
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.module:_require_taken",
        "if key not in taken and not is_key_of(key, of_split)",
        "if key not in taken",
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.module:DataConfig._check_fields",
        "_require_taken(config, parts)",
        "pass",
        "config/test_merged_settings.py",
    ),
    Mutant(
        "config.splits:SplitConfig.component_splits",
        "**component.overrides()",
        "urls=component.urls",
        "config/test_mixtures.py",
    ),
    Mutant(
        "plan.mixtures.composition:_is_exact",
        "is_whole and schedule.round_units % sum(stage.weights) == 0",
        "is_whole",
        COUNTS,
    ),
    Mutant("plan.mixtures.composition:count_batches", "[range(last - 1, last)]", "[]", COUNTS),
    Mutant(
        "plan.mixtures.composition:_steps_before",
        "epoch * steps + bisect_left",
        "bisect_left",
        COUNTS,
    ),
    Mutant(
        "plan.mixtures.composition:stages_of",
        "slots.weights_at(begin)",
        "schedule.weights_at(begin // schedule.round_samples)",
        COUNTS,
    ),
    Mutant("build.mixture_lines:_stage_in", "min(end, stage.end)", "end", LINES),
    Mutant(
        "datamodule:ShardDataModule._current_loader",
        "epoch=loader.epoch",
        "epoch=0",
        LINES,
    ),
    Mutant("tools.plan_mixture:_stages", "min(stage.end or run_end, run_end)", "stage.end", PLAN),
    Mutant("tools.plan_mixture:_stages", "-(-stage.begin // size)", "stage.begin // size", PLAN),
    Mutant("tools.plan_mixture:_world", "plan, 0, steps)", "plan, 1, steps)", PLAN),
    Mutant(
        "plan.mixtures.composition:left_out_of_epoch",
        "plan.steps if steps is None else steps",
        "plan.steps",
        f"{LINES} {PLAN}",
    ),
    Mutant(
        "tools.plan_mixture:footprint_of_mixture", "part=samples / plan.samples", "part=1.0", PLAN
    ),
]
