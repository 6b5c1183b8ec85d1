"""Listing the pieces of a node."""

from cached_bytes import load, make_cache, make_need, piece_number

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.upkeep import list_pieces, piece_folders


def test_the_need_of_the_first_process_of_a_run_holds_for_all(tmp_path):
    first, second = (make_cache(tmp_path, make_need(pieces)) for pieces in (100, 3))
    load(first, piece_number(0))
    load(second, piece_number(1))
    (folder,) = piece_folders(CacheFolder(tmp_path))
    assert list_pieces(folder).runs == [make_need(100)]
    first.close()
    assert list_pieces(folder).runs == [make_need(100)]
    second.close()
    load(second, piece_number(2))
    assert list_pieces(folder).runs == [make_need(3)]
