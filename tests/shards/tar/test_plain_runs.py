"""Headers read together say what headers read one by one say, whatever is between them."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tar import plain_runs

KEYS = st.sampled_from(["0", "1", "a/b", "./c", "k" * 60, "d.e/f", "_g", "a__b"])
SUFFIXES = st.sampled_from(["cls", "jpg", "JPG", "seg.png", "png", "", "__bad__", "x" * 30])
ODD_NAMES = [
    "README",
    "__meta__",
    "__m__/0.cls",
    "é.cls",
    "0.é",
    ".hidden.cls",
    "a/.b.cls",
    "n" * 120,
]
ODD = st.sampled_from(ODD_NAMES)
NAMES = (
    st.builds("{}.{}".format, KEYS, SUFFIXES) | st.builds("{}.cls".format, st.integers(0, 99)) | ODD
)
TIMES = st.sampled_from([0, 1.5, 1795296765.224046])  # PAX gives fractions an extended header
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def tar_of(entries, tar_format=tarfile.USTAR_FORMAT):
    """The bytes of a tar of (name, size, type or changes of the header)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, size, changes in entries:
            info = tarfile.TarInfo(name)
            info.size = size
            for attribute, value in changes.items():
                setattr(info, attribute, value)
            # in the place of a magic, data begins as one does
            archive.addfile(info, io.BytesIO(b"u" * info.size) if info.isreg() else None)
    return file.getvalue()


def scanned(path):
    try:
        table = scan_members(path, with_crc32=True)
    except DamagedShardError as error:
        return str(error)
    keys = [table.key(sample) for sample in range(table.num_samples)]
    columns = (table.sample_starts, table.offsets, table.sizes, table.crc32, table.suffix_ids)
    return keys, [column.tolist() for column in columns], table.suffixes


@pytest.fixture(scope="module")
def require_same(tmp_path_factory):
    """Scans some bytes by both ways."""
    path = tmp_path_factory.mktemp("tars") / "0.tar"

    def compare(data, windows=(128, 4096)):
        path.write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_runs, "_WINDOWS", windows)
            together = scanned(path)
            patch.setattr(plain_runs, "plain_runs", lambda _: iter(()))
            assert together == scanned(path)
        return together

    return compare


def plain(count, size=9):
    return [
        (f"d/{number:04d}.{suffix}", size, {})
        for number in range(count)
        for suffix in ("cls", "jpg")
    ]


@pytest.mark.parametrize("suffixes", [40, 41])
def test_samples_of_many_members_are_read_as_ever(require_same, suffixes):
    keys, *_ = require_same(
        tar_of([(f"{key}.{number}", 0, {}) for key in "abc" for number in range(suffixes)])
    )
    assert keys == ["a", "b", "c"]


RECORDS = {
    "a time": b"11 mtime=1\n",
    "a size": b"9 size=9\n",
    "a time and a size": b"11 mtime=1\n9 size=3\n",
    "a length that is wrong": b"12 mtime=1\n",
    "no end": b"11 mtime=12",
    "a long time": b"74 mtime=" + b"1" * 64 + b"\n",
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("repeats", [1, 4, 5])
def test_an_extended_header_of_any_kind_is_read_as_ever(require_same, record, repeats):
    time, size = tar_of([("0.x", 0, {"mtime": 0.5})], tarfile.PAX_FORMAT)[:1024], len(record)
    changed = bytearray(time)
    changed[512:] = record.ljust(512, b"\0")
    changed[124:136], changed[148:156] = b"%011o\0" % size, b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[:512])
    data = tar_of(plain(9))
    for place in (0, 1024, 9 * 1024):  # before d/0000.cls, d/0000.jpg and d/0004.jpg
        require_same(data[:place] + bytes(changed) * repeats + data[place:])


@pytest.mark.parametrize("windows", [(2, 3), (128, 4096)])
@pytest.mark.parametrize("tar_format", FORMATS)
@given(entries=st.lists(st.tuples(NAMES, st.integers(0, 1200), TIMES), max_size=12))
def test_any_tar_gives_the_same_table_or_error(require_same, windows, tar_format, entries):
    data = tar_of(
        [
            (name, size, {"mtime": mtime})
            for name, size, mtime in entries
            if _fits(name, tar_format)
        ],
        tar_format,
    )
    require_same(data, windows)


def _fits(name, tar_format):
    return tar_format != tarfile.USTAR_FORMAT or len(name.encode()) <= 100


SPECIAL = {
    "a folder": ("0005", 0, {"type": tarfile.DIRTYPE}),
    "a link": ("0005.x", 0, {"type": tarfile.SYMTYPE, "linkname": "0004.cls"}),
    "a file of old tars": ("d/0005.x", 5, {"type": tarfile.AREGTYPE}),
    "a suffix again": ("d/0005.CLS", 5, {}),
    "a reserved suffix": ("d/0005.__key__", 5, {}),
    "a sample marked as bad": ("d/0005.__bad__", 5, {}),
    "a key again": ("d/0001.cls", 5, {}),
    **{name[:9]: (name, 5, {}) for name in ODD_NAMES},
}


@pytest.mark.parametrize("place", [0, 11, 40])
@pytest.mark.parametrize("entry", SPECIAL.values(), ids=SPECIAL)
def test_one_header_that_is_not_plain_is_read_as_ever(require_same, entry, place):
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        entries = plain(20)
        entries.insert(place, entry)
        require_same(tar_of(entries, tar_format), (24, 32))


@pytest.mark.slow
def test_any_bit_of_a_header_that_is_flipped_is_found_as_ever(require_same):
    data, found = tar_of(plain(4)), 0
    for header in (0, 4, 6):
        for byte in range(header * 512, header * 512 + 512):
            changed = bytearray(data)
            changed[byte] ^= 1 << byte % 8
            found += "damaged" in require_same(bytes(changed))
    assert found >= 3 * 510  # a leading zero of the checksum may become a space


def test_a_tar_that_is_cut_anywhere_is_found_as_ever(require_same):
    data = tar_of(plain(4))
    for length in range(256, len(data), 256):
        require_same(data[:length], (6, 8))
