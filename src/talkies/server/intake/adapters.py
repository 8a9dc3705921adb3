"""Which of the operator's adapters a request wants: ``adapters``, and vLLM-Omni's ``lora``.

A request names adapters and never a file: a path in ``lora`` is not opened.
"""

from __future__ import annotations

from typing import Any

from talkies.errors import InvalidRequest
from talkies.few_steps import AdapterFacts, ladder_of
from talkies.request import AdapterChoice, VideoRequest
from talkies.server.intake.coerce import coerce, kind_of, parse_json
from talkies.server.intake.fields import unknown

_ADAPTER = {"name": "text", "strength": "number"}
# vLLM-Omni's spellings -> what they say. Its numbers of adapters mean nothing here.
_LORA = {
    **dict.fromkeys(("name", "lora_name", "adapter"), "name"),
    **dict.fromkeys(("scale", "lora_scale"), "strength"),
    **dict.fromkeys(("path", "local_path", "lora_path", "lora_local_path"), "path"),
    **dict.fromkeys(("int_id", "lora_int_id"), "id"),
}


def adapters_of(
    flat: dict[str, Any], names: dict[str, str], warnings: list[str], *, form: bool
) -> tuple[AdapterChoice, ...] | None:
    """``None`` where the request says nothing of adapters. Raises ``InvalidRequest`` with ``param``."""
    lora, where = flat.get("lora"), names.get("lora", "lora")
    if lora is None:
        listed = flat.get("adapters")
        field = names.get("adapters", "adapters")
        return None if listed is None else tuple(_choice(f"{field}[{i}]", one, form) for i, one in enumerate(listed))
    if flat.get("adapters") is not None:
        raise InvalidRequest(f"adapters and {where} are both given", hint="give one of them", param=where)
    names["adapters"] = where
    given = _parsed(where, lora)
    several = given if isinstance(given, list) else [given]
    return tuple(_of_lora(where, one, warnings, form) for one in several)


def counted(request: VideoRequest, known: tuple[AdapterFacts, ...], warnings: list[str]) -> VideoRequest:
    """``num_inference_steps`` counts sigma points. For an adapter with a ladder of its own vLLM-Omni counts forwards,
    and since no other number is possible there, either is taken. Raises as :func:`talkies.few_steps.in_use`."""
    found = ladder_of(request, known)
    if found is None or found[1].base is None or request.num_sigmas != found[1].num_forwards:
        return request
    name, ladder = found
    warnings.append(
        f"num_inference_steps={ladder.num_forwards} is read as {ladder.num_forwards} forwards, which adapter {name} "
        "was distilled for"
    )
    return request.replace(num_sigmas=ladder.num_sigmas)


def _choice(where: str, value: Any, form: bool) -> AdapterChoice:
    """``"film"`` or ``{"name": "film", "strength": 0.8}``."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        value = {"name": value}
    return AdapterChoice(**_checked(where, _parsed(where, value), form))


def _checked(where: str, value: Any, form: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{where}: expected a name or an object, got {kind_of(value)}",
            hint='for example {"name": "film", "strength": 0.8}',
            param=where,
        )
    out: dict[str, Any] = {}
    for key, one in value.items():
        if key not in _ADAPTER:
            raise unknown(str(key), _ADAPTER, where=where)
        if one is not None:
            out[key] = coerce(f"{where}.{key}", _ADAPTER[key], one, form=form)
    if "name" not in out:
        raise InvalidRequest(f"{where} has no name", hint="see GET /v1/models for the names", param=where)
    return out


def _of_lora(where: str, value: Any, warnings: list[str], form: bool) -> AdapterChoice:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{where}: expected an object, got {kind_of(value)}", hint='for example {"name": "film"}', param=where
        )
    said: dict[str, Any] = {}
    for key, one in value.items():
        if key not in _LORA:
            raise unknown(str(key), _LORA, where=where)
        if one is not None:
            said[_LORA[key]] = one
    if said.pop("path", None) is not None:
        warnings.append(f"{where}.path is ignored: adapters are the operator's, and known by their names")
    said.pop("id", None)
    return AdapterChoice(**_checked(where, said, form))


def _parsed(where: str, value: Any) -> Any:
    return parse_json(where, value) if isinstance(value, str) else value
