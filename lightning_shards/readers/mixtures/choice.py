"""Which reader a mixture gets: one for all of its components."""

from collections.abc import Mapping
from typing import Literal

from lightning_shards.errors import ConfigError
from lightning_shards.readers.reader_choice import ReaderChoice
from lightning_shards.shards.index import ShardIndex


def reader_of_mixture(
    choices: Mapping[str, ReaderChoice], indexes: Mapping[str, ShardIndex]
) -> Literal["stream", "indexed"]:
    """The reader of a mixture of these shards.

    `auto` takes `indexed` if each component is local or has member tables, and none has stages.
    Components that are drawn with replacement are indexed as well.

    Args:
        choices: By the name of the component, all with one `reader` and `in_mixture`. What they
            call `split` should name the component, as in ``train.mix.web``.
        indexes: Their shards.

    Raises:
        ConfigError: A component cannot be read by the reader that is asked for, or one serves each
            sample once and the mixture has to be streamed.
    """
    readers = {name: choice.of(indexes[name]) for name, choice in choices.items()}
    streamed = next((name for name, reader in readers.items() if reader == "stream"), None)
    if streamed is None:
        return "indexed"
    for name, choice in choices.items():
        if choice.sampling != "resampled":
            raise ConfigError(
                f"{choice.split} has sampling={choice.sampling!r}, and a mixture that is streamed "
                f"cannot serve each sample once a pass; it is streamed because "
                f"{_why(choices[streamed])}: take sampling='resampled' for {name!r}, or make all "
                "components local or put member tables beside them, without stages"
            )
    return "stream"


def _why(streamed: ReaderChoice) -> str:
    if streamed.reader == "stream":
        return "of reader='stream'"
    what = "has stages" if streamed.has_stages else "is remote, without member tables beside it"
    return f"{streamed.split} {what}"
