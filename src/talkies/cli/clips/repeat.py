"""``--from CLIP``: the request in a clip's metadata, with its references found again beside the clip."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talkies.errors import InvalidRequest
from talkies.files.paths import own_name
from talkies.request import Condition, Task, VideoRequest

if TYPE_CHECKING:
    from talkies.few_steps import AdapterFacts

AGAIN = "give the pictures again with --first-frame, --last-frame, --reference, --soundtrack or --footage"


def repeated(path: Path, *, with_references: bool = True) -> VideoRequest:
    """The request in ``path``. References are files beside it, or in the current folder, of the name and content that
    the clip holds; ``with_references=False`` leaves them out, for they are given anew.

    Raises ``InvalidRequest`` when the file has no request, or a reference is not there or is another one.
    """
    from talkies.media.read.probe import probe

    stored = probe(os.fspath(path)).request
    if not isinstance(stored.get("request"), dict):
        raise InvalidRequest(
            f"{path} holds no request of talkies", hint="only clips written by talkies can be repeated", param="--from"
        )
    request = VideoRequest.from_dict({**stored["request"], **({} if with_references else {"conditions": []})})
    if request.conditions:
        inputs = stored.get("inputs") or [{}] * len(request.conditions)
        conditions = tuple(_found(c, i, path) for c, i in zip(request.conditions, inputs, strict=False))
        request = request.replace(conditions=conditions)
    if not request.adapters:
        request = request.replace(adapters=None)  # it had none: what this line turns on is new
    return request if with_references and request.task != Task.T2VA else request.replace(task=None)


def check_adapters(path: Path, request: VideoRequest, known: Sequence[AdapterFacts]) -> None:
    """Raises ``InvalidRequest`` where an adapter of ``request`` is not the file that the clip in ``path`` was made
    with, or is not loaded."""
    from talkies.media.read.probe import probe

    if not request.adapters:
        return
    had = {str(one.get("name")): one.get("sha256") for one in probe(os.fspath(path)).request.get("adapters") or ()}
    loaded = {facts.name: facts.sha256 for facts in known}
    for name in (choice.name for choice in request.adapters or ()):
        if name in had and name not in loaded:
            raise InvalidRequest(
                f"{path} was made with the adapter {name} (SHA-256 {had[name]})",
                hint=f"load it: --adapter {name}=PATH, or leave it out: --no-adapters",
                param="adapters",
            )
        if name in had and loaded[name] != had[name]:
            raise InvalidRequest(
                f"adapter {name} is not the file that {path} was made with: its SHA-256 is not {had[name]}",
                hint="give that file, or choose anew with --use-adapter under another name",
                param="adapters",
            )


def _found(condition: Condition, known: dict[str, Any], clip: Path) -> Condition:
    from talkies.engine.pipeline.metadata import OMITTED

    if condition.uri.startswith(("http://", "https://")):
        return condition
    # A clip may be a stranger's: of what it calls its files, no folder counts.
    name = own_name(str(known.get("name") or "")) if known else condition.uri
    if not name or (condition.uri.startswith(OMITTED) and not known.get("sha256")):
        raise InvalidRequest(
            f"{clip} was made from references that the file does not hold",
            hint=f"{AGAIN}, and the prompt",
            param="--from",
        )
    places = [clip.parent / name, Path(name)]
    there = [place for place in places if place.is_file()]
    if not there:
        raise InvalidRequest(
            f"{name}, which {clip} was made from, is not beside it", hint=f"put it there, or {AGAIN}", param="--from"
        )
    wanted = known.get("sha256")
    same = [place for place in there if wanted is None or _sha256(place) == wanted]
    if not same:
        raise InvalidRequest(
            f"{there[0]} is not the file that {clip} was made from: its content differs", hint=AGAIN, param="--from"
        )
    return replace(condition, uri=os.fspath(same[0]))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
