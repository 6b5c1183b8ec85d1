"""The settings of a mixture: its components, and weights that change during the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lightning_shards.config.settings import ShardSettings
from lightning_shards.errors import ConfigError
from lightning_shards.plan.mixture_schedule import WeightChange
from lightning_shards.shards.joins.settings import join_settings


@dataclass(frozen=True, kw_only=True, repr=False)
class ComponentConfig(ShardSettings):
    """One data set of a mixture; what it leaves out it takes from its split.

    What it has stands in the place of what the split has. `exclude` and `keep` are either those of
    the split or those of its components.

    Args:
        urls: Shards, as those of a split; needed.
        weight: Its share of each round, a number in proportion to the weights of the other
            components; 0 leaves it out for now.
        passes: Instead of a weight: how often it is passed while the other components are passed
            as often as theirs say.
        sampling: As of a split; it says how often and in which order its own samples come.
        fields: Batch key to member suffixes; overrides the split's for this component.
        defaults: Batch key to the value of samples that lack an optional field.
        decode: Batch key to decoder.
        classes: Batch key to the names of classes, in the order of their numbers, or to numbers by
            name.
        transforms: Batch key to callable, its import path, or class_path and init_args.
        sample_transforms: Callables from a dict of fields to a dict of fields, or what names them
            as in `transforms`; overrides the split's for this component.
        stages: Callables from an iterator of samples to an iterator of samples, or what names them
            as in `transforms`; overrides the split's for this component.
        shuffle_buffer: Stream reader: samples that webdataset's shuffle holds; overrides the
            split's for this component.
        shuffle_run: Indexed reader: samples kept together when shards are mixed; overrides the
            split's for this component.
        shuffle_block: Indexed reader: samples shuffled together; overrides the split's for this
            component.
        shuffle_strands: Indexed reader: strands that its runs are dealt out to; overrides the
            split's for this component.
        shuffle_width: Consecutive samples of one strand; overrides the split's for this component.
        exclude: Samples to leave out, as those of a split, which has none then.
        keep: Samples to keep, as those of a split, which has none then.
        join: Batch key to a table whose column becomes a field, as those of a split.
        index: The folder of the counts and member tables of its shards, as that of a split.
    """

    weight: Any = None  # a number; as a float jsonargparse would read the text 3:1 as 181
    passes: Any = None

    def overrides(self) -> dict[str, Any]:
        """The settings of a split that it has itself, by name."""
        given = {each.name: getattr(self, each.name) for each in fields(ShardSettings)}
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> None:
        """As of all settings; it needs shards."""
        super().check()
        self.require_urls()
        join_settings(self.join or {})


WeightChangeConfig = WeightChange  # its public name


def require_same_fields_of(names: Mapping[str, Sequence[str]], *, may_differ: bool) -> None:
    """Check that the fields of all components have the same names.

    Args:
        names: The names of the fields of each component.
        may_differ: Whether batches are dicts, each of one component.

    Raises:
        ConfigError: They differ, and a batch could hold both.
    """
    first, *others = names
    for other in others if not may_differ else ():
        differing = sorted(set(names[first]) ^ set(names[other]))
        if differing:
            has, lacks = (first, other) if differing[0] in names[first] else (other, first)
            raise ConfigError(
                f"component {has!r} has the field {differing[0]!r}, and component {lacks!r} has "
                "not; give all components the same fields, or keep them apart: batch_format='dict' "
                "and a unit of whole batches"
            )
