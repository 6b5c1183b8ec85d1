"""What worker processes import: the main script if they must, and the rest once for all of them.

A worker that is not forked from the trainer has to import the modules in which what travels to it
is defined. What these import of installed packages (torch, above all) is imported in the fork
server, once. Modules of the user, the main script among them, are imported in each worker: they may
open files when they are imported.
"""

import io
import multiprocessing.context as contexts
import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from lightning_shards.errors import ConfigError, ShardError, WorkerError
from lightning_shards.readers.source import Source
from lightning_shards.samples.tensors import is_tensor
from lightning_shards.workers.fork_server import fork_server

_MAIN = ("__main__", "__mp_main__")
"""Names of the main script; it has the second one in a process that was started by spawn."""

_CANNOT_BE_PICKLED = (AttributeError, TypeError, RuntimeError, pickle.PicklingError)

_OURS = ("numpy", "lightning_shards.workers.worker")
"""What each worker needs, whatever it reads."""

_IMAGE_LIBRARIES = ("cv2", "simplejpeg", "PIL.Image")
"""Imported with the first image. If the trainer has made a sample with them, workers need them."""


_context: Any = contexts
_process: Any = process


class WorkerImports:
    """What the workers of a source import.

    Args:
        source: The source that is sent to them.

    Attributes:
        from_main: A class or function of the main script that travels; None if there is none, and
            then the main script is not imported.
        modules: Names of modules that can be imported once for all workers.
        sent: The source as it is sent: pickled already, unless each worker needs handles of its own
            for what is in it.

    Raises:
        ConfigError: A transform or a stage cannot be sent.
        WorkerError: Workers would run the main script again.
    """

    def __init__(self, source: Source) -> None:
        modules, content = _pickled_source(source)
        self.sent = source if content is None else cast("Source", PickledOnce(content))
        self.from_main = _from_main(modules)
        if self.from_main is not None:
            require_main_guard()
        torch = ["torch"] * source.describe().loads_torch
        images = [name for name in _IMAGE_LIBRARIES if name in sys.modules]
        self.modules = [*_OURS, *torch, *images, *_installed(modules)]


def prepare_workers(sources: Iterable[Source]) -> None:
    """Start the fork server before it is needed, so that it imports what workers will need.

    It imports installed modules only: no code of the user's runs early. What is wrong with a source
    is an error when its loader is made, and what prevents the server one when workers start.
    """
    with suppress(ShardError, OSError, *_CANNOT_BE_PICKLED):
        fork_server.start(_OURS)
        for source in sources:
            fork_server.start(WorkerImports(source).modules)


def end_fork_server() -> None:
    """End the fork server, unless a stream uses it; it starts again when it is needed."""
    fork_server.end_unused()


def require_guard_for(source: Source) -> None:
    """Check before a start that what travels can, and the main script if it is defined there.

    Raises:
        ConfigError: A callable of the user's cannot be sent.
        WorkerError: The main script has no main guard.
    """
    if problem := _not_sent(source):
        raise problem
    try:
        require_main_guard()
    except WorkerError:
        if _sends_main(source):
            raise


def _sends_main(source: Source) -> bool:
    with suppress(ConfigError, *_CANNOT_BE_PICKLED):  # the start says so, if there is one
        return _from_main(_pickled_source(source).modules) is not None
    return False


def _from_main(modules: dict[str, str]) -> str | None:
    """A thing of the main script that travels; None if there is none."""
    return next(filter(None, map(modules.get, _MAIN)), None)


def _pickled_source(source: Source) -> "Pickled":
    try:
        return pickled(source)
    except Exception:
        if problem := _not_sent(source):
            raise problem from None
        raise


def _not_sent(source: Source) -> ConfigError | None:
    """The error about the transform or stage that cannot be pickled; None if all can be."""
    for name, function in source.describe().callables:
        try:
            pickled(function)
        except Exception as error:  # noqa: BLE001 whatever its own __reduce__ raises
            kind = getattr(function, "__qualname__", type(function).__qualname__)
            return ConfigError(
                f"{name} is {kind}, which cannot be sent to worker processes "
                f"({type(error).__name__}: {error}); {_remedy(error)}, or set num_workers=0"
            )
    return None


