"""`reshard`: the same samples in other shards; what is changed is what was asked for."""

from functools import partial

import pytest
from webdataset.writer import ShardWriter

from lightning_shards.tools import reshard
from tests.tools.conftest import samples_of, write_members
from tests.tools.packing.conftest import packed_samples

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


@pytest.fixture(scope="module")
def samples(shards):
    """Key and fields of all samples, in order."""
    return [item for path in shards for item in samples_of(path).items()]


def written(report):
    return list(packed_samples(report).items())


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(("--max-samples", 15), [15, 15, 15, 5]), (("--max-bytes", 20_480), [9, 9, 9, 9, 9, 5])],
)
def test_shards_are_cut_and_merged_in_order(run, shards, samples, tmp_path, limit, sizes):
    assert written(run(*shards, *limit)) == samples
    assert [len(samples_of(path)) for path in sorted((tmp_path / "out").glob("*.tar"))] == sizes


def test_a_filter_keeps_what_it_says_and_shards_stay_full(run, shards, samples, functions):
    report = run(*shards, "--filter", f"{functions}:is_even", "--max-samples", 10)
    assert written(report) == samples[::2]
    assert (report["data_sets"][""]["shards"], report["read"]) == (3, 50)


def test_a_function_gives_the_samples_to_write(run, shards, samples, functions):
    assert written(run(*shards, "--map", f"{functions}.shout")) == [
        (key, fields | {"txt": fields["txt"].upper(), "note": "née".encode()})
        for key, fields in samples
    ]


# --- what others write


def test_members_that_are_apart_are_joined_and_others_counted(run, tmp_path):
    names = ["a.jpg", "README", "b.jpg", "__meta__/x.json", "a.cls", "b.cls", ".hidden"]
    path = write_members(tmp_path / "in.tar", [(name, name.encode()) for name in names])
    report = run(path)
    assert packed_samples(report) == {
        key: {"jpg": f"{key}.jpg".encode(), "cls": f"{key}.cls".encode()} for key in "ab"
    }
    assert report["in_no_sample"] == 3


def test_a_tar_whose_last_samples_became_zeros_is_refused(run, refused, shards, tmp_path):
    run(*shards, out="in")
    [path] = (tmp_path / "in").glob("*.tar")
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
    assert "in holds shards, and not from a run with" in refused_by(
        reshard, path, "--out", path.parent
    )
    assert packed_samples(run(path, out="in/new")) == samples_of(path)


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
