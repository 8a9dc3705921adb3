"""What a clip's file says about how it was made: enough to make it again, and to see what every default became."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlsplit

from talkies import __version__
from talkies.engine.load.build import Components
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts
from talkies.few_steps import followed, in_use
from talkies.files.location import hash_with
from talkies.files.paths import local_path, own_name, public_name
from talkies.media.fetch.uri import FetchPolicy, fetch
from talkies.request import Condition

OMITTED = "omitted:"  # instead of a reference that the file does not name; such a clip needs it given again
CHUNK_BYTES = 1 << 20


def clip_metadata(components: Components, state: RequestState, facts: Facts) -> dict[str, Any]:
    """``request`` repeats the clip (one output, its own seed, every default filled in); ``effective`` explains it;
    ``inputs`` are name and SHA-256 of each reference, ``adapters`` those that were in the weights.

    No folder of anybody's machine, no upload and no key in a URL is written: of a file its name, of a URL what stands
    before its query, of a data: URL nothing but the hash. ``record_inputs=False`` leaves all of it out.
    """
    g = state.geometry
    request = state.request.replace(seed=state.seed, num_outputs=1).to_dict()
    recorded = request.pop("record_inputs")
    for entry, condition in zip(request["conditions"], state.request.conditions, strict=True):
        entry["uri"] = _public_uri(condition) if recorded else f"{OMITTED}on request"
        del entry["name"]
    request["target"] = {"width": g.width, "height": g.height, "num_frames": g.num_frames}
    known = components.limits.adapters
    _, _, request["video_shift"], request["audio_shift"] = followed(state.request, components.schedule, known)
    if request["sigmas"] is None:
        request["num_sigmas"] = state.schedule.num_sigmas
    used = in_use(state.request, known)
    request["adapters"] = [{"name": one.facts.name, "strength": one.strength} for one in used]  # repeated, it has these
    adapters = [{"name": one.facts.name, "sha256": one.facts.sha256, "strength": one.strength} for one in used]
    inputs = [_input(condition) for condition in state.request.conditions] if recorded else []
    return {
        "talkies": __version__,
        "request": request,
        **({"inputs": inputs} if inputs else {}),
        "effective": facts.effective(),
        "model": {
            "name": public_name(components.config.model_name),
            "hash": hash_with(components.checkpoint_hash, [(one.facts.sha256, one.strength) for one in used]),
        },
        **({"adapters": adapters} if adapters else {}),
    }


def _public_uri(condition: Condition) -> str:
    uri = condition.uri
    if uri.startswith(("http://", "https://")):
        parts = urlsplit(uri)
        # A query may be a signature, and without it the URL may be another file: then it is no address to fetch.
        return uri if not parts.query and "@" not in parts.netloc else f"{OMITTED}{own_name(uri)}"
    return _name(condition) or f"{OMITTED}data"


def _name(condition: Condition) -> str:
    return condition.name or own_name(local_path(condition.uri))


def _input(condition: Condition) -> dict[str, Any]:
    return {
        "kind": condition.kind,
        "role": condition.role,
        "name": _name(condition),
        "sha256": _sha256(condition),
    }


def _sha256(condition: Condition) -> str | None:
    """Of the file's content; ``None`` for what was fetched, whose bytes are gone by now, and where the file is gone."""
    if condition.uri[:5].lower() in ("http:", "https"):
        return None
    if condition.uri[:5].lower() == "data:":
        data = fetch(condition.uri, FetchPolicy(), kind=condition.kind, max_bytes=len(condition.uri))
        return hashlib.sha256(data).hexdigest()
    digest = hashlib.sha256()
    try:
        with open(local_path(condition.uri), "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()
