"""The machine-readable contract at /openapi.json. Bodies are read by :mod:`talkies.server.intake.body`, so FastAPI
cannot derive their schema; it is built here from the same tables that the reader uses."""

from __future__ import annotations

from typing import Any

from talkies.quality import TIERS
from talkies.request import LOCK_KINDS, MAX_OUTPUTS, QUALITY_DEFAULT_WORDS, Task
from talkies.server.errors import phrase
from talkies.server.intake import fields
from talkies.server.jobs.view import ErrorEnvelope
from talkies.values import INT64_MAX, INT64_MIN, MAX_ADAPTERS, MAX_SIGMAS, MAX_STRENGTH, MIN_SIGMAS

_KINDS = ("image", "video", "audio")
# Fields that take one kind of file -> which.
_ONE_KIND: dict[str, str] = {f"{kind}_reference": kind for kind in _KINDS} | {
    str(role): str(kind) for role, kind in LOCK_KINDS.items()
}
_PLAIN: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "ratio": {"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]},
    "integer": {"type": "integer"},
    "number": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?$"}]},
    "boolean": {"type": "boolean"},
    "integer_or_list": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
    "number_or_list": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
    "list": {"type": "array"},
    "object": {"type": "object"},
    "adapter": {"type": "object", "description": "vLLM-Omni's: name and scale of one adapter; see adapters."},
}
_SPECIAL: dict[str, dict[str, Any]] = {
    "prompt": {"type": "string", "minLength": 1},
    "task": {"type": "string", "enum": [str(task) for task in Task]},
    "size": {"type": "string", "pattern": r"^([0-9]{1,5}x[0-9]{1,5})?$", "examples": ["112x64"]},
    "width": {"type": "integer", "minimum": 1},
    "height": {"type": "integer", "minimum": 1},
    "num_frames": {"type": "integer", "minimum": 1},
    "num_outputs_per_prompt": {"type": "integer", "minimum": 1, "maximum": MAX_OUTPUTS},
    "n": {"type": "integer", "minimum": 1, "maximum": MAX_OUTPUTS},
    "num_inference_steps": {"type": "integer", "minimum": MIN_SIGMAS, "maximum": MAX_SIGMAS},
    "num_forwards": {"type": "integer", "minimum": MIN_SIGMAS - 1, "maximum": MAX_SIGMAS - 1},
    "sigmas": {"type": "array", "items": {"type": "number"}, "minItems": MIN_SIGMAS, "maxItems": MAX_SIGMAS},
    "seed": {
        "anyOf": [
            {"type": "integer", "minimum": INT64_MIN, "maximum": INT64_MAX},
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": MAX_OUTPUTS},
        ]
    },
    "quality": {"type": "string", "enum": ["lossless", *TIERS, *QUALITY_DEFAULT_WORDS]},
    "fit": {"type": "string", "enum": ["auto", "stretch", "crop", "pad", "adapt", "released"]},
    "priority": {"type": "integer", "minimum": -100, "maximum": 100},
    "webhook_url": {"type": "string", "format": "uri", "maxLength": 2048},
    "audio_mode": {"type": "string", "enum": ["native", "lock_source"]},
}


