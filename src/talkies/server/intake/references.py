"""The reference fields of three APIs -> one ordered list of :class:`Source`, and the role each plays in a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import UploadFile

from talkies.errors import InvalidRequest, retold
from talkies.files.paths import own_name
from talkies.media.reference_kinds import kind_of_file, kind_of_head, kind_of_uri
from talkies.request import KEYFRAME_ROLES, LOCK_KINDS, Kind, Role, Task
from talkies.server.errors import FIELDS
from talkies.server.intake import fields
from talkies.server.intake.body import Body
from talkies.server.intake.coerce import coerce, kind_of, parse_json, shown

JSON_FIELDS: dict[str, Kind] = {"image_reference": "image", "video_reference": "video", "audio_reference": "audio"}
ANY_FIELDS = ("input_references", "input_reference", "reference_url")  # one file or URL of any kind, or several
URL_KEYS: dict[str, Kind] = {"image_url": "image", "video_url": "video", "audio_url": "audio"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One picture, video or sound as the client named it: an upload, or a URI.

    ``field`` is what errors point at, ``start_field`` and ``end_field`` those about its times; ``name`` is what its
    owner calls it."""

    kind: Kind
    field: str
    start_field: str = "start_time_seconds"
    end_field: str = "end_time_seconds"
    name: str = ""
    upload: UploadFile | None = None
    uri: str = ""
    role: Role = "reference"
    start_time_s: float = 0.0
    end_time_s: float | None = None
    require_sound: bool = False

    @property
    def is_lock(self) -> bool:
        """Whether it becomes a part of the clip itself."""
        return self.role in LOCK_KINDS


@contextmanager
def blamed_on(source: Source) -> Iterator[None]:
    """Errors inside name in ``param`` what the client wrote: the reference, or the start or role given to it."""
    try:
        yield
    except InvalidRequest as error:
        retold(error, FIELDS)
        if error.param == "start_time_seconds":
            error.param = source.start_field
        elif error.param == "end_time_seconds":
            error.param = source.end_field
        elif error.param == "conditions.role" and source.field.startswith("conditions["):
            error.param = f"{source.field}.role"
        else:
            error.param = source.field
        raise


def collect(body: Body) -> list[Source]:
    """Raises ``InvalidRequest`` for fields that exclude each other and for shapes that name no file."""
    values = body.values
    locks = _locks(body)
    given = [name for name in (*JSON_FIELDS, *ANY_FIELDS) if _present(values.get(name))]
    if _present(values.get("conditions")):
        if given or locks:
            raise _excludes("conditions", given[0] if given else locks[0].field)
        conditions = coerce("conditions", "list", values["conditions"], form=body.form)
        return [_condition(i, c, body.form) for i, c in enumerate(conditions)]
    for name in ANY_FIELDS:
        if name in given:
            clash = [other for other in given if other not in (name, "audio_reference")]
            if clash:
                raise _excludes(name, clash[0])
    sources: list[Source] = []
    for name in ANY_FIELDS:
        if name in given:
            # SGLang's reference_url is a picture's; a suffix or MIME type may say otherwise.
            fallback: Kind = "image" if name == "reference_url" else "video"
            sources += [_any(name, item, fallback) for item in _items(name, values[name])]
    for name in ANY_FIELDS[1:]:
        if name in given and len(sources) > 1:
            raise InvalidRequest(f"{name} takes one file, got {len(sources)}", hint="use input_references", param=name)
    for name, kind in JSON_FIELDS.items():
        if name in given:
            sources += [_url_object(name, item, kind) for item in _items(name, values[name])]
    return sources + locks


def lock_sound(sources: list[Source], audio_mode: str | None, *, field: str) -> list[Source]:
    """vLLM-Omni's ``audio_mode``: with ``lock_source`` the one sound given is the clip's own."""
    if audio_mode in (None, "native"):
        return sources
    if audio_mode != "lock_source":
        raise InvalidRequest(
            f"{field}={shown(audio_mode)} is unknown", hint="use native or lock_source", param="audio_mode"
        )
    sounds = [s for s in sources if s.kind == "audio" and not s.is_lock]
    if len(sounds) != 1 or any(s.role == "soundtrack" for s in sources):
        raise InvalidRequest(
            f"{field}=lock_source needs one sound that becomes the clip's own, got {len(sounds)}",
            hint="give one audio_reference, or say soundtrack",
            param="audio_mode",
        )
    return [replace(s, role="soundtrack") if s is sounds[0] else s for s in sources]


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


def assign_start_times(
    sources: list[Source], times: float | list[float] | None, *, field: str = "start_time_seconds"
) -> list[Source]:
    """One start per reference video, in order. ``field`` is where the client wrote them."""
    if times is None:
        return sources
    videos = [s for s in sources if s.kind == "video" and not s.is_lock]
    listed = times if isinstance(times, list) else [times]
    if len(listed) != len(videos):
        raise InvalidRequest(
            f"start_time_seconds has {len(listed)} values for {len(videos)} reference videos",
            hint="give one per video",
            param="start_time_seconds",
        )
    starts = iter(listed)
    return [replace(s, start_time_s=next(starts), start_field=field) if s in videos else s for s in sources]


