"""The folder of predictions: the names of its files, what may be in it, and merging them."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from lightning_shards.errors import ConfigError, FileAccessError, SampleError, count_of
from lightning_shards.predictions.formats import PREDICTION_FORMATS, PredictionFormat
from lightning_shards.predictions.rank_file import WrittenFile
from lightning_shards.shards.atomic import new_file

_STEM = "predictions"


def merged_name(loader: str, file_format: PredictionFormat) -> str:
    """`predictions.csv`; for one of several data loaders `predictions-LOADER.csv`."""
    stem = f"{_STEM}-{loader}" if loader else _STEM
    return f"{stem}.{file_format}"


def rank_name(name: str, rank: int, world_size: int) -> str:
    """The name of one rank's share of a file.

    >>> rank_name("predictions.csv", 1, 4)
    'predictions-00001-of-00004.csv'
    """
    path = Path(name)
    return f"{path.stem}-{rank:05d}-of-{world_size:05d}{path.suffix}"


def require_no_results(folder: Path, file_format: PredictionFormat) -> None:
    """Refuse a folder whose files would be mixed up with the predictions.

    Raises:
        ConfigError: It holds predictions, or other files of this format.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    results = [name for name in names if _is_result(name, file_format)]
    if results:
        others = f" and {len(results) - 1} more" if len(results) > 1 else ""
        raise ConfigError(
            f"{folder} already holds {results[0]}{others}, and predictions are not mixed with other"
            " results: delete them, or name another folder"
        )


def _is_result(name: str, file_format: PredictionFormat) -> bool:
    if name.startswith("."):  # a file that a killed run was writing
        return False
    suffix = name.rpartition(".")[2]
    return suffix == file_format or (name.startswith(_STEM) and suffix in PREDICTION_FORMATS)


def merge_files(
    folder: Path, files: Sequence[WrittenFile], name: str, file_format: PredictionFormat
) -> None:
    """Merge the files of all ranks into one, in order of ids, and remove them.

    Files that are in order are merged as they are read; the rows of others are sorted in memory.

    Raises:
        FileAccessError: A file is not in the folder of this machine, or is not the one written.
        ConfigError: The ranks have different columns.
        SampleError: A sample has two rows.
    """
    paths = [folder / file.name for file in files]
    _require_files(paths)
    _require_same_columns(files)
    expected = sum(file.rows for file in files)
    streams = [_in_order(path, file, file_format) for path, file in zip(paths, files, strict=True)]
    with new_file(folder / name) as target:
        writer = PREDICTION_FORMATS[file_format].write(target, files[0].types)
        num_rows = 0
        try:
            for row in _each_once(heapq.merge(*streams, key=itemgetter(0))):
                writer.write_row(row)
                num_rows += 1
        finally:
            writer.finish()  # pyarrow would do so later, when the file is closed
        if num_rows != expected:
            raise FileAccessError(
                f"the files of the ranks in {folder} hold {count_of(num_rows, 'row')}, and "
                f"{expected:,} were written: the folder is not the one that the ranks wrote to, "
                "or a file was changed"
            )
    for path in paths:
        path.unlink()


def _each_once(rows: Iterable[tuple[tuple[int, int], object]]) -> Iterator[object]:
    """The rows, which come in order of their ids."""
    last_id = (-1, -1)
    for sample_id, row in rows:
        if sample_id == last_id:
            raise SampleError(
                f"sample {sample_id[1]} of shard {sample_id[0]} was predicted twice, and a merged "
                "file has each sample once; predict with sampling='sequential', or without merge. "
                "The files of the ranks are kept"
            )
        yield row
        last_id = sample_id


def _require_same_columns(files: Sequence[WrittenFile]) -> None:
    for file in files:
        if list(file.types.items()) != list(files[0].types.items()):
            raise ConfigError(
                f"{file.name} and {files[0].name} differ in the names, the order or the types of "
                "their columns and cannot be merged; let predict_step return the same on all "
                "ranks. Both files are kept"
            )


def _require_files(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise FileAccessError(
                f"{path} is not on the machine of rank 0, which merges: the ranks do not share "
                "this folder. Their files are kept, each on its own machine: copy them into one "
                "folder, or name a folder that all machines see"
            )


def _in_order(
    path: Path, file: WrittenFile, file_format: PredictionFormat
) -> Iterator[tuple[tuple[int, int], object]]:
    rows = PREDICTION_FORMATS[file_format].read(path)
    return rows if file.is_sorted else iter(sorted(rows, key=itemgetter(0)))
