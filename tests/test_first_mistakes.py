"""The mistakes of a first hour: each ends in one sentence with a remedy, here in full."""

import io
import os
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from fault_server import fault_server
from torch.utils.data import DataLoader

from lightning_shards import LoaderConfig, Place, ShardDataModule, SplitConfig
from lightning_shards.build import loaders
from lightning_shards.cli import one_line
from lightning_shards.errors import ShardError
from lightning_shards.workers.pool import PoolDescription

GIVES_WHOLE_BATCHES = (
    "a ShardLoader gives whole batches, made by workers of its own: iterate over it, or give it to "
    "the trainer, without a torch DataLoader around it; for a DataLoader of your own take "
    "ShardDataset, which has one sample at each index"
)
LACKS = (
    "has no member for field {0!r}: wanted one of ['{1}'], found {2}; name one of these in "
    "`fields`, or, if only some samples lack it, set fields: {{{0}: '{1}?'}} and a value in "
    "`defaults`, leave these samples out by `keep`, or replace them: on_bad_sample='substitute' "
    "with max_bad"
)
QUOTED = "write braces of a pattern in quotes, as in '{000..012}.tar', and suffixes as jpg;png"
FEW = "; if only few samples are bad: on_bad_sample='substitute' with max_bad trains without them"


def write(name: str, members: list[bytes], suffix: str = "cls") -> None:
    with tarfile.open(name, "w") as tar:
        for number, data in enumerate(members):
            info = tarfile.TarInfo(f"{number}.{suffix}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def module(urls: Any = "a.tar", **settings: Any) -> ShardDataModule:
    split = SplitConfig(urls, sampling="sequential") if isinstance(urls, str) else urls
    settings = {"fields": {"label": "cls"}, "batch_size": 2, "num_workers": 0} | settings
    settings.setdefault("loader", LoaderConfig(cache_dir="cache"))
    return ShardDataModule(split, **settings)


def labels_of(*labels: str) -> None:
    write("a.tar", [label.encode() for label in labels])
    list(module().loader("train"))


def lambda_with(**settings: Any) -> None:
    loader = LoaderConfig(cache_dir="cache", **settings)
    data = module(transforms={"label": lambda label: label}, num_workers=1, loader=loader)
    next(iter(data.loader("train")))


class Torchvision:
    """Like a class of that library, which is not installed for tests."""

    __module__ = "torchvision.transforms.v2"

    def __call__(self, picture: Any) -> Any:
        raise TypeError("pic should be PIL Image or ndarray. Got int")


def fails(label: int) -> int:
    raise ValueError(f"no class {label}")


def of_yaml(text: str) -> None:
    Path("data.yaml").write_text(text)
    ShardDataModule.from_config("data.yaml")


def lacking_member() -> None:
    with tarfile.open("a.tar", "w") as tar:
        for name in ("0.cls", "0.txt", "1.cls", "1.txt", "2.cls", "3.cls", "3.txt"):
            tar.addfile(tarfile.TarInfo(name))
    module(fields={"caption": "txt"}).prepare_data()


def dotted_keys() -> None:
    write("a.tar", [b""] * 2, "v1.txt")
    module(fields={"caption": "txt"}).prepare_data()


def unknown_suffix() -> None:
    write("a.tar", [b""] * 2, "png")
    module(fields={"image": "pngg"})


def no_decoder() -> None:
    write("a.tar", [b""] * 2, "flac")
    module(fields={"audio": "flac"})


def bad_image() -> None:
    write("a.tar", [b"no image"] * 2, "png")
    list(module(fields={"image": "png"}).loader("train"))


def missing_url() -> None:
    with fault_server() as server:
        url = server.url.replace("//", "//user:secret@") + "/gone.tar?sig=secret"
        module({"urls": url}).loader("train")


def ragged_boxes() -> None:
    write("a.tar", [struct.pack("<2f", 1, 2), struct.pack("<3f", 1, 2, 3)], "boxes")
    list(module(fields={"boxes": "boxes"}, decode={"boxes": "float32"}).loader("train"))


def other_checkpoint() -> None:
    state = module().loader("train").state_dict()
    write("b.tar", [b"1"] * 6)
    module("{a,b}.tar").loader("train").load_state_dict(state)


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def refuse(path: Any, *others: Any, **options: Any) -> int:
        if str(path).endswith("a.tar"):
            raise PermissionError(13, "Permission denied", path)
        return plain(path, *others, **options)

    monkeypatch.setattr(os, "open", refuse)
    module().loader("train")


def loader_without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    next(iter(module().loader("train")))


NO_INT = (
    "for other numbers set decode: {label: json}, for texts set decode: {label: text}; for names "
    "of classes set decode: {label: class} and classes: {label: [...]}, or leave classes out where "
    "a classes.json is beside the shards"
)

MISTAKES: dict[str, tuple[Callable[..., object], str]] = {
    "a label that is no number": (
        lambda: labels_of("1", "bag", "1", "1"),
        (
            "sample '1' of a.tar: member 'cls' (3 bytes) cannot be decoded as 'int' for field "
            "'label': "
            f"ValueError: invalid literal for int() with base 10: b'bag'; {NO_INT}{FEW}"
        ),
    ),
    "a lambda": (
        lambda: lambda_with(multiprocessing_context="spawn"),
        (
            "the transform of 'label' is lambda_with.<locals>.<lambda>, which cannot be sent to "
            "worker processes (AttributeError: Can't pickle local object "
            "'lambda_with.<locals>.<lambda>'); define it at the top level of a module, "
            "where they can import it (no lambda, no function inside of a function), or set "
            "num_workers=0"
        ),
    ),
    "a lambda and threads": (
        lambda: lambda_with(pool="threads"),
        (
            "the transform of 'label' may draw random numbers from the generators of the whole "
            "process, which threads share: give it a parameter `rng`, or, if it draws none, an "
            "attribute `deterministic = True`; or set num_workers=0, or take pool='processes' and "
            "threads_per_worker=1 for what can be imported"
        ),
    ),
    "a transform that fails": (
        lambda: list(module(transforms={"label": fails}).loader("train")),
        "the transform of field 'label' failed on sample '0' of a.tar: ValueError: no class 1",
    ),
    "a callable of torchvision": (
        lambda: module(transforms={"label": Torchvision()}).source("train").first_sample(Place()),
        (
            "the transform of field 'label' failed on sample '0' of a.tar: TypeError: pic should "
            "be PIL Image or ndarray. Got int; torchvision's transforms take one picture: name "
            "them in `transforms` of the field, whose uint8 tensor needs no ToTensor; for PIL "
            "images set decode: {image: pil}"
        ),
    ),
    "a suffix that is not there": (
        unknown_suffix,
        "the first shard " + LACKS.format("image", "pngg", ["png"]),
    ),
    "keys with dots": (
        dotted_keys,
        "sample '0' of a.tar "
        + LACKS.format("caption", "txt", ["v1.txt"]).replace(
            "; name",
            "; a key ends at the first dot of a file's name, and all behind it is the suffix, as "
            "'v1.txt' is: pack the files again under names without other dots; name",
        ),
    ),
    "a sample without a member": (
        lacking_member,
        "sample '2' of a.tar " + LACKS.format("caption", "txt", ["cls"]),
    ),
    "shuffle in a split": (
        lambda: module({"urls": "a.tar", "shuffle": True}),
        (
            "Group 'train' does not accept option 'shuffle'; sampling='shuffled' of a split serves "
            "each sample once, in a new order each epoch"
        ),
    ),
    "drop_last": (
        lambda: module(drop_last=True),
        (
            "there is no setting 'drop_last' here: remainder='drop' of a split drops what fills no "
            "whole step, 'balanced' does not"
        ),
    ),
    "a sampler": (
        lambda: SplitConfig("a.tar", sampler=None),  # pyright: ignore[reportCallIssue]
        (
            "there is no setting 'sampler' here: sampling of a split says how samples are drawn, "
            "keep and exclude which ones"
        ),
    ),
    "a misspelt setting": (
        lambda: SplitConfig("a.tar", batchsize=3),  # pyright: ignore[reportCallIssue]
        "there is no setting 'batchsize' here: did you mean 'batch_size'?",
    ),
    "persistent_workers": (
        lambda: LoaderConfig(persistent_workers=True),  # pyright: ignore[reportCallIssue]
        (
            "there is no setting 'persistent_workers' here: leave it out, as the workers of train "
            "stay from epoch to epoch"
        ),
    ),
    "a variable of a shell": (
        lambda: module("$DATA/a.tar").loader("train"),
        (
            "'$DATA' in '$DATA/a.tar' is taken as it stands: write a variable as ${oc.env:NAME} in "
            "a YAML or os.environ['NAME'] in Python, and shards as [a.tar, b.tar]"
        ),
    ),
    "two shards in one text": (
        lambda: module("a.tar,b.tar").loader("train"),
        (
            "',' in 'a.tar,b.tar' is taken as it stands: write a variable as ${oc.env:NAME} in "
            "a YAML or os.environ['NAME'] in Python, and shards as [a.tar, b.tar]"
        ),
    ),
    "an interpolation of a variable": (
        lambda: of_yaml("train: ${DATA}/a.tar\nfields: {label: cls}"),
        (
            "'data.yaml': Interpolation key 'DATA' not found, at 'train'; a variable of the "
            "environment is ${oc.env:NAME}"
        ),
    ),
    "braces without quotes": (
        lambda: of_yaml("train: a.tar\nfields: {image: {jpg,png}}"),
        (
            "data.fields: Expected a <class 'str'>. Got value: {'jpg': None, 'png': None}; "
            f"{QUOTED}"
        ),
    ),
    "braces without quotes in a pattern": (
        lambda: of_yaml("train: {a,b}.tar"),
        (
            "'data.yaml': while parsing a block mapping in \"<file>\", line 1, "
            'column 1 did not find expected key in "<file>", line 1, column 13; '
            f"{QUOTED}"
        ),
    ),
    "a number for settings": (
        lambda: of_yaml("train: a.tar\nfields: {label: cls}\nloader: 3"),
        "data.loader: it must be a mapping of settings, got 3; give it settings, or leave it out",
    ),
    "empty settings": (
        lambda: of_yaml("train: a.tar\nfields: {label: cls}\nloader: {ray: }"),
        (
            "data.loader.ray: it must be a mapping of settings, got None; give it settings, or "
            "leave it out"
        ),
    ),
    "a ratio for a weight": (
        lambda: of_yaml("train: {mix: {a: {urls: a.tar, weight: 3:1}}}\nfields: {label: cls}"),
        (
            "YAML reads 3:1 in line 1 as a number of base 60; write the number itself, or put a "
            "text in quotes"
        ),
    ),
    "a class that is no data module": (
        lambda: of_yaml("class_path: lightning_shards.SplitConfig\ninit_args: {urls: a.tar}"),
        (
            "data.class_path must be ShardDataModule or a class that is made from it, got "
            "'lightning_shards.SplitConfig'"
        ),
    ),
    "a bad image": (
        bad_image,
        (
            "sample '0' of a.tar: member 'png' of field 'image': this is no image of a known "
            "format, it begins with b'no image'; fetch the image again, leave its sample out, or "
            f"name another decoder in `decode`{FEW}"
        ),
    ),
    "boxes of unequal numbers": (
        ragged_boxes,
        (
            "field 'boxes' does not fit into one tensor: (2,) float32 in sample '0', but (3,) "
            "float32 in sample '1'; give the field a transform that makes them alike, or pad them: "
            "collate_fn=PadCollate(fields=['boxes']), or a collate_fn of your own"
        ),
    ),
    "a URL that leads nowhere": (
        missing_url,
        (
            "train: http://127.0.0.1:PORT/gone.tar cannot be read: the server "
            "answers 404 Not Found; check the URL, the bucket, and the numbers in its braces"
        ),
    ),
    "a wrapped loader": (
        lambda: next(iter(DataLoader(module().loader("train")))),
        GIVES_WHOLE_BATCHES,
    ),
    "another checkpoint": (
        other_checkpoint,
        (
            "the checkpoint is of other shards: its epoch has 4 samples, and the shards of this "
            "run (number of shards: 2, from 'a.tar' to 'b.tar') hold 10; their file names, order "
            "and counts must be those of the run that saved it, whose config.yaml names its urls: "
            "set these back to resume, or start anew with its weights alone: "
            "Model.load_from_checkpoint(path), and fit without ckpt_path; from a checkpoint of an "
            "epoch's end ExactResume(allow_new_data=True) goes on with other shards"
        ),
    ),
    "no permission": (
        unreadable,
        "a.tar cannot be opened: Permission denied; give this user the right to read it",
    ),
    "a split of another type": (
        lambda: module({"a.tar"}),
        (
            "train must be a SplitConfig or a dict of its settings; shards alone are a path, a "
            "pattern or a list of them, got set"
        ),
    ),
    "a plain string that matches nothing": (
        lambda: module(["gone-*.tar"]).loader("train"),
        (
            "train: no file matches gone-*.tar; check the folder and the pattern, and that this "
            "machine sees the folder"
        ),
    ),
    "a loader without ranks": (
        loader_without_ranks,
        (
            "this is one of 2 processes, and its loader was made without rank and world_size: all "
            "would get the same batches; with a Trainer, trainer.fit(model, datamodule=data) finds "
            "out the rank by itself; else make the loader with the numbers of its process: "
            "data.loader(split, rank=rank, world_size=world_size), as in "
            "trainer.distributed_sampler_kwargs"
        ),
    ),
    "a typo in a class": (
        lambda: ShardDataModule.from_config({"class_path": "lightning_shards.ShardDataModul"}),
        (
            "data.class_path is 'lightning_shards.ShardDataModul', which cannot be loaded: module "
            "'lightning_shards' has no attribute 'ShardDataModul'; did you mean 'ShardDataModule'?"
        ),
    ),
    "an empty tar": (
        labels_of,
        "the only shard of 'train' holds no sample; look at `urls`, or pack them again",
    ),
    "a suffix without a decoder": (
        no_decoder,
        (
            "field 'audio' comes from members 'flac', a suffix without a decoder; for their bytes "
            "set decode: {audio: raw}, for a value name a decoder, or a function of your own, as "
            "in decode: {audio: my_module.my_decoder}"
        ),
    ),
    "a decoder of another suffix": (
        lambda: module(decode={".clss": "text"}),
        (
            "decode names ['.clss'], and the fields are ['label']; name a field, or add one to "
            "fields"
        ),
    ),
    "a decoder that fails": (
        lambda: list(module(decode={"label": float.fromhex}).loader("train")),
        (
            "sample '0' of a.tar: member 'cls' (1 byte) cannot be decoded as "
            "'float.fromhex' for field 'label': TypeError: bad argument type for built-in "
            f"operation; repair the shard, or that function{FEW}"
        ),
    ),
    "a label 0.5": (
        lambda: labels_of("0.5", "1.5"),
        (
            "sample '0' of a.tar: member 'cls' (3 bytes) cannot be decoded as 'int' for field "
            "'label': "
            f"ValueError: invalid literal for int() with base 10: b'0.5'; {NO_INT}{FEW}"
        ),
    ),
}


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's own, of the lambda
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_sentence_with_a_remedy(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = MISTAKES[mistake]
    write("a.tar", [b"1"] * 4)
    patches = [monkeypatch] if make.__code__.co_argcount else []
    with pytest.raises(ShardError) as caught:
        make(*patches)
    told = re.sub(r"0x[0-9a-f]+", "ADDRESS", one_line(caught.value)).replace(f"{tmp_path}/", "")
    assert re.sub(r"(?<=127\.0\.0\.1:)\d+", "PORT", told) == message


def test_too_many_workers_are_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loaders, "num_cpus", lambda: 2)
    write("a.tar", [b"1"] * 4)
    source = module().source("train")
    assert loaders.describe("train", source, 1, PoolDescription("processes", 64)) == (
        "train: 4 samples from 1 shard, sequential by the indexed reader, 2 steps of 1 x 2 samples "
        "(0 dropped, 0 repeated); 64 workers of each rank on 2 cores start slowly"
    )
