"""The check that shards are not written to where their samples are read from.

The same command, given again, would find what it has written and take it for more samples, and so
would training on all tars of the folder.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_shards.errors import ConfigError

Identity = tuple[int, int]
"""The device and the number of a folder there, which are the same under each of its names."""


def require_outside(folder: str, outputs: Sequence[Path]) -> None:
    """Refuse folders to write that are in a folder of files, or that are this folder.

    Raises:
        ConfigError: One is.
    """
    identity = identity_of(folder)
    for output in outputs:
        real = Path(os.path.realpath(output))
        if any(identity_of(path) == identity for path in (real, *real.parents)):
            raise error_of_inside(output, folder)


def require_apart(tars: Iterable[str], outputs: Sequence[Path]) -> None:
    """Refuse folders to write that some of these tars are in.

    Raises:
        ConfigError: One is.
    """
    known = identities_of(outputs)
    for tar in tars:
        for path in {tar, os.path.realpath(tar)}:
            output = known.get(identity_of(Path(path).parent))
            if output is not None:
                raise ConfigError(
                    f"{output} is the folder of {tar}, and a pattern like *.tar would find samples "
                    "in the old shards and in the new ones; name another output folder"
                )


def error_of_inside(output: Path, folder: str) -> ConfigError:
    """The error for a folder to write that is in the input."""
    return ConfigError(
        f"{output} is in {folder}, and a next run would take its shards for samples; name an "
        f"output folder outside of {folder}"
    )


def identities_of(folders: Iterable[Path]) -> dict[Identity | None, Path]:
    """Those of the folders that exist, by their identities."""
    identities = ((identity_of(folder), folder) for folder in folders)
    return {identity: folder for identity, folder in identities if identity is not None}


def identity_of(path: str | Path) -> Identity | None:
    """The identity of what a path leads to; None if there is nothing, or no access to it."""
    try:
        status = os.stat(path)  # noqa: PTH116 - takes both kinds of paths
    except OSError:
        return None
    return status.st_dev, status.st_ino
