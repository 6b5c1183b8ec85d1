"""Damage never goes unnoticed, and rare forms are no damage."""

import bz2
import gzip
import itertools
import lzma
import os
import struct
import tarfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import ShardReader, scan_members
from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.shards.tar.walk import BLOCK, walk_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
END = bytes(2 * BLOCK)


def _header(name="a.txt", size=0, flag=b"0", size_field=None, sign="B"):
    """One ustar header with a right checksum, of unsigned (`B`) or signed (`b`) bytes."""
    header = bytearray(BLOCK)
    raw = name if isinstance(name, bytes) else name.encode()
    header[: len(raw)] = raw
    header[100:108] = b"0000644\0"
    header[124:136] = size_field or b"%011o\0" % size
    header[136:148] = b"%011o\0" % 0
    header[156:157] = flag
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(struct.unpack(f"512{sign}", header))
    return bytes(header)


def _padded(data):
    return data + bytes(-len(data) % BLOCK)


def _member(data=b"", **fields):
    return _header(size=len(data), **fields) + _padded(data)


def _pax(**records):
    """A PAX header's data."""
    body = b""
    for keyword, value in records.items():
        record = b" %s=%s\n" % (keyword.replace("__", ".").encode(), value)
        length = len(record) + 1
        while length != len(record) + len(str(length)):
            length = len(record) + len(str(length))
        body += str(length).encode() + record
    return body


def _members(data):
    return list(walk_members(data, "https://user:secret@host/000.tar?secret"))


def _small_archives(folder, write_tar):
    """One archive per format with every kind of header that the format has."""
    members = [("0.cls", b"1"), ("n" * 120 + ".txt", b"x" * 600), ("1.cls", b"")]
    for tar_format in FORMATS:
        kept = members[::2] if tar_format == tarfile.USTAR_FORMAT else members
        yield write_tar(folder / f"{tar_format}.tar", kept, tar_format=tar_format, mtime=0.5)


def test_every_cut_raises_or_loses_nothing(tmp_path, write_tar):
    for path in _small_archives(tmp_path, write_tar):
        data = path.read_bytes()
        whole = _members(data)
        last = whole[-1].offset + len(_padded(bytes(whole[-1].size)))
        for length in range(len(data)):
            if length < last + BLOCK:
                with pytest.raises(DamagedShardError, match=r"is cut short|is empty"):
                    _members(data[:length])
            else:
                assert _members(data[:length]) == whole


@pytest.mark.slow
def test_every_flipped_bit_of_a_header_is_found(tmp_path, write_tar):
    """Only white space and leading zeros of the checksum itself may change without a meaning."""
    for path in _small_archives(tmp_path, write_tar):
        whole = _members(path.read_bytes())
        end = whole[-1].offset + len(END)  # the last member is empty
        data = bytearray(path.read_bytes()[:end])
        bodies = {b for m in whole for b in range(m.offset, m.offset + m.size, BLOCK)}
        headers = [b for b in range(0, len(data), BLOCK) if b not in bodies]
        extended = {b + BLOCK for b in headers if data[b + 156 : b + 157] in (b"x", b"L")}
        for block in set(headers) - extended:
            for position, bit in itertools.product(range(block, block + BLOCK), range(8)):
                data[position] ^= 1 << bit
                try:
                    assert _members(bytes(data)) == whole
                    assert 148 <= position - block < 156
                except DamagedShardError:
                    pass
                data[position] ^= 1 << bit


