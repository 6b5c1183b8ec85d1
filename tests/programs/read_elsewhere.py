"""What other processes read by a transport that was pickled to them; imported by few, so light."""

from collections.abc import Sequence
from typing import Any

from lightning_shards.shards.remote.transport import Transport

Read = tuple[str, int, int]


def read_elsewhere(transport: Transport, reads: Sequence[Read], answers: Any) -> None:
    """Send what each read gives, or the name and the message of its error."""
    for url, begin, end in reads:
        try:
            answers.send(bytes(transport.read(url, begin, end).data))
        except Exception as error:  # noqa: BLE001 whatever a read raises
            answers.send(f"{type(error).__name__}: {error}")
