"""python killed_readers.py FOLDER SECONDS: 16 readers of one cache, one killed every 10 ms.

Each loads pieces at random into a cache for a third of them, and reads what is there. It says how
many were killed, how many bytes the pieces took at most, and how many a fresh process then finds.
"""

import os
import random
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

from cached_bytes import FILE, disk_bytes, is_kept, is_there, make_cache, make_need
from cached_bytes import piece_number as number_of_piece

READERS, PIECES, LIMIT = 16, 90, 30
WRONG = 3


def read_for_ever(folder: Path, seed: int) -> None:
    draws = random.Random(seed)
    while True:
        with closing(make_cache(folder, make_need(LIMIT, reads_bytes=PIECES * FILE))) as cache:
            for _ in range(200):
                is_kept(cache, number_of_piece(draws.randrange(PIECES)))


def fork_reader(folder: Path, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            read_for_ever(folder, seed)
        finally:
            os._exit(WRONG)
    return pid


def main(folder: Path, seconds: float) -> None:
    readers = [fork_reader(folder, seed) for seed in range(READERS)]
    draws, killed, most, end = random.Random(0), 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        most = max(most, disk_bytes(folder))
        victim = draws.randrange(READERS)
        os.kill(readers[victim], signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(readers[victim], 0)[1])
        assert ended == -signal.SIGKILL, "a reader saw a wrong byte"
        killed += 1
        readers[victim] = fork_reader(folder, READERS + killed)
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == -signal.SIGKILL
    cache = make_cache(folder, make_need(LIMIT), "afterwards")
    found = sum(is_there(cache, number_of_piece(number)) for number in range(PIECES))
    assert list(folder.glob("pieces/*/*.part")) == []
    sys.stdout.write(f"{killed} {most} {found}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
