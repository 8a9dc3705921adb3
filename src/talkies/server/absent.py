"""Endpoints of OpenAI, vLLM-Omni and SGLang that are not here: an answer that says so beats a 404 that looks like a
wrong address. Each is a 501 that no client sends again."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from talkies.server.errors import NotImplementedHere


def _refusal(path: str, reason: str) -> Any:
    async def refuse(request: Request) -> Response:
        request.app.state.keys.owner(request)
        raise NotImplementedHere(f"{path} is not available: {reason}", param="path")

    return refuse


_ADAPTERS = "the operator loads adapters; GET /v1/models lists them, and a request chooses (adapters)"
_ABSENT = {
    "/v1/videos/edits": "the model does not edit; POST /v1/videos with the clip as a reference (task ref2va)",
    "/v1/videos/extensions": "the model does not extend; POST /v1/videos with the last frame as input_reference",
    "/v1/videos/characters": "POST /v1/videos with pictures of the character as references (task ref2va)",
    "/v1/videos/characters/{character_id}": "characters are not kept",
    "/v1/realtime/video": "use GET /v1/videos/{id}/events and /content",
    "/v1/omni/sleep": "the model stays loaded",
    "/v1/omni/wakeup": "the model stays loaded",
    "/v1/set_lora": _ADAPTERS,
    "/v1/merge_lora_weights": _ADAPTERS,
    "/v1/unmerge_lora_weights": _ADAPTERS,
    "/v1/list_loras": _ADAPTERS,
    "/start_profile": "no profiler is configured",
    "/stop_profile": "no profiler is configured",
}
router = APIRouter()
for _path, _reason in _ABSENT.items():
    router.add_api_route(_path, _refusal(_path, _reason), methods=["GET", "POST"], include_in_schema=False)
