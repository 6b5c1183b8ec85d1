"""The implementations of the seams in memory, which are those of the examples."""

import sys
from importlib import util
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """The module of an example, also for a worker process that unpickles what it defines."""
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        sys.modules[name] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
