"""To which commits of the Hugging Face hub the revisions of a run are pinned.

A branch may move while a run reads it. So the first commit that the hub names for a revision holds
for the whole process, whatever connections it opens later, and is carried to its workers and to the
other ranks of its node. A dict serves without a lock, which a fork could inherit held.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, TypeGuard

_COMMIT: Final = re.compile("[0-9a-f]{40}")
_pinned: dict[str, str] = {}  # by the hash of endpoint and revision: an endpoint may hold a secret


def pin_commit(endpoint: str, revision: str, commit: str) -> str:
    """Pin a revision to a commit, unless it is pinned; the commit that holds from now on."""
    return _pinned.setdefault(_key(endpoint, revision), commit)


def commit_of(endpoint: str, revision: str) -> str:
    """The commit that a revision is pinned to; the empty text if it is not."""
    return _pinned.get(_key(endpoint, revision), "")


def is_commit(text: object) -> TypeGuard[str]:
    """Whether this is how the hub names a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def pinned_commits() -> dict[str, str]:
    """All that is pinned in this process, for another one of the run."""
    return dict(_pinned)


def take_over_commits(commits: Mapping[str, object]) -> None:
    """Pin what another process of the run has pinned; what is pinned here stays as it is.

    Raises:
        ValueError: These are no commits.
    """
    for key, commit in commits.items():
        if not is_commit(commit):
            raise ValueError(f"{commit!r} is no commit of the hub")
        _pinned.setdefault(key, commit)


def forget_commits() -> None:
    """Ask the hub again what revisions stand for, as a new process does."""
    _pinned.clear()


def _key(endpoint: str, revision: str) -> str:
    return sha256(f"{endpoint} {revision}".encode()).hexdigest()
