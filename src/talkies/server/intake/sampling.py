"""How a clip is drawn: seed, steps, shifts, and how many of it. Fields that say the same thing must agree."""

from __future__ import annotations

from typing import Any

from talkies.errors import InvalidRequest
from talkies.server.intake.coerce import coerce
from talkies.values import MAX_SIGMAS, MIN_SIGMAS, check_integer

# The API's name -> the attribute of VideoRequest.
_PLAIN = (
    ("flow_shift", "video_shift"),
    ("audio_flow_shift", "audio_shift"),
    ("quality", "quality"),
    ("fit", "fit"),
    ("audio", "audio"),
    ("record_inputs", "record_inputs"),
    ("sigmas", "sigmas"),
    ("num_inference_steps", "num_sigmas"),
)


def sampling(flat: dict[str, Any], names: dict[str, str], *, form: bool) -> dict[str, Any]:
    """Arguments of ``VideoRequest`` from checked fields. ``names`` learns where the client wrote what it became.

    Raises ``InvalidRequest`` with ``param``.
    """
    out: dict[str, Any] = {attribute: flat[name] for name, attribute in _PLAIN if name in flat}
    forwards = flat.get("num_forwards")
    if forwards is not None:
        if out.get("num_sigmas", forwards + 1) != forwards + 1:
            raise InvalidRequest(
                f"num_forwards={forwards} is num_inference_steps={forwards + 1}, got {out['num_sigmas']}",
                hint="give one of them",
                param="num_forwards",
            )
        check_integer("num_forwards", forwards, MIN_SIGMAS - 1, MAX_SIGMAS - 1)
        out["num_sigmas"] = forwards + 1
        names["num_inference_steps"] = names.get("num_forwards", "num_forwards")
    if "sigmas" in out:
        out["sigmas"] = tuple(coerce("sigmas", "number", value, form=form) for value in out["sigmas"])
    out["num_outputs"] = _num_outputs(flat, names)
    if "seed" in flat:
        out["seed"] = _first_seed(flat["seed"], out["num_outputs"])
    return out


def _num_outputs(flat: dict[str, Any], names: dict[str, str]) -> int:
    n, full = flat.get("n"), flat.get("num_outputs_per_prompt")
    if n is not None and full is not None and n != full:
        raise InvalidRequest(f"n={n} and num_outputs_per_prompt={full} differ", hint="give one of them", param="n")
    if full is None and n is not None:
        names["num_outputs_per_prompt"] = "n"
    return next((value for value in (full, n) if value is not None), 1)


def _first_seed(seed: int | list[int], num_outputs: int) -> int:
    if isinstance(seed, int):
        return seed
    if not seed or len(seed) != num_outputs or seed != list(range(seed[0], seed[0] + len(seed))):
        raise InvalidRequest(
            "a list of seeds must count up by one, one per output",
            hint="give the first seed: output i uses seed + i",
            param="seed",
        )
    return seed[0]
