"""Transforms that draw numbers, in a file that spawned workers import: it needs no Lightning."""

import numpy as np
import torch


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def jitter_globally(image: torch.Tensor) -> torch.Tensor:
    return image + torch.rand(image.shape) + float(np.random.random())  # noqa: NPY002
