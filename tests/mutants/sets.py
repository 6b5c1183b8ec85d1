"""Bugs in what several evaluation sets need."""

from tests.mutants.planting import Mutant

_COMBINED = "trainer/test_combined.py"
_FITS, _SETTINGS = "trainer/test_evaluation_sets.py", "config/test_sets.py"

MUTANTS = [
    Mutant(
        "config.sets:named_splits",
        "if kind == split:",
        "if kind != split:",
        _SETTINGS,
    ),
    Mutant(
        "config.sets:set_configs",
        "if single is not None:",
        "if False:",
        _SETTINGS,
    ),
    Mutant(
        "config.sets:_require_names",
        "known[name.lower()] = name",
        "known[name] = name",
        _SETTINGS,
    ),
    Mutant(
        "config.sets:errors_of",
        "name_set(error, name)",
        "pass",
        _FITS,
    ),
    Mutant(
        "loader:ShardLoader._next_batch",
        "name_set(error, self.name)",
        "pass",
        _FITS,
    ),
    Mutant(
        "config.files:_given_splits",
        'yield from ((f"{setting}.{name}", split) for name, split in sets.items())',
        "del sets",
        _SETTINGS,
    ),
    Mutant(
        "cli:ShardArgumentParser.error",
        " + _form_of_sets(plain)",
        "",
        "cli/test_sets.py",
    ),
    Mutant(
        "config.files:_require_each_once",
        "if name in lines:",
        "if False:",
        "cli/test_sets.py",
    ),
    Mutant(
        "config.files:_mappings_in",
        "waiting += node.value",
        "pass",
        "config/test_sets.py",
    ),
    Mutant(
        "config.sets:missing_split",
        "not isinstance(name, str) or ",
        "",
        "config/test_sets.py",
    ),
    Mutant(
        "config.parsing:as_section",
        "return Namespace()",
        "return value",
        "config/test_files.py cli/test_options.py",
    ),
    Mutant(
        "config.parsing:_OneByOneParser._check_value_key",
        "as_section(action, value, key)",
        "value",
        "config/test_files.py",
    ),
    Mutant(
        "cli:ShardArgumentParser._check_value_key",
        "as_section(action, value, key)",
        "value",
        "cli/test_options.py",
    ),
    Mutant(
        "config.parsing:checked_entries",
        "replace(action.dest, key, 1)",
        'replace(action.dest, f"{action.dest}", 1)',
        _SETTINGS,
    ),
    Mutant(
        "cli:ShardArgumentParser._check_value_key",
        '"${" in split',
        "False",
        "cli/test_sets.py",
    ),
    Mutant(
        "datamodule:ShardDataModule._evaluation_loaders",
        "if any(map(set_of, names))",
        "if len(loaders) > 1",
        _FITS,
    ),
    Mutant(
        "datamodule:ShardDataModule._agreed_loaders",
        "not all(agreed)",
        "not any(agreed)",
        "trainer/test_evaluation_sets.py",
    ),
    Mutant(
        "combined:change_parts",
        "min(dataloader_idx, len(read) - 1)",
        "0",
        _COMBINED,
    ),
    Mutant(
        "combined:change_parts",
        "if has_ours and not isinstance(tree, ShardLoader):",
        "if False:",
        _COMBINED,
    ),
    Mutant(
        "combined:change_parts",
        "or not _is_like(tree, batch)",
        "",
        _COMBINED,
    ),
    Mutant(
        "combined:_changed",
        "or not isinstance(loaders, ShardLoader)",
        "",
        _COMBINED,
    ),
    Mutant(
        "combined:_split_of",
        'loader.name if isinstance(loader, ShardLoader) else ""',
        '""',
        _COMBINED,
    ),
    Mutant(
        "datamodule:ShardDataModule._make_loader",
        "trainer is None or split == first",
        "True",
        _FITS,
    ),
    Mutant(
        "module_settings:ModuleSettings._named",
        "if not isinstance(split, str):",
        "if False:",
        _SETTINGS,
    ),
    Mutant(
        "loader:ShardLoader.__iter__",
        "if step == last and not self.keeps_workers:",
        "if step == last:",
        _FITS,
    ),
    Mutant(
        "build.loaders:facts_of",
        '"the evaluation sets": ", ".join(loaders), ',
        "",
        "ddp/test_evaluation_sets.py",
    ),
    Mutant(
        "callbacks.places:labels_of",
        "are_sets or len(sets) == 1",
        "len(sets) == 1",
        _FITS,
    ),
    Mutant(
        "trainer_stages:splits_of",
        "kind_of(name) in kinds",
        "name in kinds",
        _FITS,
    ),
]
