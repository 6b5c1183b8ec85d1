"""What people see of a data module: a paragraph about its splits, and a table of one batch."""

import html
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
import torch

from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.splits import SplitConfig, SplitName
from lightning_shards.errors import ShardError, count_of
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.generators import preserved_globals
from lightning_shards.samples.tensors import with_tensors
from lightning_shards.shards.urls import redact_pattern
from lightning_shards.workers.inline import InlinePool, private_source

_MAX_TEXT: Final = 60  # letters of a name or an example
_MAX_PATTERN: Final = 200  # letters of the shards' pattern
_MAX_TYPES: Final = 1000  # entries of a list whose types are looked at


class Summarized(Protocol):
    """The settings of a data module that its summary names."""

    splits: dict[SplitName, SplitConfig | None]
    fields: dict[str, str]
    num_workers: int
    loader_config: LoaderConfig


def module_text(
    module: Summarized,
    settings_of: Callable[[SplitName], SplitConfig],
    source_of: Callable[[SplitName], Source],
    indexed: Iterable[SplitName],
    loaders: Mapping[SplitName, ShardLoader],
) -> str:
    """A line about a data module and one about each split; nothing is counted or opened for it.

    Args:
        module: The data module.
        settings_of: Gives the settings of a split with the defaults filled in.
        source_of: Gives the source of a split; called only for splits whose shards are known.
        indexed: Splits whose shards are known.
        loaders: Loaders that the trainer uses.
    """
    pool, num_workers = module.loader_config.pool, module.num_workers
    workers = "the trainer's own thread"
    if num_workers and pool != "inline":
        kinds = {"threads": "thread", "ray": "actor"}
        workers = count_of(num_workers, kinds.get(pool, "worker process")) + " of each rank"
    known = set(indexed)
    fields = ", ".join(map(_shown, module.fields))
    lines = [f"{type(module).__name__}: batches of {fields}, made by {workers}"]
    for split, config in module.splits.items():
        if config is None:
            continue
        loader = loaders.get(split)
        if loader is not None:
            text = _loader_text(loader)
        elif split in known:
            text = _source_text(source_of, split)
        else:
            text = _settings_text(settings_of, split)
        lines.append(f"{split}: {text}")
    return "\n".join(lines)


def as_html(described: object) -> str:
    """The `repr` of an object for a notebook: a paragraph for each line, with its name in bold."""
    parts = (html.escape(line).partition(":") for line in repr(described).splitlines())
    return "".join(f"<p><b>{name}</b>{colon}{text}</p>" for name, colon, text in parts)


def _loader_text(loader: ShardLoader) -> str:
    return loader.source.describe().epoch_text(loader.plan, len(loader))


def _source_text(source_of: Callable[[SplitName], Source], split: SplitName) -> str:
    try:
        source = source_of(split)
    except ShardError as error:  # a summary may not fail; training will say the same
        return f"cannot be read: {error}"
    plan = source.epochs.plan(world_size=1)
    return source.describe().epoch_text(plan, plan.steps)


