"""Megatron-Energon's way to the names that samples of a blend hold; apart, since it inherits."""

from dataclasses import dataclass
from typing import Any

from megatron.energon import Cooker, DefaultTaskEncoder, Sample, basic_sample_keys, stateless


@dataclass
class _Named(Sample):
    name: str


@stateless
def _cook(sample: Any) -> _Named:
    return _Named(**basic_sample_keys(sample), name=str(sample["txt"]))


class NamesEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches are lists of names."""

    cookers = (Cooker(_cook),)

    def batch(self, samples: list[_Named]) -> Any:
        """The names, in order."""
        return [each.name for each in samples]
