"""What the command line calls the arguments that errors and notes name: flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from typer.models import OptionInfo

# Of the request, where a flag is not the argument's name with dashes.
REQUEST: Mapping[str, str] = {
    "num_sigmas": "--steps",
    "num_outputs": "--outputs",
    "num_frames": "--frames",
    "video_shift": "--flow-shift",
    "audio_shift": "--audio-flow-shift",
}


def flag_names(command: Callable[..., Any] | None = None) -> dict[str, str]:
    """Argument -> flag: of the engine's options, of a request's fields, and of ``command``'s own options."""
    from talkies.engine.options import OPTIONS

    names = {name: option.flag for name, option in OPTIONS.items()} | dict(REQUEST)
    for one in () if command is None else inspect.signature(command).parameters.values():
        if isinstance(one.default, OptionInfo):
            words = one.default.param_decls or ()
            names[one.name] = next((word for word in words if word.startswith("--")), "--" + one.name.replace("_", "-"))
    return names
