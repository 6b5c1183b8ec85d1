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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeVar

from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.readers.source import Source
from lightning_shards.samples.tensors import is_tensor
from lightning_shards.workers.fork_server import fork_server

MAIN_NAMES = {"__main__", "__mp_main__"}
"""Names of the main script; it has the second one in a process that was started by spawn."""

_OURS = ("numpy", "lightning_shards.workers.worker")
"""What each worker needs, whatever it reads."""

_IMAGE_LIBRARIES = ("cv2", "simplejpeg", "PIL.Image")
"""Imported with the first image. If the trainer has made a sample with them, workers need them."""

_T = TypeVar("_T")

_context: Any = contexts


def prepare_workers(sources: Iterable[Source]) -> None:
    """Start the fork server before it is needed, so that it imports what workers will need.

    It imports installed modules only: no code of the user's runs early. What is wrong with a source
    is an error when its loader is made, and what prevents the server one when workers start.
    """
    with suppress(Exception):
        each = [modules_to_preload(source, modules_of(source)) for source in sources]
        fork_server.start([name for modules in each for name in modules])


def require_sendable(source: Source) -> set[str]:
    """Check that a source can travel to workers that are not forked from this process.

    Returns:
        The modules that they import for it.

    Raises:
        ConfigError: A callable of the user's cannot be sent.
        WorkerError: Workers would import the main script, which has no main guard.
    """
    modules = tried_to_pickle(source, modules_of, "worker processes")
    if not MAIN_NAMES.isdisjoint(modules):
        require_main_guard()
    return modules


def tried_to_pickle(source: Source, pickled: Callable[[Any], _T], where: str) -> _T:
    """What this function makes of a source.

    Raises:
        ConfigError: It cannot pickle a callable of the user's, which is named.
    """
    try:
        return pickled(source)
    except Exception:
        for name, function in source.describe().callables:
            try:
                pickled(function)
            except Exception as error:  # noqa: BLE001 whatever its own __reduce__ raises
                kind = getattr(function, "__qualname__", type(function).__qualname__)
                raise ConfigError(
                    f"{name} is {kind}, which cannot be sent to {where} "
                    f"({type(error).__name__}: {error}); {_remedy(error)}, or set num_workers=0"
                ) from None
        raise


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


def modules_to_preload(source: Source, modules: Iterable[str]) -> list[str]:
    """The installed modules that the workers of a source import: itself and `modules` need them."""
    torch = ["torch"] * source.describe().loads_torch
    images = [name for name in _IMAGE_LIBRARIES if name in sys.modules]
    of_user = [name for name in modules if not _is_installed(name)]
    referred = [name for module in of_user for name in _referred(sys.modules.get(module))]
    return [*_OURS, *torch, *images, *filter(_is_installed, [*modules, *referred])]


def _referred(module: ModuleType | None) -> Iterator[str]:
    """Names of the modules that a module has imported, or has imported something from."""
    for value in list(vars(module).values()) if module else []:
        home = "__name__" if isinstance(value, ModuleType) else "__module__"
        name = getattr(value, home) if isinstance(value, ModuleType | type | FunctionType) else None
        if isinstance(name, str):
            yield name


def _is_installed(name: str) -> bool:
    """Whether it is a module of this package or of an installed one, and not of the user's."""
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and not {"site-packages", "dist-packages"}.isdisjoint(
        Path(file).parts
    )


def modules_of(value: object) -> set[str]:
    """The modules that a process imports to unpickle a value.

    Raises:
        Exception: The value cannot be pickled, or something in it is of a main script that workers
            do not import.
    """
    recorder = _Recorder(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    before = _context.get_spawning_popen()
    _context.set_spawning_popen(SimpleNamespace(DupFd=int, duplicate_for_child=int))
    try:
        recorder.dump(value)
    finally:
        _context.set_spawning_popen(before)
    return recorder.modules


class _Recorder(ForkingPickler):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        is_named = isinstance(obj, type | FunctionType | BuiltinFunctionType)
        named: Any = obj if is_named else type(obj)
        if is_named and named.__module__ in MAIN_NAMES and _main_script() is None:
            raise pickle.PicklingError(
                f"{named.__qualname__} is defined in __main__, which workers cannot import: it is "
                "a notebook, standard input, `python -c` or `python -m package`"
            )
        if isinstance(named.__module__, str):
            self.modules.add(named.__module__)
        return (int, ()) if is_tensor(obj) else NotImplemented  # torch counts who gets its memory


def _main_script() -> Path | None:
    """The main script that workers import; None in a notebook, or with `python -m package`."""
    told = spawn.get_preparation_data("")
    name, file = told.get("init_main_from_name", ""), told.get("init_main_from_path", "")
    if name:
        file = getattr(sys.modules["__main__"], "__file__", name)
        return None if name.endswith("__main__") else Path(file)
    return Path(file) if Path(file).is_file() else None


def require_main_guard() -> None:
    """Check that workers can import the main script without running it again.

    A worker that is not forked imports the main script. Without the guard it would run the training
    once more and wait for ranks that never come, and the trainer would wait for that worker.

    Raises:
        WorkerError: The main script has no ``if __name__ == "__main__":``.
    """
    script = _main_script()
    text = ""
    with suppress(OSError, ValueError):  # it is no text: a zip archive, for instance
        text = "" if script is None else script.read_text(encoding="utf-8")
    if text and not re.search(r"^if\b.*\b__name__\b", text, re.MULTILINE):
        raise WorkerError(
            f'{script} has no `if __name__ == "__main__":`. Worker processes import this script, '
            "and would run the training in it once more. Put what it does into a function main() "
            'and end the script with\n\n    if __name__ == "__main__":\n        main()\n\n'
            'or set LoaderConfig(multiprocessing_context="fork") or num_workers=0'
        )
