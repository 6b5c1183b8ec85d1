"""`reshard`: the same samples in other shards; what is changed is what was asked for."""

from functools import partial
from pathlib import Path

import pytest
from webdataset.writer import ShardWriter

from lightning_shards.shards.tar.tar_streams import read_samples
from lightning_shards.tools import reshard
from tests.tools.conftest import write_members

FUNCTIONS = """
def is_even(sample):
    return int(sample["cls"]) % 2 == 0

def shout(sample):
    return sample | {"txt": sample["txt"].upper(), "note": "née"}

def fail(sample):
    if sample["__key__"] == "0007":
        raise KeyError("depth")
    return sample

def forget(sample):
    return {"cls": b"1"}

curried = lambda sample: sample
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three shards by webdataset's own writer: 50 samples of two fields, one in five of a third."""
    folder = tmp_path_factory.mktemp("shards")
    with ShardWriter(str(folder / "in-%d.tar"), maxcount=20, verbose=0) as writer:
        for number in range(50):
            sample = {"__key__": f"{number:04d}", "cls": str(number), "txt": f"text {number}"}
            writer.write(sample | ({"json": {"n": number}} if number % 5 == 0 else {}))
    return sorted(map(str, folder.glob("*.tar")))


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    """A module of functions in the folder where the tool runs."""
    folder = tmp_path / "code"
    folder.mkdir()
    name = f"functions_of_{abs(hash(tmp_path))}"
    (folder / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return name


@pytest.fixture
def run(write_by):
    return partial(write_by, reshard)


@pytest.fixture
def refused(tmp_path, refused_by):
    return lambda *arguments: refused_by(reshard, *arguments, "--out", tmp_path / "out")


def samples(paths):
    """Key and fields of all samples, in order."""
    found = []
    for path in paths:
        for sample in read_samples(str(path)):
            key = sample.pop("__key__")
            del sample["__url__"]
            found.append((key, sample))
    return found


def tars(folder):
    return sorted(Path(folder).glob("*.tar"))


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((), [50]),
        (("--max-samples", 15), [15, 15, 15, 5]),
        (("--max-bytes", 20_480), [9, 9, 9, 9, 9, 5]),
    ],
)
def test_shards_are_cut_and_merged_in_order(run, shards, tmp_path, arguments, sizes):
    report = run(*shards, *arguments)
    assert samples(tars(tmp_path / "out")) == samples(shards)
    assert [len(samples([path])) for path in tars(tmp_path / "out")] == sizes
    assert report["data_sets"][""]["samples"] == 50


def test_a_filter_keeps_what_it_says_and_shards_stay_full(run, shards, tmp_path, functions):
    report = run(*shards, "--filter", f"{functions}:is_even", "--max-samples", 10)
    assert samples(tars(tmp_path / "out")) == samples(shards)[::2]
    assert (report["data_sets"][""]["shards"], report["read"]) == (3, 50)


def test_a_function_gives_the_samples_to_write(run, shards, tmp_path, functions):
    run(shards[0], "--map", f"{functions}.shout")
    assert samples(tars(tmp_path / "out")) == [
        (key, fields | {"txt": fields["txt"].upper(), "note": "née".encode()})
        for key, fields in samples(shards[:1])
    ]


# --- what others write


def test_members_that_are_apart_are_joined_and_others_counted(run, tmp_path):
    names = ["a.jpg", "README", "b.jpg", "__meta__/x.json", "a.cls", "b.cls", ".hidden"]
    path = write_members(tmp_path / "in.tar", [(name, name.encode()) for name in names])
    report = run(path)
    assert samples(tars(tmp_path / "out")) == [
        ("a", {"jpg": b"a.jpg", "cls": b"a.cls"}),
        ("b", {"jpg": b"b.jpg", "cls": b"b.cls"}),
    ]
    assert report["in_no_sample"] == 3


def test_a_tar_whose_last_samples_became_zeros_is_refused(run, refused, shards, tmp_path):
    run(*shards, out="in")
    [path] = tars(tmp_path / "in")
    data = path.read_bytes()
    half = data.index(b"0022.")
    path.write_bytes(data[:half] + bytes(len(data) - half))
    message = refused(path)
    assert "it holds 22 samples, 50 by the index; put the old shard back" in message
    assert not (tmp_path / "out").exists()


def test_output_in_the_folder_of_the_tars_is_refused_and_below_it_written(
    run, refused_by, tmp_path
):
    path = write_members(tmp_path / "in" / "0.tar", [("0.cls", b"1")])
    assert "is in " in refused_by(reshard, path, "--out", path.parent)
    run(path, out="in/new")
    assert len(samples(tars(tmp_path / "in" / "new"))) == 1


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--map", "{module}:missing"), "names no function that can"),
        (("--map", "{module}:curried"), "names no function that can"),
        (("--map", "{module}:fail"), "sample '0007': KeyError: 'depth'"),
        (("--map", "{module}:forget"), "must give a sample with the same key"),
    ],
)
def test_what_cannot_work_is_one_line(refused, shards, functions, tmp_path, arguments, message):
    arguments = [str(argument).format(module=functions) for argument in arguments]
    assert message in refused(*shards, *arguments)
    assert not list(tmp_path.glob("out/**/.*.part"))
