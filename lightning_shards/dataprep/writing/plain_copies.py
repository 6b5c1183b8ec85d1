"""Plain copies of compressed tars, for as long as shards are written from them.

Samples are written in any order and by any number of processes, and the bytes of a compressed tar
can only be had from its start on. So it is unpacked once, piece by piece, to a hidden folder in the
output folder. A copy has the time of change of its tar, so that a run that was killed goes on with
the copies that the next run makes.
"""

import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from lightning_shards.dataprep.processes import run_in_processes
from lightning_shards.dataprep.writing.journal import lock_output
from lightning_shards.errors import ConfigError, FileAccessError, ShardError
from lightning_shards.shards.files import make_folder, new_file, open_folder, open_regular, stamp_of
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tar.compression import compression_at
from lightning_shards.shards.tar.walk import damaged

COPIES_FOLDER: Final = ".lightning-shards.unpacked"

_PIECE: Final = 1 << 18
_MODULES: Final = {
    "gzip": "gzip",
    "bzip2": "bz2",
    "xz": "lzma",
    "zstandard": "compression.zstd",  # from Python 3.14 on
}


class _Packed(NamedTuple):
    """One compressed tar, and where its plain copy goes."""

    path: str
    kind: str
    copy: Path


@contextmanager
def plain_copies(
    paths: Sequence[str], folder: Path, *, processes: int = 1, show_progress: bool | None = None
) -> Generator[dict[str, str]]:
    """The paths of plain copies by the paths of those local tars that are compressed.

    The copies are in a hidden folder in `folder` until the block ends. Errors of the block name the
    compressed tars and not the copies.

    Raises:
        ConfigError: This Python cannot unpack such a tar, or another run is writing to the folder.
        DamagedShardError: A compressed tar is cut short, damaged, or changes meanwhile.
        FileAccessError: A copy cannot be written or removed, or a tar cannot be read.
        WorkerError: A process died.
    """
    kinds = {path: kind for path in paths if (kind := compression_at(path))}
    if not kinds:
        yield {}
        return
    for path, kind in kinds.items():
        _require_module(path, kind)
    is_new = not folder.exists()
    below = make_folder(folder.absolute(), COPIES_FOLDER)
    tars = [
        _Packed(path, kind, below / str(number) / Path(path).name)
        for number, (path, kind) in enumerate(kinds.items())
    ]
    try:
        with _locked(below):
            _unpack_all(tars, folder, processes, show_progress)
            yield {tar.path: str(tar.copy) for tar in tars}
    except ShardError as error:
        message = str(error)
        for tar in tars:
            message = message.replace(str(tar.copy), f"{tar.path} (unpacked)")
        raise type(error)(message) from None
    finally:
        if is_new:
            with suppress(OSError):  # the run has written to it
                folder.rmdir()


@contextmanager
def _locked(below: Path) -> Generator[None]:
    """Hold the folder of the copies, which is removed when the block ends."""
    with open_folder(below) as file:
        lock_output(file, below.parent)
        try:
            yield
        except BaseException:
            shutil.rmtree(below, ignore_errors=True)
            raise
        _remove(below)


def _remove(below: Path) -> None:
    try:
        shutil.rmtree(below)
    except OSError as error:
        raise FileAccessError(
            f"{below} cannot be removed: {error.strerror}; the shards are whole, so remove these "
            "copies by hand"
        ) from error


def _unpack_all(
    tars: Sequence[_Packed], folder: Path, processes: int, show_progress: bool | None
) -> None:
    for tar in tars:
        make_folder(tar.copy.parent)
    with (
        progress_line("unpacked", len(tars), str(folder), show=show_progress) as step,
        closing(run_in_processes(_unpack, tars, processes)) as results,
    ):
        for _ in results:
            step()


def _unpack(tar: _Packed) -> None:
    """Write the plain copy of one tar, which takes the memory of one piece and of the library."""
    with (
        os.fdopen(open_regular(tar.path), "rb") as packed,
        _module_of(tar.kind).open(packed) as plain,
        new_file(tar.copy, outlives_power=False) as copy,
    ):
        stamp = stamp_of(packed.fileno())
        for piece in _pieces(plain, packed, tar):
            copy.write(piece)
        copy.flush()
        if stamp_of(packed.fileno()) != stamp:
            raise damaged("changed while it was read: a program still writes it", tar.path, 0)
        time_ns = stamp[1]
        os.utime(copy.fileno(), ns=(time_ns, time_ns))


def _pieces(plain: BinaryIO, packed: BinaryIO, tar: _Packed) -> Iterator[bytes]:
    try:
        while piece := plain.read(_PIECE):
            yield piece
    except EOFError as error:
        what = f"is cut short: its {tar.kind} data has no end"
        raise damaged(what, tar.path, packed.tell()) from error
    except Exception as error:
        what = f"is damaged: its {tar.kind} data cannot be unpacked up to here ({error})"
        raise damaged(what, tar.path, packed.tell()) from error


def _module_of(kind: str) -> Any:
    return import_module(_MODULES[kind])


def _require_module(path: str, kind: str) -> None:
    try:
        _module_of(kind)
    except ImportError as error:
        raise ConfigError(
            f"{path} is compressed ({kind}), which this Python cannot unpack (3.14 can); unpack it "
            "by `zstd -d`, and give the plain tar"
        ) from error
