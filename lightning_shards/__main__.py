"""The `lightning-shards` command: a tool by its name, everything else by LightningCLI.

Only what is asked for is imported: Lightning takes seconds.
"""

import sys
from importlib import import_module

_TOOLS = {
    name: f"lightning_shards.tools.{name}"
    for name in (
        "bench",
        "index",
        "info",
        "pack",
        "plan",
        "reshard",
        "schema",
        "show",
        "trace",
        "verify",
    )
}


def main() -> None:
    """Run the tool, or `fit`, `validate`, `test` or `predict`."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _TOOLS:
        import_module(_TOOLS[name]).main(sys.argv[2:])
    else:
        import_module("lightning_shards.cli").main()


if __name__ == "__main__":
    main()
