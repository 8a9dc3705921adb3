"""What a clip's file says about how it was made: enough to make it again, and to see what every default became."""

from __future__ import annotations

import hashlib
from typing import Any

from talkies import __version__
from talkies.engine.load.build import Components
from talkies.engine.pipeline.state import RequestState
from talkies.engine.port.facts import Facts

OMITTED = "omitted:"  # instead of an upload's address; such a clip cannot be repeated from its file alone


def clip_metadata(
    components: Components, state: RequestState, facts: Facts, *, keep_paths: bool = False
) -> dict[str, Any]:
    """``request`` repeats the clip (one output, its own seed, every default filled in); ``effective`` explains it.

    ``keep_paths`` is for a user's own machine: a server's folders are nobody's business, and a data: URL is the
    picture itself. What is left out stays as a hash.
    """
    g = state.geometry
    request = state.request.replace(seed=state.seed, num_outputs=1).to_dict()
    for condition in request["conditions"]:
        condition["uri"] = _public_uri(condition["uri"], keep_paths)
    request["target"] = {"width": g.width, "height": g.height, "num_frames": g.num_frames}
    if request["sigmas"] is None:
        request["num_sigmas"] = state.schedule.num_sigmas
    request["video_shift"] = state.request.video_shift or components.schedule.video_shift
    request["audio_shift"] = state.request.audio_shift or components.schedule.audio_shift
    return {
        "talkies": __version__,
        "request": request,
        "effective": facts.effective(),
        "model": {"name": components.config.model_name, "hash": components.model_hash},
    }


def _public_uri(uri: str, keep_paths: bool) -> str:
    remote = uri.startswith(("http://", "https://"))
    if remote or (keep_paths and not uri.startswith("data:")):
        return uri
    return OMITTED + hashlib.sha256(uri.encode()).hexdigest()[:16]
