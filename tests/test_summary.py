"""What a data module says of itself, and `peek`: true, harmless, and without any I/O too many."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, PlanError, ShardNotFoundError
from lightning_shards.shards import counts
from lightning_shards.summary import BatchTable, as_html


class Counter:
    """A transform with a state: it gives the number of its call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, label):
        self.calls += 1
        return self.calls


def drawn(label, rng):
    """Has an `rng`, and draws from a global generator all the same."""
    return torch.rand(()).item()


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 4])


# --- repr


def test_a_module_says_what_it_was_given_and_looks_for_nothing(make_module):
    module = make_module(
        SplitConfig("http://me:secret@host/a.tar?sign=secret", batch_size=1),
        predict=SplitConfig(["/nowhere/*.tar", "/nowhere/b.tar", "c.tar"]),
        num_workers=3,
    )
    assert repr(module) == str(module) == (
        "ShardDataModule: batches of label, made by 3 worker processes of each rank\n"
        "train: http://host/a.tar, resampled, batches of 1 sample per rank; not counted yet\n"
        "predict: /nowhere/*.tar and 2 more, sequential, batches of 2 samples per rank; not "
        "counted yet"
    )  # fmt: skip


def test_after_setup_a_module_knows_samples_steps_and_readers(make_module, urls, monkeypatch):
    module = make_module(SplitConfig(urls), val=SplitConfig(urls[0]))
    module.setup("validate")
    for url in urls:
        Path(url).unlink()  # nothing is opened any more
    monkeypatch.setattr(counts, "count_samples", pytest.fail)
    assert repr(module).splitlines()[1:] == [
        f"train: {urls[0]} and 2 more, resampled, batches of 2 samples per rank; not counted yet",
        "val: 4 samples from 1 shard, sequential by the indexed reader, 2 steps of 1 x 2 samples",
    ]


def test_a_module_whose_settings_do_not_fit_says_why(make_module, urls):
    module = make_module(SplitConfig(urls, sampling="shuffled", dataset_size=5))
    module.setup("fit")
    assert "\ntrain: cannot be read: dataset_size=5 of 'train' differs" in repr(module)


@pytest.mark.parametrize(
    ("num_workers", "pool", "made"),
    [
        (0, "processes", "by the trainer's own thread"),
        (2, "inline", "by the trainer's own thread"),
        (1, "threads", "by 1 thread of each rank"),
        (1, "processes", "by 1 worker process of each rank"),
    ],
)
def test_a_module_says_who_makes_its_batches(num_workers, pool, made, make_module):
    module = make_module(num_workers=num_workers, loader=LoaderConfig(pool=pool))
    assert repr(module).endswith(made)


def test_a_loader_says_what_an_epoch_is(make_module, urls):
    module = make_module(SplitConfig(urls, sampling="shuffled"))
    epoch = "11 samples from 3 shards, shuffled by the indexed reader"
    made = "made by the caller's own thread"
    assert repr(module.loader("train", rank=1, world_size=2)) == (
        f"ShardLoader of rank 1 of 2: {epoch}, 2 steps of 2 x 2 samples, {made}"
    )
    limited = module.loader("train").with_epoch(1)
    assert repr(limited) == f"ShardLoader: {epoch}, 1 step of 1 x 2 samples, {made}"
    assert limited._repr_html_() == f"<p>{limited!r}</p>".replace("'", "&#x27;")


def test_a_loader_says_how_many_make_its_batches(make_module, urls):
    loaders = [
        make_module(SplitConfig(urls), num_workers=number, loader=LoaderConfig(pool=pool))
        for number, pool in ((1, "threads"), (2, "threads"), (1, "processes"))
    ]
    made = [repr(module.loader("train")).rpartition(" by ")[2] for module in loaders]
    assert made == ["1 thread", "2 threads", "1 process"]


def test_a_notebook_shows_lines_as_paragraphs_and_no_markup_of_names(make_module):
    module = make_module(SplitConfig("<b>.tar"), fields={"<i>\n": "cls"})
    shown = module._repr_html_()
    assert shown == as_html(module)
    assert "<p><b>train</b>: &lt;b&gt;.tar, resampled" in shown
    assert "<i>" not in shown
    assert "&lt;i&gt;\\n, made" in shown


# --- peek