def _remedy(error: Exception) -> str:
    if isinstance(error, AttributeError | pickle.PicklingError):  # a name that cannot be found
        return (
            "define it at the top level of a module, where they can import it (no lambda, no "
            "function inside of a function)"
        )
    return (
        "let it hold only what can be pickled: open files, databases and sessions in its first "
        "call, which each worker makes by itself"
    )


def _installed(names: Iterable[str]) -> list[str]:
    """The installed ones of these modules, and those that the others refer to."""
    found: dict[str, None] = {}
    for name in names:
        module = sys.modules.get(name)
        if module is None:
            continue
        referred = [name] if _is_installed(name) else list(_referred(module))
        found.update(dict.fromkeys(filter(_is_installed, referred)))
    return list(found)


def _referred(module: ModuleType) -> Iterator[str]:
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if isinstance(name, str):
            yield name


def _home(value: object) -> object:
    return value.__module__ if isinstance(value, type | FunctionType) else None


def _is_installed(name: str) -> bool:
    """Whether it is a module of this package or of an installed one, and not of the user's."""
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and not {"site-packages", "dist-packages"}.isdisjoint(
        Path(file).parts
    )


class Pickled(NamedTuple):
    """What a process gets to unpickle a value.

    Attributes:
        modules: Modules that it imports, each with a thing defined in it.
        content: The bytes; None if they would hold handles of a single process.
    """

    modules: dict[str, str]
    content: bytes | None


class PickledOnce:
    """Stands for a value where it is sent to several processes; each of them finds the value."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._content,)


class _NoProcess:
    """Stands for a process that is started, while a value is pickled that may travel to many."""

    DupFd = int

    def __init__(self) -> None:
        self.has_handles = False

    def duplicate_for_child(self, fd: int) -> int:
        self.has_handles = True
        return fd


def pickled(value: object) -> Pickled:
    """A value, pickled for processes that are not known yet.

    Raises:
        Exception: The value cannot be pickled, or something in it is of a main script that workers
            do not import.
    """
    file, popen = io.BytesIO(), _NoProcess()
    recorder = _Recorder(file, popen)
    before = _context.get_spawning_popen()
    _context.set_spawning_popen(popen)
    try:
        recorder.dump(value)
    finally:
        _context.set_spawning_popen(before)
    return Pickled(recorder.modules, None if popen.has_handles else file.getvalue())


class _Recorder(ForkingPickler):
    def __init__(self, file: io.BytesIO, popen: _NoProcess) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.modules: dict[str, str] = {}
        self._popen = popen

    def reducer_override(self, obj: Any) -> Any:
        if is_tensor(obj):
            self._popen.has_handles = True  # torch counts who gets its memory
        is_named = isinstance(obj, type | FunctionType | BuiltinFunctionType)
        named: Any = obj if is_named else type(obj)
        if is_named and named.__module__ in _MAIN and not _is_imported(named.__module__):
            raise pickle.PicklingError(
                f"{named.__qualname__} is defined in __main__, which workers cannot import: it is "
                "a notebook, standard input, `python -c` or `python -m package`"
            )
        if isinstance(named.__module__, str):
            self.modules.setdefault(named.__module__, named.__qualname__)
        return NotImplemented


def _is_imported(main: str) -> bool:
    """Whether workers import this main script, as `multiprocessing.spawn` does or does not."""
    module = sys.modules.get(main)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return _is_module(spec.name)
    return file is not None and Path(_process.ORIGINAL_DIR or "", file).is_file()


def _is_module(name: str) -> bool:
    return name.rpartition(".")[2] != "__main__"


def require_main_guard() -> None:
    """Check that workers can import the main script without running it again.

    A worker that is not forked imports the main script. Without the guard it would run the training
    once more and wait for ranks that never come, and the trainer would wait for that worker.

    Raises:
        WorkerError: The main script has no ``if __name__ == "__main__":``.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and not _is_module(spec.name)):
        return  # a notebook, or `python -m package`: workers do not import these
    try:
        script = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return  # it is no text: a zip archive, for instance
    if not re.search(r"^if\b.*\b__name__\b", script, re.MULTILINE):
        raise WorkerError(
            f'{file} has no `if __name__ == "__main__":`. Worker processes import this script, and '
            "would run the training in it once more. Put what it does into a function main() and "
            'end the script with\n\n    if __name__ == "__main__":\n        main()\n\n'
            'or set LoaderConfig(multiprocessing_context="fork") or num_workers=0'
        )