def _locks(body: Body) -> list[Source]:
    """The fields ``soundtrack`` and ``footage``, each a file or a URL, with the part that is made anew."""
    sources: list[Source] = []
    for role, kind in LOCK_KINDS.items():
        value = body.values.get(role)
        names = {end: f"{role}_{end}_time_seconds" for end in ("start", "end")}
        times = {
            end: coerce(name, "number", body.values[name], form=body.form)
            for end, name in names.items()
            if _present(body.values.get(name))
        }
        if not _present(value):
            if times:
                raise InvalidRequest(
                    f"{names[next(iter(times))]} is a time in the {role}, and there is none",
                    hint=f"give the file as {role}",
                    param=names[next(iter(times))],
                )
            continue
        items = _items(role, value)
        if len(items) != 1:
            raise InvalidRequest(f"{role} takes one file, got {len(items)}", hint="give one", param=role)
        item = items[0]
        if isinstance(item, UploadFile):
            source = Source(kind=kind, field=role, upload=item, name=own_name(item.filename or ""))
        else:
            source = _url_object(role, item, kind)
        sources.append(
            replace(
                source,
                role=role,
                start_field=names["start"],
                end_field=names["end"],
                start_time_s=times.get("start", 0.0),
                end_time_s=times.get("end"),
            )
        )
    return sources


def _present(value: Any) -> bool:
    return value is not None and value not in ("", [])


def _excludes(name: str, other: str) -> InvalidRequest:
    return InvalidRequest(f"{name} and {other} exclude each other", hint="use one way to give references", param=other)


def _items(name: str, value: Any) -> list[Any]:
    """One reference or many; a form carries objects as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = parse_json(name, value)
    return value if isinstance(value, list) else [value]


def _any(name: str, item: Any, fallback: Kind) -> Source:
    if isinstance(item, UploadFile):
        # A client that is handed bytes names them "upload" and knows no type.
        kind = kind_of_file(item.content_type, item.filename) or kind_of_head(item.file.read(12)) or fallback
        return Source(kind=kind, field=name, upload=item, name=own_name(item.filename or ""))
    if isinstance(item, str):
        if item.lstrip().startswith("{"):
            return _url_object(name, parse_json(name, item), None)
        return Source(kind=kind_of_uri(item) or fallback, field=name, uri=item, name=own_name(item))
    return _url_object(name, item, None)


def _url_object(name: str, item: Any, kind: Kind | None) -> Source:
    if isinstance(item, str) and kind is not None:
        return Source(kind=kind, field=name, uri=item, name=own_name(item))
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
    return Source(kind=allowed[keys[0]], field=name, uri=url, name=own_name(url))


def _condition(index: int, item: Any, form: bool) -> Source:
    """SGLang's condition object, the shape of the model card's own scripts."""
    where = f"conditions[{index}]"
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: expected an object, got {kind_of(item)}", param=where)
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
            f"{where}.type={shown(value['type'])} is unknown" if "type" in value else f"{where}.type is missing",
            hint="use one of " + ", ".join(kinds),
            param=f"{where}.type",
        )
    if not value.get("uri"):
        raise InvalidRequest(f"{where}.uri is missing", hint="give http(s)://, file:// or data:", param=f"{where}.uri")
    role: Role = "reference"
    wanted = value.get("role", "keyframe" if "frame_index" in value else "reference")
    if wanted == "keyframe":
        role = _role_of_index(value.get("frame_index", 0), f"{where}.frame_index")
    elif wanted in LOCK_KINDS:
        role = wanted
    elif wanted != "reference":
        raise InvalidRequest(
            f"{where}.role={shown(wanted)} is unknown",
            hint="use keyframe or reference, soundtrack or footage",
            param=f"{where}.role",
        )
    if "frame_index" in value and role not in KEYFRAME_ROLES:
        name = f"{where}.frame_index"
        raise InvalidRequest(f"{where}: a {role} has no frame_index", hint="use role keyframe", param=name)
    return Source(
        kind=kinds[value["type"]],
        field=where,
        start_field=f"{where}.start_time_seconds",
        end_field=f"{where}.end_time_seconds",
        uri=value["uri"],
        name=own_name(value["uri"]),
        role=role,
        start_time_s=value.get("start_time_seconds", 0.0),
        end_time_s=value.get("end_time_seconds"),
        require_sound=value["type"] == "video_audio",
    )


def _role_of_index(index: int, name: str = "frame_indices") -> Role:
    if index not in (0, -1):
        raise InvalidRequest(
            f"{name}={index} is not available", hint="use 0 for the first frame, -1 for the last", param=name
        )
    return "first" if index == 0 else "last"