def _settings_text(settings_of: Callable[[SplitName], SplitConfig], split: SplitName) -> str:
    try:
        config = settings_of(split)
    except ShardError as error:  # as above: a setting was changed into one that cannot work
        return f"cannot be read: {error}"
    parts = config.component_splits().values() or [config]
    given = [part.urls or [] for part in parts]
    urls = [url for each in given for url in ([each] if isinstance(each, str) else each)]
    more = f" and {len(urls) - 1:,} more" if len(urls) > 1 else ""
    order = config.sampling if config.mix is None else f"a mix of {', '.join(config.mix)}"
    return (
        f"{_shown(redact_pattern(urls[0]), _MAX_PATTERN)}{more}, {order}, batches of "
        f"{count_of(config.batch_size or 1, 'sample')} per rank; not counted yet"
    )


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One entry of a batch, in words.

    Attributes:
        name: Its key.
        dtype: The dtype of a tensor; of a list the types of its entries.
        shape: The shape of a tensor; of a list its length.
        values: Least and largest number; of a list its first entry.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: str

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The texts of the row."""
        return _shown(self.name), self.dtype, str(self.shape), self.values


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The entries of one batch as a table; it keeps no sample.

    Attributes:
        title: What the batch is.
        rows: The entries, in the order of the batch.
    """

    title: str
    rows: tuple[BatchRow, ...]

    def __repr__(self) -> str:
        """The title, and a line for each entry."""
        rows = [_COLUMNS, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        """The same as a table of HTML, which notebooks show."""
        rows = [_html_row(row.cells, "td") for row in self.rows]
        caption = f"<caption>{html.escape(self.title)}</caption>"
        head = f"<thead>{_html_row(_COLUMNS, 'th')}</thead>"
        return f"<table>{caption}{head}<tbody>{''.join(rows)}</tbody></table>"


_COLUMNS: Final = ("name", "dtype", "shape", "values")


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def peek_at(
    split: SplitName, source: Source, fields: Iterable[str], timeout_s: float
) -> BatchTable:
    """The first batch of a source as a table, made in this thread.

    A fit in progress does not notice it: the source has no state, its transforms are copied, and
    the global generators are put back.

    Args:
        split: Name of the split.
        source: Makes the batch.
        fields: Names of the entries of a batch that is a tuple; none if they have no names.
        timeout_s: Seconds after which a warning says that the batch is late; 0: never.

    Raises:
        ShardError: The batch cannot be made.
    """
    place = Place()
    source.epochs.plan(place.world_size).require_steps(split)
    with preserved_globals():
        stream = InlinePool(timeout_s).start(private_source(source), place, Cursor())
        try:
            batch = with_tensors(next(stream).batch)
        finally:
            stream.close()
    entries = _entries_of(batch, fields)
    size = count_of(source.epochs.plan(place.world_size).size(0, place.rank), "sample")
    rows = tuple(_row(name, column) for name, column in entries.items())
    return BatchTable(f"{split}: the first batch of epoch 0 on a single rank, {size}", rows)


def _entries_of(batch: Any, fields: Iterable[str]) -> dict[str, object]:
    """The entries of any batch by name, or by number if they have no names."""
    if isinstance(batch, dict):
        return {str(name): entry for name, entry in cast("dict[object, object]", batch).items()}
    if not isinstance(batch, tuple):
        return {"batch": batch}
    entries = cast("tuple[object, ...]", batch)
    names = list(fields) or list(map(str, range(len(entries))))
    return dict(zip(names, entries, strict=True))


def _row(name: str, column: object) -> BatchRow:
    if isinstance(column, torch.Tensor):
        dtype, shape = _array_dtype(column), _shape_of(column)
        return BatchRow(name, dtype, shape, _range_of(column))
    if not isinstance(column, list | tuple):
        return BatchRow(name, type(column).__name__, (), _example(column))
    entries = cast("Sequence[object]", column)
    types = sorted({type(entry).__name__ for entry in entries[:_MAX_TYPES]})
    example = _example(entries[0]) if entries else "empty"
    example += ", …" if len(entries) > 1 else ""
    return BatchRow(name, _shown(", ".join(types)), (len(entries),), example)


def _range_of(tensor: torch.Tensor) -> str:
    """The least and the largest number, and how many are not finite; empty if torch cannot say."""
    if not tensor.numel():
        return "empty"
    if tensor.is_complex() or tensor.layout != torch.strided:
        return ""
    try:
        values = tensor.detach().cpu()
        numbers: np.ndarray[Any, Any] = (
            values.double() if values.is_floating_point() else values
        ).numpy()
    except (RuntimeError, TypeError):  # quantized, nested, or without data
        return ""
    finite = numbers[np.isfinite(numbers)] if values.is_floating_point() else numbers
    odd = numbers.size - finite.size
    if not finite.size:
        return f"none of {odd:,} is finite"
    least, most = finite.min().item(), finite.max().item()
    span = f"all {_number(least)}" if least == most else f"{_number(least)} to {_number(most)}"
    return f"{span}; {odd:,} of {numbers.size:,} not finite" if odd else span


def _number(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)


def _example(value: object) -> str:
    """A value in a few words, with control characters escaped."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = cast("torch.Tensor", value)
        return f"{_array_dtype(array)} {_shape_of(array)}"
    if isinstance(value, bytes):
        value = value[:_MAX_TEXT]  # all of it would be escaped first
    return _shown(_SHORT.repr(value))


def _array_dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _shape_of(array: Any) -> tuple[int, ...]:
    try:
        return tuple(array.shape)
    except RuntimeError:  # of a nested tensor
        return ()


def _shown(text: str, most: int = _MAX_TEXT) -> str:
    """A text in one line and of limited length."""
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 1]}…"


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _MAX_TEXT
