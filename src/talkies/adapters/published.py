"""Few-step releases whose files do not state what they were distilled for: known by published name or identity.

What stands here is documented elsewhere: docs/adapters.md says where. A renamed file is not recognised; a sidecar says
for it what its name no longer does. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# LightX2V Turbo: the name is the only place where steps, shifts and the task are recorded.
_TURBO = re.compile(
    r"minimax_h3_(?P<task>fl2v|ref2v)_turbo_(?P<steps>[1-9]\d?)step_v\d+\.\d+(?P<res>_768p)?(?:_bf16)?\.safetensors"
)
_TURBO_TASKS = {"fl2v": ["t2va", "fl2va"], "ref2v": ["ref2va"]}
# The reference script multiplies by alpha / rank with an alpha of 8 where the file states none.
_TURBO_ALPHA = 8.0
_FASTH3 = re.compile(r"fastvideo/.*fasth3.*\b4-step\b.*", re.IGNORECASE)


def known_release(name: str, metadata: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(what its publisher documents, notes for the log) of a file called ``name``; both empty for all others."""
    turbo = _TURBO.fullmatch(name)
    if turbo is not None:
        # Of the files trained at 768p only those for text and keyframes went to a shift of 6.
        shift = 6.0 if turbo["res"] and turbo["task"] == "fl2v" else 12.0
        said = {
            "tasks": _TURBO_TASKS[turbo["task"]],
            "num_forwards": int(turbo["steps"]),
            "flow_shift": shift,
            "audio_flow_shift": 3.0,
            "alpha": _TURBO_ALPHA,
        }
        states = "alpha" in metadata
        note = "" if states else f"; it states no alpha: {_TURBO_ALPHA:g}, as its publisher's script takes"
        return said, (f"{name} is known by its name: {turbo['steps']} forwards, shifts {shift:g} and 3{note}",)
    if metadata.get("format") == "fastvideo-lora-v2" and _FASTH3.fullmatch(metadata.get("finetuned_model", "")):
        said = {"tasks": ["t2va"], "dmd_denoising_steps": [999, 749, 500, 250], "flow_shift": 12, "audio_flow_shift": 3}
        return said, (f"{name} is FastH3 by its metadata: 4 forwards, shifts 12 and 3",)
    return {}, ()
