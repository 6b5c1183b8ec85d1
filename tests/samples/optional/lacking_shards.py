"""Shards of which some samples lack members, and what is read of them by key."""

import io

import numpy as np
from PIL import Image

COUNTS = [4, 5, 0, 3]
LACKING = {1, 4, 6, 7, 11}
FIELDS = {"image": "png", "mask": "mask.png?", "label": "cls?", "text": "txt ; text ?"}


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows(module, name):
    loader = module.loader("train")
    columns = [batch[name] for batch in loader]
    values = [row for column in columns for row in column]
    keys = [key for batch in loader for key in batch["__key__"]]
    return dict(zip(map(int, keys), values, strict=True)), [type(column) for column in columns]