def _object(table: dict[str, str]) -> dict[str, Any]:
    properties = {name: {"anyOf": [_PLAIN[kind], {"type": "null"}]} for name, kind in table.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _condition() -> dict[str, Any]:
    properties = {name: _PLAIN[kind] for name, kind in fields.CONDITION.items()}
    properties["type"] = {"type": "string", "enum": ["image", "video", "video_audio", "audio"]}
    properties["role"] = {"type": "string", "enum": ["keyframe", "reference", *LOCK_KINDS]}
    return {"type": "object", "properties": properties, "required": ["type", "uri"], "additionalProperties": False}


def _adapter() -> dict[str, Any]:
    strength = {"type": "number", "minimum": -MAX_STRENGTH, "maximum": MAX_STRENGTH, "default": 1}
    properties = {"name": _PLAIN["text"], "strength": strength}
    whole = {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
    return {"anyOf": [whole, {"type": "string", "minLength": 1}]}


def _reference(name: str) -> dict[str, Any]:
    keys = [f"{kind}_url" for kind in ([_ONE_KIND[name]] if name in _ONE_KIND else _KINDS)]
    one: dict[str, Any] = {
        "anyOf": [
            {"type": "string", "minLength": 1},
            *(
                {
                    "type": "object",
                    "properties": {k: {"type": "string"}},
                    "required": [k],
                    "additionalProperties": False,
                }
                for k in keys
            ),
        ]
    }
    return (
        one
        if name in ("input_reference", "reference_url", *LOCK_KINDS)
        else {"anyOf": [one, {"type": "array", "items": one}]}
    )


def _extra_params() -> dict[str, Any]:
    properties = {
        name: _SPECIAL.get(flat) or (_object(fields.TARGET) if flat == "target" else _PLAIN[fields.TOP_LEVEL[flat]])
        for name, flat in fields.EXTRA_PARAMS.items()
    }
    properties.update({name: _PLAIN[kind] for name, (kind, _) in fields.NO_EFFECT.items()})
    as_object = {"type": "object", "properties": properties}
    return {"anyOf": [as_object, {"type": "string", "contentMediaType": "application/json"}]}


def _create_schema() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, kind in fields.TOP_LEVEL.items():
        if name in _SPECIAL:
            schema = _SPECIAL[name]
        elif kind == "reference":
            schema = _reference(name)
        elif name == "extra_params":
            schema = _extra_params()
        elif name == "target":
            schema = _object(fields.TARGET)
        elif name == "video_params":
            schema = _object(fields.VIDEO_PARAMS)
        elif name == "adapters":
            schema = {"type": "array", "items": _adapter(), "maxItems": MAX_ADAPTERS}
        elif name == "conditions":
            schema = {"type": "array", "items": _condition()}
        else:
            schema = _PLAIN[kind]
        properties[name] = schema if name == "prompt" else {"anyOf": [schema, {"type": "null"}]}
    for name, (kind, reason) in fields.NO_EFFECT.items():
        properties[name] = {"anyOf": [_PLAIN[kind], {"type": "null"}], "description": f"No effect: {reason}."}
    return {"type": "object", "properties": properties, "required": ["prompt"]}


def _form_schema() -> dict[str, Any]:
    """What a form can carry: text, and files. Nested values go as JSON text or as bracket names."""
    properties: dict[str, Any] = {}
    for name, kind in {**fields.TOP_LEVEL, **{n: k for n, (k, _) in fields.NO_EFFECT.items()}}.items():
        if name in ("input_reference", "input_references", *LOCK_KINDS):
            file = {"type": "string", "format": "binary"}
            properties[name] = {"type": "array", "items": file} if name == "input_references" else file
        elif kind in ("reference", "object", "adapter", "list", "integer_or_list", "number_or_list"):
            properties[name] = {"type": "string", "contentMediaType": "application/json"}
        else:
            properties[name] = _SPECIAL.get(name, _PLAIN[kind])
    return {"type": "object", "properties": properties, "required": ["prompt"]}


CREATE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": _create_schema()},
        "multipart/form-data": {"schema": _form_schema()},
        "application/x-www-form-urlencoded": {"schema": _form_schema()},
    },
}

CREATE_LINKS: dict[str, Any] = {
    name: {"operationId": operation, "parameters": {"video_id": "$response.body#/id"}}
    for name, operation in (("GetVideo", "get_video"), ("GetContent", "get_content"), ("DeleteVideo", "delete_video"))
}


def responses(*statuses: int, links: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """The error shape for each status; ``links`` go to the 200."""
    out: dict[int | str, dict[str, Any]] = {s: {"model": ErrorEnvelope, "description": phrase(s)} for s in statuses}
    if links:
        out[200] = {"links": links}
    return out


def without_422(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI documents a 422 for every parameter; here such a request is a 400."""
    for operations in schema.get("paths", {}).values():
        for operation in operations.values():
            answers = operation.get("responses", {})
            described = answers.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if "HTTPValidationError" in str(described.get("$ref", "")):
                del answers["422"]
                answers.setdefault("400", {"description": phrase(400)})
    for name in ("HTTPValidationError", "ValidationError"):
        schema.get("components", {}).get("schemas", {}).pop(name, None)
    return schema
