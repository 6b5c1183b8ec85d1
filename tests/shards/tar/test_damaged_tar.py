"""What tar reading guarantees, in the names of its tests: no damage is unnoticed."""

import gzip
import itertools
import struct
import tarfile

import pytest

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import scan_members
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
    "negative base 256": (_header(size_field=b"\xff" * 12) + END, "is no number"),
    "huge PAX size": (_member(_pax(size=b"9" * 15), flag=b"x") + _header() + END, "cut short"),
    "chain of PAX": (3000 * _member(_pax(comment=b"x"), flag=b"x") + _header() + END, "than 4 ext"),
    "large PAX": (
        _member(_pax(comment=bytes(1 << 20)), flag=b"x") + _header() + END,
        "header of 1",
    ),
    "long GNU name": (_member(b"n" * 4097, flag=b"L") + _header() + END, "name of 4097 bytes"),
    "global size": (_member(_pax(size=b"5"), flag=b"g") + _header() + END, "global header"),
    "sparse": (_header(flag=b"S") + END, "sparse member"),
    "PAX sparse": (_member(_pax(GNU__sparse__major=b"1"), flag=b"x") + _header() + END, "sparse"),
    "PAX too long": (_member(b"99 path=a.b\n", flag=b"x") + _header() + END, "damaged PAX"),
    "only an extended header": (
        _member(_pax(path=b"a.b"), flag=b"x") + END,
        "belongs to no member",
    ),
    "no number in the checksum": (b"a.b".ljust(148, b"\0") + b"nonsense" + bytes(356), "checksum"),
    "short text": (b"<!DOCTYPE html>", "cut short"),
    "nothing": (b"", "is empty, at byte 0"),
    "no end marker": (_member(b"1"), "without the end marker .*at byte 1024"),
    "two archives": (_member(b"1") + END + _member(b"1") + END, "glued together.*at byte 1024"),
    "gzip": (gzip.compress(_member(b"1" * 9) + END), "compressed .gzip., and shards are"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_whole_tar_is_refused_at_once(tmp_path, data, message):
    with pytest.raises(DamagedShardError, match=message) as caught:
        _members(data)
    assert str(caught.value).startswith("https://host/000.tar ")  # no secrets
    remedy = "gives the plain tar" if "compressed" in message else "fetch or write this shard again"
    assert str(caught.value).endswith(remedy)
    (tmp_path / "0.tar").write_bytes(data)
    with pytest.raises(DamagedShardError, match=message):
        scan_members(tmp_path / "0.tar")


def _link(flag):
    return _header(name=f"l.{flag}", flag=flag.encode())


PAX_NAME = _member(_pax(path=b"p.txt"), flag=b"x")
GNU_NAME = _member(b"l.txt", flag=b"L")
ONE = _member(b"1")
ACCEPTED = {
    "base 256 size": _header(size_field=b"\x80" + (5).to_bytes(11, "big")) + _padded(b"12345"),
    "signed checksum": _member(b"12345", name="ä.txt", sign="b"),
    "PAX size": _member(_pax(path=b"p.txt", size=b"5"), flag=b"x") + _header() + _padded(b"1"),
    "first of a chain wins": PAX_NAME + GNU_NAME + ONE,
    "chain of four": 4 * PAX_NAME + ONE,
    "override ends": PAX_NAME + ONE + _member(b"2"),
    "global comment": _member(_pax(comment=b"x"), flag=b"g") + ONE,
    "zeros after the PAX records": _member(_pax(path=b"p.txt") + bytes(3), flag=b"x") + ONE,
    "non-UTF-8 name": _member(b"1", name=b"\xff.txt"),
    "slash after a PAX name": _member(_pax(path=b"p.txt/"), flag=b"x") + ONE,
    "GNU name that fills a block": _member(b"n" * 512 + b"\0", flag=b"L") + _member(name="n" * 100),
    "contiguous file": _member(b"1", name="7.txt", flag=b"7"),
    "links, devices and folders": b"".join(map(_link, "123456")) + ONE,
    "prefix": tarfile.TarInfo(f"{'d' * 80}/{'n' * 80}.txt").tobuf(tarfile.USTAR_FORMAT),
    "unknown type": _member(b"z" * 600, name="z.txt", flag=b"V") + ONE,
    "link with a size": _header(name="l.txt", flag=b"1", size=5) + ONE,
}


@pytest.mark.parametrize("archive", ACCEPTED.values(), ids=ACCEPTED)
def test_rare_forms_are_read_as_tarfile_reads_them(tmp_path, tarfile_members, archive):
    path = tmp_path / "0.tar"
    path.write_bytes(archive + END)
    members = _members(path.read_bytes())
    assert members
    assert members == tarfile_members(path)


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
        with pytest.raises(DamagedShardError):
            scan_members(path)


def test_a_long_tail_of_zeros_is_no_data():
    assert len(_members(_member(b"1") + bytes(5 << 20))) == 1
    with pytest.raises(DamagedShardError, match="data after the end"):
        _members(_member(b"1") + bytes(5 << 20) + b"1")
