"""The check of the main script, which worker processes import unless they are forked."""

import ast
import sys
from pathlib import Path

from lightning_shards.errors import WorkerError


def require_main_guard() -> None:
    """Check that workers can import the main script without running it again.

    A worker that is not forked imports the main script. Without the guard it would run the training
    once more and wait for ranks that never come, and the trainer would wait for that worker.

    Raises:
        WorkerError: The main script has no ``if __name__ == "__main__":``.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return  # a notebook, or `python -m package`: workers do not import these
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # its text cannot be read as a script: a zip archive, for instance
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    names = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
    if "__name__" not in names:
        raise WorkerError(
            f'{file} has no `if __name__ == "__main__":`. Worker processes import this script, and '
            "would run the training in it once more. Put what it does into a function main() and "
            'end the script with\n\n    if __name__ == "__main__":\n        main()\n\n'
            'or set LoaderConfig(multiprocessing_context="fork") or num_workers=0'
        )
