"""The body of a POST, in the three encodings that clients use -> one dictionary of fields.

The official OpenAI client flattens nested values of a multipart form to bracket names; they are folded back here:
``extra_params[task]``, ``extra_params[frame_indices][]``, ``conditions[][type]``, ``conditions[0][type]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from talkies.errors import InvalidRequest
from talkies.server.errors import UnsupportedMedia
from talkies.server.intake import fields
from talkies.server.intake.coerce import kind_of, parse_json

MAX_FORM_FIELDS = 1000
MAX_FORM_FILES = 64
MAX_FOLD_DEPTH = 4
_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")


@dataclass(frozen=True, kw_only=True)
class Body:
    """``form``: values are text, or ``UploadFile``; otherwise they are JSON values."""

    values: dict[str, Any]
    form: bool


async def read_body(request: Request, *, max_part_bytes: int) -> Body:
    """Raises ``InvalidRequest`` and its subclasses. Files are spooled to disk by the parser, never held whole."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(
            f"Content-Encoding {encoding[:80]!r} is not supported",
            hint="send the body as it is, without compression",
            param="Content-Encoding",
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" or media_type.endswith("+json"):
        value = parse_json("body", await request.body())
        if not isinstance(value, dict):
            raise InvalidRequest(f"body: expected an object, got {kind_of(value)}", param="body")
        return Body(values=value, form=False)
    if media_type == "multipart/form-data":
        return Body(values=fold((await _multipart(request, max_part_bytes)).multi_items()), form=True)
    if media_type == "application/x-www-form-urlencoded":
        form = await request.form(max_fields=MAX_FORM_FIELDS)
        return Body(values=fold(form.multi_items()), form=True)
    raise UnsupportedMedia(
        f"Content-Type {media_type[:80]!r} is not supported" if media_type else "Content-Type is missing",
        hint="use application/json, multipart/form-data or application/x-www-form-urlencoded",
        param="Content-Type",
    )


class _WholeMultiPart(MultiPartParser):
    """Starlette's, which takes a body without its last boundary for a whole one: the part that was cut off, a
    reference often, was lost without a word."""

    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _multipart(request: Request, max_part_bytes: int) -> FormData:
    parser = _WholeMultiPart(
        request.headers,
        request.stream(),
        max_files=MAX_FORM_FILES,
        max_fields=MAX_FORM_FIELDS,
        max_part_size=max_part_bytes,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"body: {error.message}", param="body") from None
    request._form = form  # whoever closes the request closes its temporary files
    if not parser.ended:
        raise InvalidRequest(
            "body: the multipart form ends without its closing boundary",
            hint="send it again, whole: a part of it is missing",
            param="body",
        )
    return form


def fold(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Flat form fields -> nested values. Raises ``InvalidRequest`` for a name given twice or folded two ways."""
    root: dict[str, Any] = {}
    for name, value in _numbered(list(pairs)):
        match = _NAME.fullmatch(name)
        if not match:
            raise fields.unknown(name or "''", fields.TOP_LEVEL)
        base = match[1]
        path = re.findall(r"\[([^\[\]]*)\]", match[2])
        if len(path) > MAX_FOLD_DEPTH:
            raise InvalidRequest(f"{base}: brackets nested over {MAX_FOLD_DEPTH} deep", param=base)
        if isinstance(value, UploadFile) or fields.TOP_LEVEL.get(base) == "reference":
            _add_reference(root, base, path, value)
        else:
            _insert(root, [base, *path], value, base)
    return root


def _numbered(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Lists of objects that come column by column get numbers: ``c[][type]`` twice, then ``c[][uri]`` twice.

    So does the official OpenAI client send them; others send element by element, which :func:`_insert` folds.
    Raises ``InvalidRequest`` if a column has a hole, for nobody can tell whose value is missing.
    """
    columns: dict[str, dict[str, int]] = {}
    grouped, last = set(), ""
    for name, _ in pairs:
        base, separator, rest = name.partition("[][")
        if separator:
            column = columns.setdefault(base, {})
            column[rest] = column.get(rest, 0) + 1
            if name == last:
                grouped.add(base)
        last = name
    for base in grouped:
        if len(set(columns[base].values())) > 1:
            counts = ", ".join(f"{base}[][{rest} {n}" for rest, n in columns[base].items())
            raise InvalidRequest(
                f"{base} comes column by column, with columns of different lengths: {counts} times",
                hint=f"number its elements ({base}[0][..]), or send JSON",
                param=base,
            )
    seen: dict[str, int] = {}
    out = []
    for name, value in pairs:
        base, separator, rest = name.partition("[][")
        if separator and base in grouped:
            index = seen[name] = seen.get(name, -1) + 1
            name = f"{base}[{index}][{rest}"
        out.append((name, value))
    return out


def _add_reference(root: dict[str, Any], base: str, path: list[str], value: Any) -> None:
    """Files and references may repeat, with or without ``[]``; a single one stays single."""
    if path not in ([], [""]) and not isinstance(value, UploadFile):
        _insert(root, [base, *path], value, base)
    elif base not in root:
        root[base] = value
    elif isinstance(root[base], list):
        root[base].append(value)
    else:
        root[base] = [root[base], value]


def _insert(container: dict[str, Any] | list[Any], path: list[str], value: Any, base: str) -> None:
    head, rest = path[0], path[1:]
    if isinstance(container, dict):
        if not head:
            raise InvalidRequest(f"{base} mixes [] with named brackets", param=base)
        if not rest:
            if head in container:
                raise InvalidRequest(f"{head} is given twice", hint="give it once", param=base)
            container[head] = value
            return
        child = container.setdefault(head, _empty_for(rest[0]))
        _descend(child, rest, value, base)
        return
    index = len(container) if not head else _index(head, base)
    if not head and rest and container and isinstance(container[-1], dict) and rest[0] not in container[-1]:
        index -= 1  # conditions[][type]=..&conditions[][uri]=..: the next field of the same element
    if index > len(container):
        raise InvalidRequest(f"{base}[{index}] leaves a gap", hint="number elements from 0", param=base)
    if not rest:
        if index < len(container):
            raise InvalidRequest(f"{base}[{index}] is given twice", param=base)
        container.append(value)
        return
    if index == len(container):
        container.append(_empty_for(rest[0]))
    _descend(container[index], rest, value, base)


def _descend(child: Any, rest: list[str], value: Any, base: str) -> None:
    if not isinstance(child, dict | list):
        raise InvalidRequest(f"{base} is given as a value and with brackets", hint="use one of them", param=base)
    _insert(child, rest, value, base)


def _empty_for(segment: str) -> dict[str, Any] | list[Any]:
    return [] if not segment or segment.isdecimal() else {}


def _index(text: str, base: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise InvalidRequest(f"{base} mixes [{text[:40]}] with numbered brackets", param=base)
    return int(text)
