"""Which sample goes where: each once, the same for the same arguments, within the limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.dataprep.input_files import InputFiles
from lightning_shards.dataprep.writing.catalog import CatalogBuilder, join_catalogs
from lightning_shards.dataprep.writing.packing import Packing, assign, with_unique_keys
from lightning_shards.errors import ConfigError, SampleError, ShardNotFoundError


def catalog_of(keys, sizes=None, split=None):
    builder = CatalogBuilder()
    for number, key in enumerate(keys):
        builder.begin(key, split(number) if split else None)
        builder.add_inline("bin", bytes(sizes[number] if sizes else number % 7))
    return builder.build()


def keys_of(catalog, plan):
    return {
        name: [[catalog.key(number) for number in shard] for shard in shards]
        for name, shards in plan.items()
    }


KEYS = [f"{number:04d}" for number in range(1000)]
CATALOG = catalog_of(KEYS)


@given(
    st.integers(1, 60),
    st.sampled_from(["source", "shuffled", "sorted"]),
    st.integers(1, 9) | st.none(),
    st.integers(1, 9000) | st.none(),
    st.integers(0, 3),
)
def test_every_sample_is_in_one_shard_within_the_limits(count, order, most, most_bytes, seed):
    catalog = CATALOG if count == 60 else catalog_of(KEYS[:count])
    packing = Packing(order=order, seed=seed, max_samples=most, max_bytes=most_bytes)
    shards = assign(catalog, packing)[""]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(catalog)))
    for shard in shards:
        size = sum(512 + -(-number % 7 // 512) * -512 for number in shard.tolist())
        assert most is None or len(shard) <= most
        assert most_bytes is None or size <= most_bytes or len(shard) == 1


def test_shards_are_filled_up():
    plan = assign(catalog_of(["a", "b", "c", "d"], [512, 512, 513, 1]), Packing(max_bytes=2560))
    assert [shard.tolist() for shard in plan[""]] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("packing", "num_shards"), [(Packing(), 2), (Packing(max_samples=2), 1)])
def test_bytes_have_a_limit_of_their_own_only_if_samples_have_none(packing, num_shards):
    plan = assign(catalog_of(["a", "b"], [600_000_000, 600_000_000]), packing)
    assert len(plan[""]) == num_shards


@pytest.mark.parametrize("num_shards", [1, 3, 7, 1000])
def test_a_number_of_shards_is_met_by_equal_ones(num_shards):
    shards = assign(CATALOG, Packing(num_shards=num_shards))[""]
    sizes = [len(shard) for shard in shards]
    assert len(sizes) == num_shards
    assert max(sizes) - min(sizes) <= 1


def test_a_number_of_shards_is_shared_by_the_splits():
    plan = assign(CATALOG, Packing(num_shards=10, val_fraction=0.2))
    assert {name: len(shards) for name, shards in plan.items()} == {"train": 8, "val": 2}


def test_a_shuffle_hangs_on_keys_and_seed_alone():
    other = catalog_of(KEYS[::-1])
    first = keys_of(CATALOG, assign(CATALOG, Packing(order="shuffled", seed=3)))
    assert keys_of(other, assign(other, Packing(order="shuffled", seed=3))) == first
    assert keys_of(CATALOG, assign(CATALOG, Packing(order="shuffled", seed=4))) != first


def test_a_shuffle_mixes_near_and_far():
    [order] = assign(CATALOG, Packing(order="shuffled"))[""]
    steps = np.abs(np.diff(order))
    assert 280 < steps.mean() < 390  # 333 for a uniform order
    assert (steps == 1).sum() < 12


def test_sorting_goes_by_the_bytes_of_keys():
    catalog = catalog_of(["b", "ä", "B", "a/b", "a"])
    assert keys_of(catalog, assign(catalog, Packing(order="sorted"))) == {
        "": [["B", "a", "a/b", "b", "ä"]]
    }


def test_a_split_stays_as_it_was_when_samples_are_added():
    def val_keys(keys):
        catalog = catalog_of(keys)
        plan = keys_of(catalog, assign(catalog, Packing(val_fraction=0.1, seed=5)))
        assert len(plan["train"][0]) + len(plan["val"][0]) == len(keys)
        return set(plan["val"][0])

    few, many = val_keys(KEYS[:500]), val_keys(KEYS)
    assert few == many & set(KEYS[:500])
    assert 70 < len(many) < 130


def test_shares_are_nested_and_apart_from_splits():
    def kept(share):
        return set(assign(CATALOG, Packing(keep=share))[""][0].tolist())

    assert kept(0.1) < kept(0.5)
    assert 440 < len(kept(0.5)) < 560
    plan = assign(CATALOG, Packing(keep=0.5, val_fraction=0.5))
    assert all(200 < len(shards[0]) < 300 for shards in plan.values())


def test_a_column_of_splits_splits():
    catalog = catalog_of(KEYS[:9], split=lambda number: ["a", "b", "c"][number % 3])
    plan = assign(catalog, Packing())
    assert {name: shards[0].tolist() for name, shards in plan.items()} == {
        "a": [0, 3, 6],
        "b": [1, 4, 7],
        "c": [2, 5, 8],
    }
    with pytest.raises(ConfigError, match="choose one"):
        assign(catalog, Packing(val_fraction=0.1))


def test_a_split_without_samples_is_refused():
    with pytest.raises(ConfigError, match="split 'val' has no sample"):
        assign(catalog_of(["a"]), Packing(val_fraction=1e-9))
    with pytest.raises(ConfigError, match="the data set has no sample"):
        assign(CATALOG, Packing(), np.zeros(1000, np.bool_))
    with pytest.raises(ConfigError, match="2 samples, too few for 3 shards"):
        assign(catalog_of(["a", "b"]), Packing(num_shards=3))


@pytest.mark.parametrize(
    "values",
    [
        {"order": "random"},
        {"seed": -1},
        {"max_samples": 0},
        {"num_shards": 2, "max_bytes": 5},
        {"keep": 0},
        {"keep": 1.1},
        {"val_fraction": 1.0},
    ],
)
def test_values_that_cannot_work_are_refused(values):
    with pytest.raises(ConfigError):
        Packing(**values)


# --- keys that repeat


def test_repeated_keys_are_refused_with_an_example():
    with pytest.raises(SampleError, match=r"2 samples share .* '0002'"):
        with_unique_keys(catalog_of([*KEYS[:5], "0002"]))


def test_repeated_keys_get_the_names_of_their_files(tmp_path):
    builder = CatalogBuilder()
    for name in ("one", "two"):
        (tmp_path / f"{name}.x.tar").write_bytes(b"12345")
        source = builder.add_source(str(tmp_path / f"{name}.x.tar"))
        for key in ("0", f"only {name}"):
            builder.begin(key)
            builder.add_extent("bin", source, 0, 3)
    catalog = with_unique_keys(builder.build(), "prefix")
    keys = [catalog.key(number) for number in range(len(catalog))]
    assert keys == ["one/0", "only one", "two/0", "only two"]


@pytest.fixture
def repeated(tmp_path):
    """A catalog of the sample ./0 in each of these files."""

    def make(*names):
        builder = CatalogBuilder()
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"1")
            builder.begin("./0")
            builder.add_file("bin", str(path))
        return builder.build()

    return make


def all_keys(catalog):
    return [catalog.key(number) for number in range(len(catalog))]


def test_a_prefix_makes_a_key_of_any_name(repeated):
    names = ("d\udce9.tar", "__x__.tar", "a%.tar")
    keys = all_keys(with_unique_keys(repeated(*names), "prefix"))
    assert keys == ["d%E9/0", "%5F_x__/0", "a%25/0"]
    with pytest.raises(SampleError, match=r"it has more than 2048 bytes.* shorten"):
        with_unique_keys(catalog_of(["a" * 2047] * 2), "prefix")


def test_a_number_tells_keys_of_one_file_apart():
    catalog = with_unique_keys(catalog_of(["a", "b", "a", "c", "a"]), "number")
    assert all_keys(catalog) == ["a-1", "b", "a-2", "c", "a-3"]


NUMBER, PREFIX = "(--duplicate-keys number)", "(--duplicate-keys prefix)"


@pytest.mark.parametrize(
    ("names", "tried", "remedies"),
    [
        (("one.tar", "two.tar"), "refuse", {PREFIX, NUMBER}),
        (("x/0.tar", "y/0.tar"), "refuse", {NUMBER}),
        (("x/0.tar", "y/0.tar"), "prefix", {NUMBER}),
        (("one.tar", "one.tar"), "refuse", {NUMBER}),
    ],
)
def test_no_remedy_is_named_that_was_tried_or_does_not_help(repeated, names, tried, remedies):
    catalog = repeated(*names)
    with pytest.raises(SampleError, match="2 samples share their keys") as caught:
        with_unique_keys(catalog, tried)
    assert {remedy for remedy in (NUMBER, PREFIX) if remedy in str(caught.value)} == remedies
    with_unique_keys(catalog, "number")


def test_numbers_that_other_keys_have_are_refused():
    with pytest.raises(SampleError, match=r"such as 'a-1' of a row and a row; make them unique"):
        with_unique_keys(catalog_of(["a", "a", "a-1"]), "number")


# --- catalogs


def test_joined_catalogs_read_as_each_of_them(tmp_path):
    catalogs = []
    for name in ("one", "two"):
        builder = CatalogBuilder()
        for number in range(3):
            path = tmp_path / f"{name}{number}"
            path.write_bytes(f"{name} file {number}".encode())
            builder.begin(f"{name}/{number}", name)
            builder.add_file(f"{name}.txt", str(path))
            builder.add_inline("cls", f"{name} {number}".encode())
        catalogs.append(builder.build())
    joined = join_catalogs(catalogs)
    with InputFiles(max_open=2) as files:
        read = [
            (joined.key(number), {e.field: files.read(e) for e in joined.extents(number)})
            for number in range(len(joined))
        ]
    assert read == [
        (
            f"{name}/{n}",
            {f"{name}.txt": f"{name} file {n}".encode(), "cls": f"{name} {n}".encode()},
        )
        for name in ("one", "two")
        for n in range(3)
    ]
    assert joined.field_counts() == {"one.txt": 3, "cls": 6, "two.txt": 3}
    assert joined.split_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert joined.fingerprint() != join_catalogs(catalogs[::-1]).fingerprint()


def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path):
    builder = CatalogBuilder()
    for name in ("longer", "gone"):
        (tmp_path / name).write_bytes(b"x")
        builder.begin(name)
        builder.add_file("bin", str(tmp_path / name))
    catalog = builder.build()
    (tmp_path / "longer").write_bytes(b"xx")
    (tmp_path / "gone").unlink()
    with InputFiles() as files:
        with pytest.raises(OSError, match="changed since it was listed"):
            files.read(catalog.extents(0)[0])
        with pytest.raises(ShardNotFoundError, match="deleted since"):
            files.read(catalog.extents(1)[0])
