"""The tree of errors; each message says what went wrong, with which value, and what to do.

Every error is a `ShardError` and also the builtin error that it refines, so that code which does
not know this package can still use ``except ValueError``::

    ShardError
    ├── ConfigError (ValueError)            a setting, or two settings that do not go together
    │   └── UnsafeError                     a value that could run code and was not switched on
    ├── PlanError (ValueError)              an epoch that cannot be cut into equal steps
    ├── UrlError (ValueError)               a pattern of shards that cannot be read
    ├── ShardNotFoundError (FileNotFoundError)   a shard, or all that a pattern should have matched
    ├── FileAccessError (OSError)           a file that exists and cannot be opened or read
    ├── StorageError (OSError)              a remote object that could not be read or written
    ├── IndexMismatchError (ValueError)     two sources of counts, or counts and shard, disagree
    ├── DamagedShardError (OSError)         a tar whose bytes are not what a tar holds
    ├── SampleError (ValueError)            one sample cannot be turned into a batch row
    │   ├── MissingFieldError (KeyError)    it has none of the suffixes that a field asks for
    │   └── TransformError                  a transform raised an error on it, or a stage did
    ├── StateError (ValueError)             a checkpoint of another data set or another run
    ├── DigestError (RuntimeError)          samples served that are not those of the order
    ├── WorkerError (RuntimeError)          a worker that could not start or that died
    └── RankError (RuntimeError)            another rank failed: its message, raised here too
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec
from operator import index
from pathlib import PurePath
from typing import Any, cast

_PACKAGE = __name__.partition(".")[0] + "."


class ShardError(Exception):
    """The root of all errors that this package raises on purpose."""

    def __str__(self) -> str:
        """The message as it was written (`KeyError` would put it in quotes)."""
        return str(self.args[0]) if self.args else ""


class ConfigError(ShardError, ValueError):
    """A setting has a value that cannot work, alone or beside another one."""


class UnsafeError(ConfigError):
    """A value that can run a program (a pickle, a `pipe:` URL) is used and not switched on."""


class PlanError(ShardError, ValueError):
    """The samples cannot be cut into equal steps for all ranks."""


class UrlError(ShardError, ValueError):
    """A shard pattern cannot be read: an open brace, a directory, an unknown scheme."""


class ShardNotFoundError(ShardError, FileNotFoundError):
    """A shard does not exist, or a pattern matches none."""


class FileAccessError(ShardError, OSError):
    """A file exists and cannot be used: no permission, a fifo or folder, or too large."""


class StorageError(ShardError, OSError):
    """Bytes of a remote object could not be fetched or written, after all retries.

    Attributes:
        is_final: Whether the store has answered, and would answer the same again.
    """

    is_final: bool = False


class IndexMismatchError(ShardError, ValueError):
    """Two sources disagree on how many samples a shard holds."""


class DamagedShardError(ShardError, OSError):
    """The bytes of a shard are not a whole tar archive."""


class SampleError(ShardError, ValueError):
    """A sample cannot be decoded, transformed or put into a batch."""


class MissingFieldError(SampleError, KeyError):
    """A sample has none of the suffixes that a field may come from."""


class TransformError(SampleError):
    """A transform or a stage raised an error; that error is the cause of this one.

    The cause of one that comes from a worker process is the text of that error.
    """


class StateError(ShardError, ValueError):
    """A checkpoint does not belong to this data set or this run."""


class DigestError(ShardError, RuntimeError):
    """The samples that the ranks were served are not those of the order."""


class WorkerError(ShardError, RuntimeError):
    """A worker could not be started, or ended without being asked to."""


class RankError(ShardError, RuntimeError):
    """Another rank failed; its message is raised on this one, so that none waits for it."""


def leave_out_own_frames(error: BaseException) -> None:
    """Let the error's traceback begin in the first frame outside of this package."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.tb_next
    error.__traceback__ = frame


def count_of(number: int, noun: str) -> str:
    """A number with its noun, for messages.

    >>> count_of(1, "rank"), count_of(2_000, "shard"), count_of(2, "process")
    ('1 rank', '2,000 shards', '2 processes')
    """
    plural = "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


@contextmanager
def errors_about(what: str, *kinds: type[ShardError]) -> Generator[None]:
    """A context in which errors of these kinds say what they are about, if they do not already.

    Where that is an empty text, they stay as they are.
    """
    try:
        yield
    except kinds as error:
        if what not in str(error):
            error.args = (f"{what}: {error}", *error.args[1:])
        raise


_MOST = 2**63 - 1
"""The greatest int64."""

MOST_SEED = 2**64 - 1
"""The greatest seed of a random stream (`plan.draws`)."""


def require_at_least(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """A whole number as a plain int; one of numpy or torch is a whole number, and a bool is none.

    Raises:
        ConfigError: It is smaller than the least or greater than the most, by default what an
            integer of 64 bits holds, or not a whole number.
    """
    if not isinstance(value, bool):
        with suppress(TypeError):
            value = index(value)
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")
    return value


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check a setting against its choices.

    Raises:
        ConfigError: It is not one of them.
    """
    if value not in choices:
        named = [choice for choice in choices if isinstance(choice, str)]
        meant = get_close_matches(str(value), named, 1)
        question = f"; did you mean {meant[0]!r}?" if meant else ""
        raise ConfigError(
            f"{name} must be one of {named or list(choices)}, got {value!r}{question}"
        )


def require_library(what: str, module: str, package: str, extra: str, otherwise: str = "") -> None:
    """Check that a library is installed.

    Args:
        what: What needs it.
        module: Its name where it is imported.
        package: Its name where it is installed.
        extra: The extra of this package that has it.
        otherwise: What else helps.

    Raises:
        ConfigError: It is not.
    """
    if find_spec(module) is None:
        raise ConfigError(
            f"{what} needs {package}, which is not installed: pip install "
            f"'lightning-shards[{extra}]'{otherwise}"
        )


def require_mapping(name: str, value: object, example: str = "{name: ...}") -> None:
    """Check that a setting is a mapping from texts.

    Raises:
        ConfigError: It is none, or a key is no text.
    """
    if not isinstance(value, Mapping):
        kind = type(value).__name__  # the value may hold a secret
        raise ConfigError(f"{name} must be a mapping, as in {example}, got a {kind}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise ConfigError(
                f"{name} must have texts as its keys, got {key!r}; write the key in quotes, since "
                "YAML reads no, off and 3 as other values than texts"
            )


def path_as_text(value: Any) -> Any:
    """The text of a path, and any other value as it is."""
    return str(value) if isinstance(value, PurePath) else value


def urls_as_texts(urls: Any, setting: str = "urls") -> str | list[str]:
    """The setting `urls` or another one, where paths stand for texts, any sequence for a list.

    Raises:
        ConfigError: It is neither a text nor a sequence of texts.
    """
    urls = path_as_text(urls)
    if isinstance(urls, str):
        return urls
    if not isinstance(urls, Sequence) or isinstance(urls, bytes | bytearray):
        raise ConfigError(
            f"{setting} must be a path, a pattern or a list of them, got a {type(urls).__name__}"
        )
    texts: list[Any] = list(map(path_as_text, cast("Sequence[object]", urls)))
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(
                f"{setting}[{number}] must be a path or a pattern, got a {type(text).__name__}"
            )
    return texts
