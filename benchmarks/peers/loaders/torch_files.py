"""torch's own DataLoader over loose files, as of an ImageFolder."""

from typing import Any

from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import crop


class _Files(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self._paths = [str(path) for path in sorted((job.home / "files").glob("*/*.jpg"))]
        self._labels = [int(path.split("/")[-2]) for path in self._paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        with open(self._paths[number], "rb") as file:  # noqa: PTH123 as users write it
            return crop(file.read()), self._labels[number]


def files(job: Job) -> Any:
    """Images only: nobody keeps samples of 200 bytes in files of their own."""
    return DataLoader(
        _Files(job), batch_size=job.batch, shuffle=True, num_workers=job.workers, drop_last=True
    )


LOADERS = {"torch DataLoader, files": files}
