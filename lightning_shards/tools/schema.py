"""`lightning-shards schema`: prints the JSON schema by which editors check the section `data`."""

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from lightning_shards.tools.console import run_tool, tool_parser

_EPILOG = """\
Editors with a YAML language server take it by a comment in the first lines of a configuration:

  lightning-shards schema > lightning_shards.schema.json
  # yaml-language-server: $schema=lightning_shards.schema.json
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the JSON schema of a configuration."""
    what = (
        "Print a JSON schema of a configuration: its section `data`, with the sentence and the "
        "choices of each setting. Other sections are left open."
    )
    parser = tool_parser("schema", what, _EPILOG)
    run_tool("schema", _schema, parser.parse_args(arguments))


def _schema(_: Namespace) -> int:
    from lightning_shards.config.parsing import json_schema
    from lightning_shards.datamodule import ShardDataModule

    schema: dict[str, Any] = json_schema(ShardDataModule, "data")
    # Allows the sections of a LightningCLI that are not known here, such as model and trainer.
    schema["additionalProperties"] = True
    schema.pop("required", None)
    split_schema = schema["$defs"]["SplitConfig"]
    split_schema["oneOf"] = [{"required": ["urls"]}, {"required": ["mix"]}]
    print(json.dumps(schema, indent=1))
    return 0
