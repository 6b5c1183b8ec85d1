"""Transforms and stages that actors import, which would take seconds to import Lightning too."""

import os
import random
import signal

import numpy as np
import psutil
import torch


class DrawsFromAll:
    """A tensor of draws from all global generators."""

    def __call__(self, label):
        drawn = random.random() + np.random.random()  # noqa: NPY002
        return torch.rand(3, dtype=torch.float64) + drawn + label


class ByProcess:
    """A transform of which actors have another version."""

    deterministic = True

    def __call__(self, label):
        return label + ("ray::" in " ".join(psutil.Process().cmdline()))


class Raising:
    """A stage that fails at a sample, and says that it draws no random numbers."""

    deterministic = True

    def __init__(self, key, error):
        self.key, self.error = key, error

    def __call__(self, samples):
        for sample in samples:
            if sample["__key__"] == self.key:
                raise self.error(f"at {self.key}")
            yield sample


def raise_at_seven(label):
    if label == 7:
        raise ValueError("a seven")
    return label


def end_at_seven(label):
    """A decoder that crashes in actors."""
    if label == 7 and "ray::" in " ".join(psutil.Process().cmdline()):
        os.kill(os.getpid(), signal.SIGKILL)
    return label


raise_at_seven.deterministic = end_at_seven.deterministic = True