HOSTILE = {
    "huge size": (_header(size_field=b"\x80" + (1 << 60).to_bytes(11, "big")) + END, "cut short"),
    "huge folder of unknown type": (
        _header(flag=b"Z", size_field=b"\x80" + (1 << 60).to_bytes(11, "big")) + END,
        "1152921504606846976 bytes should follow",
    ),
    "negative base 256": (_header(size_field=b"\xff" * 12) + END, "is no number"),
    "negative octal": (_header(size_field=b"-0000000010\0") + END, "is no number"),
    "underscored octal": (_header(size_field=b"0000_000_10\0") + END, "is no number"),
    "huge PAX size": (_member(_pax(size=b"9" * 15), flag=b"x") + _header() + END, "cut short"),
    "endless PAX size": (_member(_pax(size=b"9" * 5000), flag=b"x") + _header() + END, "no size"),
    "negative PAX size": (_member(_pax(size=b"-5"), flag=b"x") + _header() + END, "no size"),
    "chain of PAX": (3000 * _member(_pax(comment=b"x"), flag=b"x") + _header() + END, "than 4 ext"),
    "chain of names": (3000 * _member(b"a.b", flag=b"L") + _header() + END, "than 4 extended"),
    "chain of globals": (3000 * _member(_pax(a=b"x"), flag=b"g") + _header() + END, "than 4 ext"),
    "large PAX": (
        _member(_pax(comment=bytes(1 << 20)), flag=b"x") + _header() + END,
        "header of 1",
    ),
    "long GNU name": (_member(b"n" * 4097, flag=b"L") + _header() + END, "name of 4097 bytes"),
    "long PAX name": (_member(_pax(path=b"n" * 4097), flag=b"x") + _header() + END, "name of 4097"),
    "global size": (_member(_pax(size=b"5"), flag=b"g") + _header() + END, "global header"),
    "global name": (_member(_pax(path=b"a.b"), flag=b"g") + _header() + END, "global header"),
    "sparse": (_header(flag=b"S") + END, "sparse member"),
    "PAX sparse": (_member(_pax(GNU__sparse__major=b"1"), flag=b"x") + _header() + END, "sparse"),
    "PAX without length": (_member(b"path=a.b\n", flag=b"x") + _header() + END, "damaged PAX"),
    "PAX too long": (_member(b"99 path=a.b\n", flag=b"x") + _header() + END, "damaged PAX"),
    "PAX of length 0": (_member(b"0 path=a.b\n", flag=b"x") + _header() + END, "damaged PAX"),
    "PAX without newline": (_member(b"12 path=a.bc", flag=b"x") + _header() + END, "damaged PAX"),
    "PAX of zeros": (_member(bytes(30), flag=b"x") + _member(b"1") + END, "damaged PAX"),
    "Solaris PAX of zeros": (_member(bytes(30), flag=b"X") + _member(b"1") + END, "damaged PAX"),
    "global PAX of zeros": (_member(bytes(30), flag=b"g") + _member(b"1") + END, "damaged PAX"),
    "PAX whose second block is lost": (
        _member(_pax(comment=b"x" * 499) + bytes(30), flag=b"x") + _member(b"1") + END,
        "damaged PAX",
    ),
    "PAX name with zeros": (
        _member(_pax(path=b"p" * 9 + bytes(512) + b".txt"), flag=b"x") + _header() + END,
        "damaged long name",
    ),
    "only an extended header": (
        _member(_pax(path=b"a.b"), flag=b"x") + END,
        "belongs to no member",
    ),
    "no number in the checksum": (b"a.b".ljust(148, b"\0") + b"nonsense" + bytes(356), "checksum"),
    "text": (b"<!DOCTYPE html>" + b"x" * 1000, "damaged header"),
    "short text": (b"<!DOCTYPE html>", "cut short"),
    "nothing": (b"", "is empty, at byte 0"),
    "no end marker": (_member(b"1"), "without the end marker .*at byte 1024"),
    "two archives": (_member(b"1") + END + _member(b"1") + END, "glued together.*at byte 1024"),
    "gzip": (gzip.compress(_member(b"1" * 9) + END), "compressed .gzip., and shards are"),
    "bzip2": (bz2.compress(os.urandom(600)), "compressed .bzip2."),
    "xz": (lzma.compress(os.urandom(600)), "compressed .xz."),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_whole_tar_is_refused_at_once(tmp_path, data, message):
    start = time.process_time()
    with pytest.raises(DamagedShardError, match=message) as caught:
        _members(data)
    assert time.process_time() - start < 1
    assert str(caught.value).startswith("https://host/000.tar ")  # no secrets
    remedy = "gives the plain tar" if "compressed" in message else "fetch or write this shard again"
    assert str(caught.value).endswith(remedy)
    (tmp_path / "0.tar").write_bytes(data)
    for scan in (count_samples, scan_members):
        with pytest.raises(DamagedShardError, match=message):
            scan(tmp_path / "0.tar")


NUMBERS = st.sampled_from([0, 1, 511, 512, 513, 1 << 20, 1 << 33, 1 << 60, (1 << 88) - 1])
PIECES = st.one_of(
    st.builds(
        lambda data, name, flag, size: (
            _header(
                name=name,
                flag=flag,
                size_field=None if size is None else b"\x80" + size.to_bytes(11, "big"),
                size=len(data),
            )
            + _padded(data)
        ),
        data=st.binary(max_size=700)
        | st.builds(
            lambda path, size: _pax(path=path, size=str(size).encode()),
            st.binary(max_size=9),
            NUMBERS,
        ),
        name=st.binary(max_size=6) | st.sampled_from([b"a.b", b"c.d"]),
        flag=st.sampled_from([b"0", b"0", b"\0", b"x", b"g", b"L", b"K", b"5", b"1", b"S", b"Z"]),
        size=st.none() | st.none() | NUMBERS,
    ),
    st.binary(max_size=513),
    st.just(bytes(BLOCK)),
)


@settings(max_examples=400)
@given(st.lists(PIECES, max_size=12))
@pytest.mark.slow
def test_random_pieces_are_read_whole_or_refused_at_once(tmp_path_factory, pieces):
    path = tmp_path_factory.getbasetemp() / "pieces.tar"
    path.write_bytes(b"".join(pieces) + END)
    start = time.process_time()
    try:
        table = scan_members(path, with_crc32=True)
    except DamagedShardError:
        table = None
    if table is not None:
        with ShardReader(path, table) as shard:
            for sample in range(table.num_samples):
                for suffix in table.suffixes_of(sample):
                    assert len(shard.read(sample, suffix)) == table.find(sample, suffix)[1]
    assert time.process_time() - start < 1


PAX_NAME = _member(_pax(path=b"p.txt"), flag=b"x")
GNU_NAME = _member(b"l.txt", flag=b"L")
ONE = _member(b"1")
ACCEPTED = {
    "base 256 size": _header(size_field=b"\x80" + (5).to_bytes(11, "big")) + _padded(b"12345"),
    "size in spaces": _header(size_field=b"         5 \0") + _padded(b"12345"),
    "signed checksum": _member(b"12345", name="ä.txt", sign="b"),
    "PAX size": _member(_pax(path=b"p.txt", size=b"5"), flag=b"x") + _header() + _padded(b"1"),
    "Solaris PAX": _member(_pax(path=b"p.txt"), flag=b"X") + ONE,
    "first of a chain wins": PAX_NAME + GNU_NAME + ONE,
    "first of a chain wins, turned": GNU_NAME + PAX_NAME + ONE,
    "chain of four": 4 * PAX_NAME + ONE,
    "override ends": PAX_NAME + ONE + _member(b"2"),
    "override of a folder ends": PAX_NAME + _header(flag=b"5") + ONE,
    "chains are counted one by one": 3 * (2 * PAX_NAME + ONE),
    "global comment": _member(_pax(comment=b"x"), flag=b"g") + ONE,
    "PAX without records": _member(flag=b"x") + ONE,
    "zeros after the PAX records": _member(_pax(path=b"p.txt") + bytes(3), flag=b"x") + ONE,
    "non-UTF-8 name": _member(b"1", name=b"\xff.txt"),
    "non-UTF-8 PAX name": _member(_pax(path=b"\xff.txt"), flag=b"x") + ONE,
    "slash after a PAX name": _member(_pax(path=b"p.txt/"), flag=b"x") + ONE,
    "GNU name that fills a block": _member(b"n" * 512 + b"\0", flag=b"L") + _member(name="n" * 100),
    "long link": _member(b"l" * 200, flag=b"K") + ONE,
    "unknown type": _member(b"z" * 600, name="z.txt", flag=b"V") + ONE,
    "folder before POSIX": _header(name="d.x/", flag=b"\0", size=5) + _member(b"1", flag=b"\0"),
    "link with a size": _header(name="l.txt", flag=b"1", size=5) + ONE,
}


@pytest.mark.parametrize("archive", ACCEPTED.values(), ids=ACCEPTED)
def test_rare_forms_are_read_as_tarfile_reads_them(tmp_path, tarfile_members, archive):
    path = tmp_path / "0.tar"
    path.write_bytes(archive + END)
    members = _members(path.read_bytes())
    assert members
    assert [member[:3] for member in members] == tarfile_members(path)


@pytest.mark.parametrize("tar_format", FORMATS)
def test_a_lost_block_of_an_extended_header_changes_no_name(tmp_path, write_tar, tar_format):
    """Each block but those of data is filled with zeros in turn."""
    names = ["a", "b"] if tar_format == tarfile.USTAR_FORMAT else ["café", "n" * 1200, "漢字"]
    members = [(f"{name}.{suffix}", b"1") for name in names for suffix in ("jpg", "cls")]
    path = write_tar(tmp_path / "0.tar", members, tar_format=tar_format, mtime=0.5)
    data, whole = path.read_bytes(), _members(path.read_bytes())
    end = whole[-1].offset
    for block in set(range(0, end, BLOCK)) - {member.offset for member in whole}:
        path.write_bytes(data[:block] + bytes(BLOCK) + data[block + BLOCK :])
        for scan in (count_samples, scan_members):
            with pytest.raises(DamagedShardError):
                scan(path)


def test_one_block_of_zeros_ends_an_archive():
    assert [member.name for member in _members(_member(b"1") + bytes(BLOCK))] == ["a.txt"]


def test_a_long_tail_of_zeros_is_no_data():
    assert len(_members(_member(b"1") + bytes(5 << 20))) == 1
    with pytest.raises(DamagedShardError, match="data after the end"):
        _members(_member(b"1") + bytes(5 << 20) + b"1")
