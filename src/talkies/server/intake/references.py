"""The reference fields of three APIs -> one ordered list of :class:`Source`, and the role each plays in a task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import UploadFile

from talkies.errors import InvalidRequest
from talkies.media.reference_kinds import kind_of_file, kind_of_head, kind_of_uri
from talkies.request import Kind, Role, Task
from talkies.server.intake import fields
from talkies.server.intake.body import Body
from talkies.server.intake.coerce import coerce, kind_of, parse_json

JSON_FIELDS: dict[str, Kind] = {"image_reference": "image", "video_reference": "video", "audio_reference": "audio"}
URL_KEYS: dict[str, Kind] = {"image_url": "image", "video_url": "video", "audio_url": "audio"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One picture, video or sound as the client named it: an upload, or a URI. ``field`` is what errors point at."""

    kind: Kind
    field: str
    upload: UploadFile | None = None
    uri: str = ""
    role: Role = "reference"
    start_time_s: float = 0.0
    require_sound: bool = False


def collect(body: Body) -> list[Source]:
    """Raises ``InvalidRequest`` for fields that exclude each other and for shapes that name no file."""
    values = body.values
    given = [name for name in (*JSON_FIELDS, "input_reference", "input_references") if _present(values.get(name))]
    if _present(values.get("conditions")):
        if given:
            raise _excludes("conditions", given[0])
        conditions = coerce("conditions", "list", values["conditions"], form=body.form)
        return [_condition(i, c, body.form) for i, c in enumerate(conditions)]
    for name in ("input_references", "input_reference"):
        if name in given:
            clash = [other for other in given if other not in (name, "audio_reference")]
            if clash:
                raise _excludes(name, clash[0])
    sources: list[Source] = []
    for name in ("input_references", "input_reference"):
        if name in given:
            sources += [_any(name, item) for item in _items(name, values[name])]
    if "input_reference" in given and len(sources) > 1:
        raise InvalidRequest(
            f"input_reference takes one file, got {len(sources)}", hint="use input_references", param="input_reference"
        )
    for name, kind in JSON_FIELDS.items():
        if name in given:
            sources += [_url_object(name, item, kind) for item in _items(name, values[name])]
    return sources


def assign_roles(sources: list[Source], task: Task, frame_indices: list[int] | None, *, explicit: bool) -> list[Source]:
    """Images of an fl2va request become its first and last frame. ``explicit``: roles came with the conditions."""
    images = [s for s in sources if s.kind == "image"]
    if task is not Task.FL2VA or not images:
        if frame_indices is not None:
            raise InvalidRequest(
                "frame_indices needs the images it places",
                hint="add an image, with task fl2va",
                param="frame_indices",
            )
        return sources
    if explicit and frame_indices is None:
        return sources
    indices = frame_indices if frame_indices is not None else ([0] if len(images) == 1 else [0, -1])
    if len(images) > 2:
        raise InvalidRequest(
            f"fl2va takes at most first and last images, got {len(images)}",
            hint="use task ref2va for more pictures",
            param=images[2].field,
        )
    if indices not in ([0], [-1], [0, -1]):
        raise InvalidRequest(f"frame_indices={indices} must be [0], [-1] or [0, -1]", param="frame_indices")
    if len(indices) != len(images):
        raise InvalidRequest(
            f"fl2va requires one frame index per image: {len(indices)} for {len(images)}", param="frame_indices"
        )
    roles = iter(indices)
    return [replace(s, role=_role_of_index(next(roles))) if s.kind == "image" else s for s in sources]


def assign_start_times(sources: list[Source], times: float | list[float] | None) -> list[Source]:
    """One start per reference video, in order."""
    if times is None:
        return sources
    videos = [s for s in sources if s.kind == "video"]
    listed = times if isinstance(times, list) else [times]
    if len(listed) != len(videos):
        raise InvalidRequest(
            f"start_time_seconds has {len(listed)} values for {len(videos)} reference videos",
            hint="give one per video",
            param="start_time_seconds",
        )
    starts = iter(listed)
    return [replace(s, start_time_s=next(starts)) if s.kind == "video" else s for s in sources]


def _present(value: Any) -> bool:
    return value is not None and value not in ("", [])


