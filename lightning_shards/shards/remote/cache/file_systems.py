"""The place of a folder: this machine or another one."""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|ncpfs|afs|9p|virtiofs|ceph|lustre|beegfs\w*|gpfs|glusterfs|orangefs|pvfs2"
    r"|gfs2|ocfs2|wekafs|panfs|fuse\.(?!fuseblk|ntfs|ext|encfs|gocryptfs|overlay|fuse-overlay).*"
)
"""Names of file systems that several machines may share. Of those in user space the ones that are
known to be of this machine are left out."""

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        folder: Where it is mounted.
        kind: Its name, such as `ext4` or `nfs4`.
    """

    folder: str
    kind: str


def mount_of(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> Mount | None:
    """The file system that a path is on, or would be on; None if the system does not say."""
    wanted = os.path.realpath(path)
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best = None
    for line in lines:
        before, _, after = line.partition(" - ")
        folder = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        is_above = wanted == folder or wanted.startswith(folder.rstrip("/") + "/")
        # of two at one folder the later one hides the earlier one
        if is_above and (best is None or len(folder) >= len(best.folder)):
            best = Mount(folder, after.split(" ")[0])
    return best


def is_shared_by_machines(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> bool:
    """Whether the path is on a network file system."""
    mount = mount_of(path, mounts)
    return mount is not None and _NETWORK.fullmatch(mount.kind) is not None
