"""What other processes read by a transport that was pickled to them; imported by few, so light."""

from collections.abc import Sequence
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from lightning_shards.remote.transport import RemoteTransport

Read = tuple[str, int, int]


class OwnedFiles(LocalFileSystem):
    """Files of a user who is not root, with times in whole seconds, as sftp and smb tell them."""

    protocol = "owned"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(path.removeprefix("owned://"))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """What the file is."""
        facts = LocalFileSystem().info(path, **options)
        return {
            **{name: facts[name] for name in ("name", "size", "type")},
            "uid": 1000,
            "gid": 1000,
            "mtime": int(facts["mtime"]),
        }


fsspec.register_implementation("owned", OwnedFiles, clobber=True)  # in each process that reads


def read_elsewhere(transport: RemoteTransport, reads: Sequence[Read], answers: Any) -> None:
    """Send what each read gives, or the name and the message of its error."""
    for url, begin, end in reads:
        try:
            answers.send(bytes(transport.read(url, begin, end).data))
        except Exception as error:  # noqa: BLE001 whatever a read raises
            answers.send(f"{type(error).__name__}: {error}")
