"""Which file system a folder is on, by the table of mounts."""

import pytest

from lightning_shards.shards.remote.cache.piece_folder import (
    is_shared_by_machines,
    mount_of,
)

TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 254:1 / /home/me/local\\040disk rw - xfs /dev/vdb rw
32 22 0:41 / /bucket ro - fuse.s3fs s3fs rw
33 22 0:42 / /disk rw - fuseblk /dev/vdc rw
34 22 0:43 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
35 22 0:44 / /over rw - nfs host:/a rw
36 22 0:45 / /over rw - tmpfs tmpfs rw
37 22 0:46 / /merged rw - fuse.fuse-overlayfs fuse-overlayfs rw
"""


@pytest.fixture
def mounts(tmp_path):
    """A table of mounts."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("folder", "kind", "is_shared"),
    [
        ("/var/cache", "ext4", False),
        ("/homes", "ext4", False),
        ("/home/me/.cache", "nfs4", True),
        ("/home/me/local disk/cache", "xfs", False),
        ("/bucket", "fuse.s3fs", True),
        ("/disk/cache", "fuseblk", False),
        ("/lustre/cache", "lustre", True),
        ("/over/cache", "tmpfs", False),
        ("/merged/cache", "fuse.fuse-overlayfs", False),
    ],
)
def test_the_mount_of_a_folder(folder, kind, is_shared, mounts):
    found = mount_of(folder, mounts)
    assert found is not None
    assert found.kind == kind
    assert is_shared_by_machines(folder, mounts) == is_shared


def test_without_a_table_nothing_is_known(tmp_path):
    assert mount_of("/", tmp_path / "absent") is None
    assert not is_shared_by_machines("/", tmp_path / "absent")
