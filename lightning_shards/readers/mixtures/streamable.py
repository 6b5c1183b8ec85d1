"""Whether data sets can be streamed together as the components of one mixture."""

from collections.abc import Sequence

from lightning_shards.errors import ConfigError
from lightning_shards.readers.stream import StreamSource

_OF_THE_SPLIT = ("epochs", "batch_format", "max_bad", "collation")
"""Settings that all components have from their split."""


def require_streamable(names: Sequence[str], components: Sequence[StreamSource]) -> None:
    """Check that these components can be streamed as one mixture.

    Raises:
        ConfigError: One serves each sample once, they are not of one split, or batches are tuples
            whose places would mean other fields in other batches.
    """
    first = components[0]
    for name, component in zip(names, components, strict=True):
        if component.sampling != "resampled":
            raise ConfigError(
                f"component {name!r} has sampling={component.sampling!r}, and a mixture that is "
                "streamed cannot serve each sample once a pass; take reader='indexed', or "
                "sampling='resampled' for it"
            )
        for setting in _OF_THE_SPLIT:
            value, expected = getattr(component, setting), getattr(first, setting)
            if value != expected:
                raise ConfigError(
                    f"{setting} must be the same in all components of a mixture, got {expected} "
                    f"and, in {name!r}, {value}; set it for the split"
                )
        fields, others = (sorted(each.name for each in of.fields) for of in (first, component))
        if first.batch_format == "tuple" and fields != others:
            raise ConfigError(
                f"batch_format='tuple' has the same places in all batches, and component "
                f"{names[0]!r} has the fields {fields}, {name!r} has {others}; take "
                "batch_format='dict', or name them alike"
            )
