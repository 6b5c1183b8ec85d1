"""`lightning-shards schema`: prints the JSON schema by which editors check the section `data`."""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any, get_args

_EPILOG = """\
Editors with a YAML language server take it by a comment in the first lines of a configuration:

  lightning-shards schema > lightning_shards.schema.json
  # yaml-language-server: $schema=lightning_shards.schema.json
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the JSON schema of a configuration."""
    ArgumentParser(
        prog="lightning-shards schema",
        description="Print a JSON schema of a configuration: its section `data`, with the "
        "sentence and the choices of each setting. Other sections are left open.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    ).parse_args(arguments)
    from lightning_shards.config.parsing import json_schema
    from lightning_shards.config.splits import Split
    from lightning_shards.datamodule import ShardDataModule

    schema: dict[str, Any] = json_schema(ShardDataModule, "data")
    # Allows the sections of a LightningCLI that are not known here, such as model and trainer.
    schema["additionalProperties"] = True
    schema.pop("required", None)
    urls = schema["$defs"]["SplitConfig"]["properties"]["urls"]["anyOf"]
    for split in get_args(Split):  # which may be given by its urls alone
        schema["properties"]["data"]["properties"][split]["anyOf"] += urls
    print(json.dumps(schema, indent=1))