def _excludes(name: str, other: str) -> InvalidRequest:
    return InvalidRequest(f"{name} and {other} exclude each other", hint="use one way to give references", param=other)


def _items(name: str, value: Any) -> list[Any]:
    """One reference or many; a form carries objects as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = parse_json(name, value)
    return value if isinstance(value, list) else [value]


def _any(name: str, item: Any) -> Source:
    if isinstance(item, UploadFile):
        # A client that is handed bytes names them "upload" and knows no type.
        kind = kind_of_file(item.content_type, item.filename) or kind_of_head(item.file.read(12)) or "video"
        return Source(kind=kind, field=name, upload=item)
    if isinstance(item, str):
        if item.lstrip().startswith("{"):
            return _url_object(name, parse_json(name, item), None)
        return Source(kind=kind_of_uri(item) or "video", field=name, uri=item)
    return _url_object(name, item, None)


def _url_object(name: str, item: Any, kind: Kind | None) -> Source:
    if isinstance(item, str) and kind is not None:
        return Source(kind=kind, field=name, uri=item)
    if not isinstance(item, dict):
        what = f'{{"{kind or "image"}_url": ...}}'
        raise InvalidRequest(f"{name} must be {what}, got {kind_of(item)}", param=name)
    if "file_id" in item:
        raise InvalidRequest("file_id is not available: there is no file store", hint="use a URL", param=name)
    allowed = {key: k for key, k in URL_KEYS.items() if kind in (None, k)}
    keys = [key for key in item if key in allowed]
    extra = [key for key in item if key not in allowed]
    if extra:
        raise fields.unknown(str(extra[0]), allowed, where=name)
    if len(keys) != 1:
        raise InvalidRequest(f"{name} must have exactly one of {', '.join(allowed)}", param=name)
    url = item[keys[0]]
    if isinstance(url, dict) and isinstance(url.get("url"), str) and len(url) == 1:
        url = url["url"]  # the chat API's spelling
    if not isinstance(url, str) or not url:
        raise InvalidRequest(f"{name}.{keys[0]} must be a URL, got {kind_of(url)}", param=name)
    return Source(kind=allowed[keys[0]], field=name, uri=url)


def _condition(index: int, item: Any, form: bool) -> Source:
    """SGLang's condition object, the shape of the model card's own scripts."""
    where = f"conditions[{index}]"
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: expected an object, got {kind_of(item)}", param="conditions")
    for name in item:
        if name not in fields.CONDITION:
            raise fields.unknown(str(name), fields.CONDITION, where=where)
    value = {
        name: coerce(f"{where}.{name}", kind, item[name], form=form)
        for name, kind in fields.CONDITION.items()
        if item.get(name) is not None
    }
    kinds: dict[str, Kind] = {"image": "image", "video": "video", "video_audio": "video", "audio": "audio"}
    if value.get("type") not in kinds:
        raise InvalidRequest(
            f"{where}.type={value.get('type')!r} is unknown", hint="use one of " + ", ".join(kinds), param="conditions"
        )
    if not value.get("uri"):
        raise InvalidRequest(f"{where}.uri is missing", hint="give http(s)://, file:// or data:", param="conditions")
    role: Role = "reference"
    wanted = value.get("role", "keyframe" if "frame_index" in value else "reference")
    if wanted == "keyframe":
        role = _role_of_index(value.get("frame_index", 0), f"{where}.frame_index")
    elif wanted != "reference":
        raise InvalidRequest(
            f"{where}.role={wanted!r} is unknown", hint="use keyframe or reference", param="conditions"
        )
    elif "frame_index" in value:
        raise InvalidRequest(f"{where}: a reference has no frame_index", hint="use role keyframe", param="conditions")
    return Source(
        kind=kinds[value["type"]],
        field=where,
        uri=value["uri"],
        role=role,
        start_time_s=value.get("start_time_seconds", 0.0),
        require_sound=value["type"] == "video_audio",
    )


def _role_of_index(index: int, name: str = "frame_indices") -> Role:
    if index not in (0, -1):
        raise InvalidRequest(
            f"{name}={index} is not available", hint="use 0 for the first frame, -1 for the last", param=name
        )
    return "first" if index == 0 else "last"
