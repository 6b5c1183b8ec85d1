"""The transforms of whole samples: callables from a dict of fields to a dict of fields.

They run before the transforms of single fields. Attributes of such a callable say what it wants:
the names in `takes_fields` are the only fields that it is given, and with ``takes_arrays = True``
it is given decoded pixels as numpy arrays.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from lightning_shards.errors import ConfigError, TransformError, leave_out_own_frames
from lightning_shards.samples.collate import BatchFormat, Sample
from lightning_shards.samples.generators import are_same
from lightning_shards.shards.urls import redact

SampleTransform: TypeAlias = Callable[..., Any]
"""A dict of fields to another one; with a parameter `rng` it gets a `numpy.random.Generator`."""


def fields_of(sample: Mapping[str, Any]) -> list[str]:
    """The names of its fields, without those that begin with two underscores."""
    return [name for name in sample if not name.startswith("__")]


def first_taking(transforms: Iterable[SampleTransform], field: str) -> SampleTransform | None:
    """The first sample transform that is given this field; None if there is none."""
    for transform in transforms:
        names = _taken_fields(transform)
        if names is None or field in names:
            return transform
    return None


def _taken_fields(transform: SampleTransform) -> frozenset[str] | None:
    """The names of the only fields that it is given; None for all of them."""
    given: Any = getattr(transform, "takes_fields", None)
    if given is None:
        return None
    return frozenset((given,) if isinstance(given, str) else given)


def _name_of(transform: SampleTransform) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


@dataclass(frozen=True)
class SampleStep:
    """One of the sample transforms.

    Attributes:
        called: What errors call it.
        function: The transform.
        takes_rng: Whether it has a parameter `rng`.
        taken: The names of the only fields that it is given; None for all of them.
    """

    called: str
    function: SampleTransform
    takes_rng: bool
    taken: frozenset[str] | None

    def apply(self, sample: Sample, settings: Mapping[str, Any]) -> Sample:
        """The sample with its new fields; the sample that was given is not changed.

        The transform gets the fields in their order, and then the entries that identify the sample.
        These are kept where it leaves them out.

        Raises:
            TransformError: It failed, returned no dict, or changed what is not its own; or
                `takes_fields` names what is no field.
        """
        fields = {name: sample[name] for name in fields_of(sample)}
        identity = {name: sample[name] for name in sample if name not in fields}
        taken = fields.keys() if self.taken is None else self.taken
        if unknown := sorted(taken - sample.keys()):
            problem = f"takes_fields names {unknown[0]!r}, which no sample has; name fields alone"
            raise TransformError(self._message(sample, problem))
        given = {name: value for name, value in fields.items() if name in taken} | identity
        others = {name: value for name, value in fields.items() if name not in taken}
        try:
            made: object = self.function(given, **settings)
        except ConfigError:  # of no sample
            raise
        except Exception as error:
            leave_out_own_frames(error)
            problem = f"failed: {type(error).__name__}: {error}"
            raise TransformError(self._message(sample, problem)) from error
        problem = _problem_of(made, identity, others)
        if problem:
            raise TransformError(self._message(sample, problem))
        return others | cast("Sample", made) | identity

    def _message(self, sample: Sample, problem: str) -> str:
        where = f"sample {sample.get('__key__')!r} of {redact(str(sample.get('__url__')))}"
        return f"{self.called}, on {where}: {problem}"


def sample_steps(
    transforms: Sequence[SampleTransform], takes_rng: Callable[[SampleTransform], bool]
) -> list[SampleStep]:
    """The sample transforms, with their names in errors."""
    return [
        SampleStep(
            f"sample_transforms[{number}], which is {_name_of(transform)}",
            transform,
            takes_rng(transform),
            _taken_fields(transform),
        )
        for number, transform in enumerate(transforms)
    ]


def _problem_of(made: object, identity: Sample, others: Sample) -> str:
    """What is wrong with the result of a sample transform; empty if nothing is."""
    if not isinstance(made, dict):
        return f"it returned no dict but a {type(made).__name__}; return the dict of all fields"
    for name, value in cast("dict[object, Any]", made).items():
        if not isinstance(name, str):
            return f"it returned a field named {name!r}; names of fields are texts"
        if name in identity and not are_same(value, identity[name]):
            return (
                f"it changed {name!r} from {identity[name]!r} to {value!r}, which identifies the "
                "sample; keep it, or leave it out"
            )
        if name.startswith("__") and name not in identity:
            return f"it returned a field {name!r}; let no field's name begin with '__'"
        if name in others:
            return _not_given(name)
    return ""


def _not_given(name: str) -> str:
    return f"it returned the field {name!r}, which it was not given; add it to `takes_fields`"


def require_not_taken(sample: Sample, others: Iterable[str]) -> None:
    """Check that a sample has none of the fields that no sample transform was given.

    Raises:
        TransformError: It has one.
    """
    taken = sorted(sample.keys() & set(others))
    if taken:
        raise TransformError(
            f"sample_transforms, on sample {sample['__key__']!r} of "
            f"{redact(str(sample['__url__']))}: {_not_given(taken[0])}"
        )


def require_same_fields(first: Sample, sample: Sample) -> None:
    """Check that a sample has the fields that the first one of its batch has.

    Raises:
        TransformError: It has others.
    """
    if first.keys() == sample.keys():
        return
    names, others = fields_of(first), fields_of(sample)
    differing = sorted(set(names) ^ set(others))
    if differing:
        has, lacks = (first, sample) if differing[0] in first else (sample, first)
        raise TransformError(
            f"after sample_transforms, sample {has['__key__']!r} has the field {differing[0]!r} "
            f"and sample {lacks['__key__']!r} of the same batch has not; all samples of a batch "
            "need the same fields"
        )


def batch_fields(
    names: Iterable[str], fields: Sequence[str], batch_format: BatchFormat
) -> list[str]:
    """The fields of a batch in their order: those of the configuration first, then the new ones.

    Args:
        names: The fields that its samples have after the sample transforms.
        fields: Those of the configuration.
        batch_format: A tuple has exactly the fields of the configuration.

    Raises:
        ConfigError: The batch is to be a tuple, and the sample transforms changed its fields.
    """
    made = dict.fromkeys(names)
    if batch_format == "tuple" and made.keys() != set(fields):
        raise ConfigError(
            f"batch_format='tuple' has places for the fields {list(fields)}, and sample_transforms "
            f"made {sorted(made)}; take batch_format='dict', or keep the fields"
        )
    return [name for name in fields if name in made] + [n for n in made if n not in fields]


def batch_fields_of(
    samples: Sequence[Sample],
    fields: Sequence[str],
    batch_format: BatchFormat,
    transforms: Sequence[SampleTransform],
) -> list[str]:
    """The fields of a batch of whole samples: those of `fields` if there are no sample transforms.

    Raises:
        ConfigError: As of `batch_fields`.
        TransformError: The fields of the samples differ.
    """
    if not transforms:
        return list(fields)
    for sample in samples:
        require_same_fields(samples[0], sample)
    return batch_fields(fields_of(samples[0]), fields, batch_format)
