"""Bugs in how a tar is read: headers, ends, names, bytes, and an index of DALI beside it."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "shards.tar.walk:_header_at",
        "if total != _expected_sum(header[148:156]) and not",
        "if False and not",
        "shards/tar/test_damaged_tar.py",
    ),
    Mutant(
        "shards.tar.walk:_check_end",
        "if chunk.count(0) != len(chunk):",
        "if False:",
        "shards/tar/test_damaged_tar.py shards/tar/test_walk.py",
    ),
    Mutant(
        "shards.tar.walk:_check_end",
        "if chained:",
        "if False:",
        "shards/tar/test_damaged_tar.py shards/tar/test_walk.py",
    ),
    Mutant(
        "shards.tar.walk:_data_size",
        "if size > available:",
        "if False:",
        "shards/tar/test_damaged_tar.py shards/tar/test_walk.py",
    ),
    Mutant(
        "shards.tar.walk:_pax_overrides",
        " or position % BLOCK == 0",
        "",
        "shards/tar/test_damaged_tar.py",
    ),
    Mutant(
        "shards.tar.walk:_whole_name",
        " or 0 in name",
        "",
        "shards/tar/test_damaged_tar.py",
    ),
    Mutant(
        "shards.tar.long_names:gnu_name",
        'b"" if is_cut else name',
        "name",
        "shards/tar/test_damaged_tar.py",
    ),
    Mutant(
        "shards.tar.walk:group_members",
        "suffix in fields or ",
        "",
        "shards/tar/test_damaged_tar.py shards/tar/test_walk.py",
    ),
    Mutant(
        "shards.tar.walk:split_name",
        "match[2].lower()",
        "match[2]",
        "shards/tar/test_walk.py",
    ),
    Mutant(
        "shards.tar.plain_runs:_are_summed",
        "are_numbers & (headers.sum(axis=1, dtype=np.uint16) == expected)",
        "are_numbers",
        "shards/tar/test_plain_runs.py",
    ),
    Mutant(
        "shards.tar.plain_runs:_run_at",
        "are_plain[1:] &= following[:-1] == numbers[1:]",
        "following",
        "shards/tar/test_plain_runs.py",
    ),
    Mutant(
        "shards.tar.tar_bytes:TarBytes.require_unchanged",
        "if stat != self._stat:",
        "if False:",
        "shards/tar/test_tar_bytes.py readers/test_changed_shards.py",
    ),
    Mutant(
        "shards.tar.tar_bytes:read_samples",
        "            data.require_unchanged()\n",
        "",
        "shards/tar/test_tar_bytes.py readers/test_changed_shards.py",
    ),
    Mutant(
        "shards.tar.walk:group_members",
        "or suffix in RESERVED_SUFFIXES",
        "",
        "samples/test_reserved_names.py shards/tar/test_damaged_tar.py",
    ),
    Mutant(
        "shards.tar.long_names:compared_bytes",
        "return None if is_cut or is_near else 0",
        "return 0",
        "shards/tar/test_long_names.py",
    ),
    Mutant(
        "shards.published.dali_index:_require_order",
        "or member.offset < end + BLOCK",
        "",
        "shards/published/test_dali_index.py",
    ),
    Mutant(
        "shards.published.dali_index:_require_order",
        "if end > size:",
        "if False:",
        "shards/published/test_dali_index.py",
    ),
    Mutant(
        "shards.published.dali_index:_require_header",
        "(found.offset, found.size) != (member.offset, member.size)",
        "False",
        "shards/published/test_dali_index.py",
    ),
    Mutant(
        "shards.published.dali_index:dali_table",
        "_require_end(tar, url, _end_of(members[-1]))",
        "pass",
        "shards/published/test_dali_index.py",
    ),
]
