"""A shard to list and to read."""

import pytest


@pytest.fixture
def path(tmp_path, write_tar):
    """A shard of three samples; the second one lacks a `jpg`."""
    archive = [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("2.jpg", b"z" * 512)]
    return write_tar(tmp_path / "0.tar", archive)