def test_a_batch_is_shown_with_names_dtypes_shapes_and_ranges(make_module, urls):
    module = make_module(
        SplitConfig(urls, sampling="sequential", remainder="pad"),
        fields={"image": "png", "label": "cls", "text": "cls", "odd": "cls"},
        decode={"text": "raw", "image": "gray"},
        transforms={"odd": lambda label: float("nan") if label else 0.5},
    )
    module.transforms["text"] = lambda data: f"\x1b[31m{data.decode()}\n"
    assert repr(module.peek("train")) == "\n".join(  # noqa: FLY002 a table
        (
            "train: the first batch of epoch 0 on a single rank, 2 samples",
            "name        dtype    shape         values",
            r"__key__     str      (2,)          '000000', …",
            r"text        str      (2,)          '\x1b[31m0\n', …",
            "image       uint8    (2, 1, 4, 4)  0 to 1",
            "label       int64    (2,)          0 to 1",
            "odd         float64  (2,)          all 0.5; 1 of 2 not finite",
            "__id__      int64    (2, 2)        0 to 1",
            "__weight__  float32  (2,)          all 1",
        )
    )


@pytest.mark.parametrize(
    ("value", "dtype", "values"),
    [
        (torch.tensor([1.0, -3.5], dtype=torch.bfloat16), "bfloat16", "-3.5 to 1"),
        (torch.tensor([3, 60_000], dtype=torch.uint16), "uint16", "3 to 60000"),
        (torch.tensor([False, True]), "bool", "False to True"),
        (torch.tensor([1 + 1j]), "complex64", ""),
        (torch.tensor([float("inf")]), "float32", "none of 2 is finite"),
        (torch.ones(2, 0), "float32", "empty"),
        (torch.ones(2, requires_grad=True), "float32", "all 1"),
        ("x" * 10_000, "str", "'" + "x" * 27 + "..." + "x" * 28 + "', …"),
        (b"\x00" * 10_000, "bytes", None),
        ({"a": [1, {"b": "\x07"}]}, "dict", "{'a': [1, {'b': '\\x07'}]}, …"),
        (None, "NoneType", "None, …"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_any_kind_of_value_is_shown_in_one_short_line(value, dtype, values, make_module, urls):
    module = make_module(SplitConfig(urls), transforms={"label": lambda _: value})
    row = next(row for row in module.peek("train").rows if row.name == "label")
    assert row.dtype == dtype
    assert row.values == values or (values is None and len(row.values) < 70)


@pytest.mark.parametrize(
    ("make_tensor", "dtype", "shape"),
    [
        (lambda: torch.ones(3, device="meta"), "float32", (3,)),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quint8", (3,)),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "float32", ()),
    ],
    ids=["meta", "quantized", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_plain_numbers_is_shown_without_a_range(
    make_tensor, dtype, shape, make_module, urls
):
    tensor = make_tensor()
    module = make_module(SplitConfig(urls), collate_fn=lambda _: {"a": tensor, "b": [tensor]})
    module.collate_fn.deterministic = True
    rows = {row.name: row for row in module.peek("train").rows}
    assert rows["a"].cells == ("a", dtype, str(shape), "")
    assert rows["b"].values == f"{dtype} {shape}"


def test_a_tuple_has_the_names_of_its_fields(make_module, urls):
    fields = {"image": "png", "label": "cls"}
    module = make_module(SplitConfig(urls), fields=fields, batch_format="tuple")
    assert [row.name for row in module.peek("train").rows] == ["image", "label"]


@pytest.mark.parametrize("sampling", ["resampled", "shuffled"])
@pytest.mark.parametrize("make_transform", [Counter, lambda: drawn], ids=["state", "draws"])
def test_peeking_uses_nothing_up(make_transform, sampling, make_module, urls):
    def batches(*, peeks):
        config = SplitConfig(urls, sampling=sampling)
        module = make_module(config, transforms={"label": make_transform()})
        torch.manual_seed(0)
        found = []
        for batch in (loader := module.loader("train")):
            if peeks:
                assert isinstance(module.peek("train"), BatchTable)
            found.append({name: list(values) for name, values in batch.items()})
            found[-1]["drawn"] = torch.rand(()).item(), loader.state_dict()
        return str(found)

    assert batches(peeks=True) == batches(peeks=False)


def test_peeking_starts_no_process_and_needs_no_workers(make_module, urls, monkeypatch):
    module = make_module(SplitConfig(urls), num_workers=2)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", pytest.fail)
    module.peek("train")
    assert not module._loaders


def test_a_transform_that_cannot_be_copied_is_used_as_it_is(make_module, urls):
    class Held(Counter):
        def __deepcopy__(self, memo):
            raise TypeError("an open file")

    module = make_module(SplitConfig(urls), transforms={"label": Held()})
    assert module.peek("train").rows[1].values == "1 to 2"


def test_what_cannot_be_peeked_at_is_a_clear_error(make_module, urls):
    module = make_module(SplitConfig(urls), test=SplitConfig("/nowhere/a.tar"), batch_size=50)
    with pytest.raises(PlanError, match="11 samples do not fill one step of 1 rank x 50"):
        module.peek("train")
    with pytest.raises(ConfigError, match="there is no 'val' split"):
        module.peek("val")
    with pytest.raises(ShardNotFoundError):
        module.peek("test")
