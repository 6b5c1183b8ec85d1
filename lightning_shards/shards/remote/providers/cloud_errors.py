"""What the errors of obstore mean: whether to try again, and what the user can do.

They come in one class for nearly all, so they are known by parts of their text. It holds URLs and
what stores say, so none of it is shown.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from lightning_shards.shards.remote.backend import (
    FailureKind,
    RequestFailure,
    StatusLine,
    failure_of_status,
)

_PROVIDERS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity or container role, then the "
    "metadata service of the instance; a profile of ~/.aws is asked if storage_options name one",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_SERVICE_ACCOUNT, the file of "
    "`gcloud auth application-default login`, then the metadata service of the instance",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and those beside "
    "them, then the managed identity of the instance",
}
_PANIC: Final = "PanicException"
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED: Final = (401, 403)
_REDIRECTS: Final = range(300, 400)
_REMEDY_OF_REDIRECTS: Final = "check the endpoint and the region in storage_options"


class _Reason(NamedTuple):
    """By which part of its text an error of obstore is known, and what it means."""

    sign: re.Pattern[str]
    what: str
    kind: FailureKind = "again"
    remedy: str = ""


_METADATA = re.compile(
    r"//(169\.254\.169\.254|\[?fd00:ec2::254|metadata\.google\.internal|[^/\s]+/"
    r"(latest/(api/token|meta-data/iam/)|computeMetadata/v1/instance/|metadata/identity/oauth2/))"
)
"""Services that obstore asks for credentials where nothing else says who the user is: there may be
none. Their addresses can be changed, by AWS_METADATA_ENDPOINT for instance, and their paths not."""

_CONTAINER = re.compile(r"//(169\.254\.170\.23?|\[?fd00:ec2::23)\b")
"""Services of containers, which obstore asks because a variable names them: there is one."""

_GIVES: Final = "the service that gives credentials"

_OF_CREDENTIALS: Final = (
    _Reason(
        re.compile(r"<Code>(ExpiredToken|TokenRefreshRequired|RequestTimeTooSkewed)</Code>"),
        "the credentials have expired",
        "denied",
    ),
    _Reason(  # STS answers so with 400, which otherwise does not change
        re.compile(r"status code: 400\b.*<Code>(Throttling|RequestLimitExceeded)", re.DOTALL),
        f"{_GIVES} has too many requests",
    ),
    _Reason(
        re.compile(r"status code: 400\b.*<Code>IDPCommunicationError</Code>", re.DOTALL),
        f"{_GIVES} cannot reach the identity provider",
    ),
)
_OTHERS: Final = (
    _Reason(  # of http:// where it is not allowed, and of a host or port that cannot be
        re.compile(rf"kind: Builder\b|^{_PANIC}: "),
        "the endpoint cannot be used",
        "final",
        "write https://HOST or http://HOST:PORT as endpoint of storage_options, or in the variable "
        "of the provider (AWS_ENDPOINT_URL, GOOGLE_BASE_URL, AZURE_STORAGE_ENDPOINT)",
    ),
    _Reason(
        re.compile("BareRedirect"),
        "the server redirects to no address",
        "final",
        _REMEDY_OF_REDIRECTS,
    ),
    _Reason(
        re.compile("NotPartial"),
        "the server answers with the whole object and not with a range",
        "final",
        "use a server that knows ranges, or copy the shards here",
    ),
    _Reason(
        re.compile("kind: Redirect"),
        "the server redirects too often",
        "final",
        _REMEDY_OF_REDIRECTS,
    ),
    _Reason(
        re.compile(r"source: Missing(LastModified|Etag)"),
        "the server does not say which version its object is",
        "final",
        "check the endpoint in storage_options",
    ),
    _Reason(
        re.compile("source: (MissingContentLength|InvalidContentLength|BadHeader)"),
        "the headers of the answer do not say what it is",
        "final",
        "check the endpoint in storage_options, and any proxy before it",
    ),
    _Reason(  # "bytes 9-8/9" and "bytes 0--1/0", by which Azurite answers where others say 416
        re.compile(r"StartTooLarge|ParseContentRange \{\s*value: .bytes [^/]*/0\b"),
        "the range begins behind the object's end",
        "beyond",
    ),
    _Reason(
        re.compile(r"UnexpectedRange|ContentRange\b|InvalidRangeRequest"),
        "the server answers with another range",
    ),
    _Reason(
        re.compile("InvalidCertificate|UnknownIssuer"),
        "the server's certificate is not trusted",
        "final",
        "check the endpoint, and the certificates of this machine (SSL_CERT_FILE)",
    ),
    _Reason(re.compile("kind: Timeout|TimedOut"), "the server stalled"),
    _Reason(re.compile("kind: Connect,"), "no connection can be made"),
    _Reason(re.compile("HttpError|RetryError"), "the connection broke"),
)


def is_panic(error: BaseException) -> bool:
    """Whether obstore's own code stumbled, mostly over a URL; its class cannot be imported."""
    return type(error).__name__ == _PANIC


def failure_of_error(
    error: BaseException, scheme: str, *, has_had_credentials: bool = False
) -> RequestFailure:
    """Why obstore raised an error, known by parts of its text, none of which is shown.

    Args:
        error: What it raised.
        scheme: Of the URL that was asked for.
        has_had_credentials: Whether a store answered before: then a service that gives credentials
            is there, also if it cannot be reached now.
    """
    text = f"{type(error).__name__}: {error}"
    asked = f"credentials were looked for in {_PROVIDERS[scheme]}"
    if _METADATA.search(text) or _CONTAINER.search(text):
        is_there = has_had_credentials or _CONTAINER.search(text) is not None
        return _failure_of_service(text, asked, is_there=is_there)
    for reason in _OF_CREDENTIALS:
        if reason.sign.search(text):
            return RequestFailure(reason.what, reason.kind, remedy=asked)
    match = _STATUS.search(text)
    if match:
        status = int(match[1])
        remedy = asked if status in _DENIED else ""
        remedy = _REMEDY_OF_REDIRECTS if status in _REDIRECTS else remedy
        return failure_of_status(status, remedy=remedy)
    for reason in _OTHERS:
        if reason.sign.search(text):
            return RequestFailure(reason.what, reason.kind, remedy=reason.remedy)
    return RequestFailure(
        f"obstore raised {type(error).__name__}",
        "final",
        remedy="check storage_options and the variables of the provider",
    )


def _failure_of_service(text: str, asked: str, *, is_there: bool) -> RequestFailure:
    """Why a service gave no credentials: it may be busy, or there is none on this machine."""
    match = _STATUS.search(text)
    if match is None:
        if is_there:
            return RequestFailure(f"{_GIVES} does not answer", remedy=asked)
    elif failure_of_status(int(match[1])).kind in ("again", "busy"):
        # The store is not busy, so no connections to it are given up
        return RequestFailure(f"{_GIVES} answers {StatusLine(int(match[1]))}", remedy=asked)
    return RequestFailure("no credentials were found", "denied", remedy=asked)
