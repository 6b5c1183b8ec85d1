"""From the members of a sample to its fields, by suffix, and errors that say what is there."""

import pytest

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.fields import Field, make_fields

MEMBERS = {"__key__": "k", "__url__": "https://u:secret@h/0.tar?secret"}


def make_field(suffixes, decoder=None):
    decode = {} if decoder is None else {"x": decoder}
    return make_fields({"x": suffixes}, decode, frozenset())[0]


def decode(suffix, data, decoder=None):
    return make_field(suffix, decoder).decode(MEMBERS | {suffix: data})


@pytest.mark.parametrize("suffix", ["bin", "jpg;bin", "jpg.bin", "cls2x", "tar.gz", "gz"])
def test_a_suffix_without_a_decoder_is_an_error_and_no_bytes(suffix):
    with pytest.raises(ConfigError, match="a suffix without a decoder"):
        make_field(suffix)
    with pytest.raises(ConfigError, match="a suffix without a decoder"):
        Field("x", tuple(suffix.split(";"))).decode(MEMBERS | {suffix.split(";")[-1]: b""})
    for field in (make_field(suffix, "raw"), bytes_field(suffix)):
        assert field.decode(MEMBERS | {suffix.split(";")[-1]: b"\0"}) == b"\0"


class TakesBytes:
    takes_bytes = True

    def __call__(self, data):
        return data


def bytes_field(suffixes):
    return make_fields({"x": suffixes}, {}, frozenset(), {"x": TakesBytes()})[0]


def test_the_first_suffix_that_is_there_is_taken():
    field = make_field("a.txt;b.txt; C.txt")
    assert field.decode(MEMBERS | {"c.txt": b"3", "b.txt": b"2"}) == "2"
    assert field.decode(MEMBERS | {"c.txt": b"3"}) == "3"


def test_bytes_that_cannot_be_decoded_name_sample_member_and_remedy():
    with pytest.raises(SampleError) as caught:
        decode("cls", b"seven")
    assert str(caught.value).startswith("sample 'k' of https://h/0.tar: member 'cls' (5 bytes)")
    assert "as 'int' for field 'x'" in str(caught.value)
    assert "for texts set decode: {x: text}; for names of classes set" in str(caught.value)
    with pytest.raises(SampleError, match="repair the shard, or name another decoder in `decode`"):
        decode("txt", b"\xff")


@pytest.mark.parametrize(
    ("fields", "decoders", "message"),
    [
        ({}, {}, r"fields is empty; name at least one"),
        ({"x": "bin"}, {"x": "jxl"}, r"asks for decoder 'jxl'.*'gray'.*'rgb'.*'raw' and a trans"),
        ({"x": "bin"}, {"y": "raw"}, r"decode names \['y'\], and the fields are \['x'\]; name a"),
        ({"__key__": "txt"}, {}, "no field's name begin with '__' or '.'"),
        ({"x": "png;.jpg?"}, {}, r"suffixes \['png', '\.jpg'\].*no dot before them"),
        ({"x": "__key__"}, {}, r"suffixes \['__key__'\].*batches have `__key__` anyway"),
        ({"x": "png;"}, {}, r"suffixes \['png', ''\].*none empty"),
        ({"x": ""}, {}, r"suffixes \[''\]"),
        ({"x": "?"}, {}, r"suffixes \[''\]"),
        ({"x": "jpg?;png"}, {}, r"suffixes \['jpg\?', 'png'\].*a `\?` only after all"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, decoders, message):
    with pytest.raises(ConfigError, match=message):
        make_fields(fields, decoders, frozenset())
