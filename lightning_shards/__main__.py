"""The `lightning-shards` command: a tool by its name, everything else by LightningCLI.

Only what is asked for is imported: Lightning takes seconds.
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NoReturn

import lightning_shards

_TRAINING: Final = {
    "fit": "train a model, and validate it",
    "validate": "validate a model",
    "test": "test a model",
    "predict": "let a model predict",
}
_TOOLS: Final = {
    "pack": "pack files, tables and tars into shards",
    "reshard": "cut, merge, shuffle, filter or edit shards into new ones",
    "index": "count samples, and write the index files of shards",
    "info": "show the contents of shards in numbers",
    "show": "make a contact sheet of samples",
    "verify": "check that shards are unchanged, and repair damaged ones",
    "plan": "show an epoch in numbers before it is run",
    "cache": "list, fill or clear what is kept of remote shards",
    "bench": "measure loader and training step, and say who is the limit",
    "trace": "list the samples that every rank sees at given steps",
    "schema": "print the JSON schema by which editors check the section `data`",
}


def main() -> None:
    """Run the tool, or `fit`, `validate`, `test` or `predict`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in _TOOLS:
        import_module(f"lightning_shards.tools.{name}").main(sys.argv[2:])
    elif name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        print(f"lightning-shards {lightning_shards.__version__}")
    elif name in _TRAINING or name.startswith("-"):  # options may stand before the command
        import_module("lightning_shards.cli").main()
    else:
        _refuse(name)


def _help() -> str:
    """All commands, each with what it does."""
    return "\n".join(
        [
            "usage: lightning-shards COMMAND [OPTIONS]",
            "",
            "Train from plain WebDataset tar shards under any Lightning strategy.",
            "",
            "Training, with options and YAML files as of LightningCLI:",
            *_rows(_TRAINING),
            "",
            "Tools:",
            *_rows(_TOOLS),
            "",
            "`lightning-shards COMMAND --help` shows the options of a command, and",
            "`lightning-shards --version` the version.",
        ]
    )


def _rows(commands: dict[str, str]) -> list[str]:
    return [f"  {name:<9} {what}" for name, what in commands.items()]


def _refuse(name: str) -> NoReturn:
    names = [*_TRAINING, *_TOOLS]
    close = get_close_matches(name, names, 1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    print(
        f"lightning-shards: error: there is no command {name!r}{meant}\n"
        f"commands are {', '.join(names)}; `lightning-shards --help` says what they do",
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    main()
