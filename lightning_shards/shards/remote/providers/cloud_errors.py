"""What the errors of obstore mean: whether to try again, and what to do.

Most of them are of one class, whose text alone tells the status. It holds URLs and what stores say,
too, so none of it is shown.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from lightning_shards.shards.remote.backend import RequestFailure, failure_of_status

_CREDENTIALS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity or container role, then the "
    "metadata service of the instance; a profile of ~/.aws is asked if storage_options name one",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_SERVICE_ACCOUNT, the file of "
    "`gcloud auth application-default login`, then the metadata service of the instance",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and those beside "
    "them, then the managed identity of the instance",
}
_PANIC: Final = "PanicException"
_STATUS = re.compile(r"status code: (\d{3})")
_AZURITE_BEYOND: Final = ("StartTooLarge", "ParseContentRange")
"""What Azurite's answer to a range behind the end is called, where other stores say 416."""

_METADATA: Final = (
    "//169.254.169.254",
    "//metadata.google.internal",
    "/latest/api/token",
    "/latest/meta-data/iam",
)
"""Services that are asked for credentials where nothing else says who the user is."""


def is_panic(error: BaseException) -> bool:
    """Whether obstore's own code stumbled, mostly over a URL; its class cannot be imported."""
    return type(error).__name__ == _PANIC


def failure_of_error(
    error: BaseException, scheme: str, *, has_answered: bool = False
) -> RequestFailure:
    """Why obstore raised an error.

    Args:
        error: What it raised.
        scheme: Of the URL that was asked for.
        has_answered: Whether the store answered before, so that there are credentials.
    """
    from obstore import exceptions

    statuses = {
        FileNotFoundError: HTTPStatus.NOT_FOUND,
        exceptions.PreconditionError: HTTPStatus.PRECONDITION_FAILED,
        exceptions.UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
        exceptions.PermissionDeniedError: HTTPStatus.FORBIDDEN,
    }
    asked, text = f"credentials were looked for in {_CREDENTIALS[scheme]}", str(error)
    known = next((statuses[kind] for kind in statuses if isinstance(error, kind)), None)
    if known is None and any(sign in text for sign in _AZURITE_BEYOND):
        known = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    told = _STATUS.search(text)
    if known is not None or told is not None:
        failure = failure_of_status(known or int(told[1] if told else 0))
        failure.remedy = asked if failure.kind == "denied" else ""
        is_busy = failure.kind in ("again", "busy")
    else:
        is_busy = has_answered
        is_generic = isinstance(error, exceptions.GenericError)
        broke = "the connection broke or could not be made, or the server stalled"
        failure = RequestFailure(
            broke if is_generic else f"obstore raised {type(error).__name__}",
            "again" if is_generic else "final",
            remedy="check the network and the server, endpoint and region of storage_options or of "
            f"the provider's variables; {asked}",
        )
    if not is_busy and any(address in text for address in _METADATA):
        return RequestFailure("no credentials were found", "denied", remedy=asked)
    return failure
