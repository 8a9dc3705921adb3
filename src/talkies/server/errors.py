"""Errors on the wire. Every answer that is not a job has OpenAI's shape, and the HTTP status once more as a number:

    {"error": {"message": str, "type": str, "param": str | null, "code": str, "status": int}}

``type`` is one of ``invalid_request_error``, ``rate_limit_error``, ``server_error``; ``code`` is the word of
:mod:`talkies.errors`. Clients of vLLM go by the status line, those of SGLang, too. ``x-should-retry: false`` tells
OpenAI's clients which 409 and 5xx stay what they are however often they are sent.

FastAPI's 422 never leaves: a malformed form is a 400 like any other bad value.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match

from talkies.errors import InvalidRequest, OutputError, TalkiesError, retold

log = logging.getLogger(__name__)
MAX_MESSAGE_CHARS = 600
# Fields of the API whose arguments in Python, which errors name, are called something else.
FIELDS: Mapping[str, str] = {
    "num_sigmas": "num_inference_steps",
    "num_outputs": "num_outputs_per_prompt",
    "video_shift": "flow_shift",
    "audio_shift": "audio_flow_shift",
    "aspect": "aspect_ratio",
    "start_time_s": "start_time_seconds",
    "end_time_s": "end_time_seconds",
}


class Json(JSONResponse):
    """JSON as UTF-8; text that is not text (lone surrogates echoed from a request) falls back to escapes."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class NotFound(InvalidRequest):
    http_status = 404
    code = "not_found"


class Gone(InvalidRequest):
    http_status = 410
    code = "expired"


class Conflict(InvalidRequest):
    http_status = 409
    code = "conflict"


class Unauthorized(InvalidRequest):
    http_status = 401
    code = "invalid_api_key"  # OpenAI's word


class Forbidden(InvalidRequest):
    http_status = 403
    code = "forbidden"


class UnsupportedMedia(InvalidRequest):
    http_status = 415
    code = "unsupported_media_type"


class NotProcessable(InvalidRequest):
    """The content of a job that failed (422 by the contract; never a validation error)."""

    http_status = 422
    code = "video_failed"


class NotImplementedHere(TalkiesError):
    http_status = 501
    code = "not_implemented"


class TimedOut(TalkiesError):
    http_status = 504
    code = "timed_out"


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


# Answers without an exception of ours behind them, by their status.
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    410: "expired",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    429: "queue_full",
    431: "headers_too_large",
    499: "cancelled",
    501: "not_implemented",
    503: "not_ready",
    504: "timed_out",
}
# A conflict stays one; so does what is not implemented; a second try of a clip that took too long takes as long.
_FINAL = frozenset({409, 501, 504})


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Json:
    """``code`` is a word of the error tree; one that fits the status where there is none."""
    body = {
        "message": clip(message),
        "type": type_of(status),
        "param": None if param is None else clip(param, 200),
        "code": code or _CODES.get(status, "internal_error" if status >= 500 else "invalid_request"),
        "status": status,
    }
    final = {"x-should-retry": "false"} if status in _FINAL else {}
    return Json({"error": body}, status_code=status, headers={**final, **(headers or {})})


def type_of(status: int) -> str:
    """OpenAI's word for a class of errors."""
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def clip(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """A client's own megabyte is not echoed back to it."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def response_of(error: TalkiesError) -> Json:
    retold(error, FIELDS)
    headers: dict[str, str] = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if error.http_status in (429, 503):
        headers["Retry-After"] = str(max(1, round(retry_after_s or 5)))
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error_response(error.http_status, str(error), code=error.code, param=error.param, headers=headers)


def hidden(error: TalkiesError, hide: Callable[[str], str]) -> TalkiesError:
    """The same error without the server's own paths in what it says."""
    error.message = hide(error.message)
    error.hint = error.hint if error.hint is None else hide(error.hint)
    error.param = error.param if error.param is None else hide(error.param)
    return error


def error_object(error: TalkiesError) -> dict[str, Any]:
    """The ``error`` of a failed job: a string code, and the HTTP status it would have been."""
    retold(error, FIELDS)
    return {"code": error.code, "message": clip(str(error)), "param": error.param, "status": error.http_status}


@contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """A refusal inside points at the field where the client wrote it: size, not the width that came of it."""
    try:
        yield
    except InvalidRequest as error:
        retold(error, FIELDS)
        error.param = names.get(error.param or "", error.param)
        raise


def install(app: FastAPI, hide: Callable[[str], str]) -> None:
    """``hide`` takes the server's own paths out of what a client reads."""

    @app.exception_handler(TalkiesError)
    async def _ours(_: Request, error: TalkiesError) -> Response:
        if error.http_status == 500:  # 501 and 503 are answers, polled every second by load balancers
            log.warning("request failed: %s", error)
        return response_of(hidden(error, hide))

    @app.exception_handler(sqlite3.OperationalError)
    async def _disk(_: Request, error: sqlite3.OperationalError) -> Response:
        log.warning("request failed: %s", error)
        return response_of(OutputError(f"the job cannot be stored: {error}", hint="is the data folder's disk full?"))

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0] if error.errors() else {}
        where = [str(part) for part in first.get("loc", ())][1:]
        got = "" if "input" not in first else f", got {clip(repr(first['input']), 60)}"
        message = f"{'.'.join(where) or 'request'}: {first.get('msg', 'is not valid')}{got}"
        return error_response(400, message, param=".".join(where) or "body")

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        message = str(error.detail) if error.detail else phrase(error.status_code)
        if error.status_code == 404:
            message = f"{request.method} {request.url.path} does not exist"
        elif error.status_code == 405:
            message = f"{request.method} is not allowed on {request.url.path}"
        param = "body" if error.status_code == 400 else None
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        return error_response(error.status_code, message, param=param, headers=headers)


def _methods(request: Request) -> set[str]:
    """All methods of the path. Starlette answers with those of the first route that has it, though several do."""
    methods: dict[int, set[str]] = {}  # by the number of parameters: /v1/videos/sync is no {video_id}
    for route in _flat(request.app.router.routes):
        if route.matches(request.scope)[0] is not Match.NONE:
            free = getattr(route, "path", "").count("{")
            methods.setdefault(free, set()).update(getattr(route, "methods", None) or ())
    return methods[min(methods)] if methods else set()


def _flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """FastAPI of some versions keeps an included router as one route without methods."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from _flat(inner.routes)
