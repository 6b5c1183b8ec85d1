"""python .ci/rooms.py: files and code lines of each room of package, tests and benchmarks.

A code line holds a token of code: blank lines, comments and docstrings cost nothing, so that good
comments are free.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_shards"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(path: Path) -> int:
    """How many lines of a file hold code."""
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # a docstring, or one under a name
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(lines)


def main() -> None:
    """Print the table, the largest room of the package first."""
    rooms: dict[str, list[int]] = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        room = inside.parts[0] if len(inside.parts) > 1 else "(top)"
        rooms.setdefault(room, []).append(code_lines(path))
    rooms = dict(sorted(rooms.items(), key=lambda room: -sum(room[1])))
    rooms["the package"] = [lines for room in rooms.values() for lines in room]
    for folder in ("tests", "benchmarks"):
        rooms[folder] = [code_lines(path) for path in (ROOT / folder).rglob("*.py")]
    rows = [f"{room:<14}{len(files):>7,}{sum(files):>12,}\n" for room, files in rooms.items()]
    sys.stdout.writelines([f"{'room':<14}{'files':>7}{'code lines':>12}\n", *rows])


if __name__ == "__main__":
    main()
