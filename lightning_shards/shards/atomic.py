"""Files that appear under their name whole or not at all, whenever the program is killed.

The contents go to `.NAME.part` beside the file, which is renamed once it is on the disk. That name
is always the same, so that what a killed run left is overwritten by the next and nothing piles up
in a folder of data; a lock keeps two programs from writing it at the same time.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lightning_shards.errors import ConfigError


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO, None, None]:
    """A file to write, put at `path` when the block ends; after an error `path` is as it was.

    Raises:
        ConfigError: Another program is writing the same file.
    """
    part = path.with_name(f".{path.name}.part")
    with _locked(part) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a power cut leaves the name without the contents
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def replace_file(path: Path, data: bytes | str) -> None:
    """Put these contents at `path` in one step; nothing is touched if they are there already."""
    contents = data.encode() if isinstance(data, str) else data
    if not path.is_file() or path.read_bytes() != contents:
        with new_file(path) as file:
            file.write(contents)


def _locked(part: Path) -> BinaryIO:
    """The empty file at `part`, open and locked for as long as it is open."""
    while True:
        file = open(part, "r+b", opener=_opener)  # noqa: SIM115 the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(f"{part} is being written by another program; wait for it") from error
        if _is_at(part, file):
            file.truncate()
            return file
        file.close()  # its writer renamed it between our opening and our lock


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o644)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
