"""What a line of ``talkies generate`` says of one clip, and the request that it becomes.

The same names are flags of the command and keys of a line of ``--prompts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from talkies.cli.clips.lock_flags import lock
from talkies.errors import InvalidRequest
from talkies.media.reference_kinds import kind_of_uri
from talkies.request import AdapterChoice, Condition, Kind, Role, Target, VideoRequest
from talkies.values import MAX_SIGMAS, MIN_SIGMAS, parse_size

# Of these a line of a file replaces all that the command line said, since they say one thing in several ways.
TOGETHER = (
    ("steps", "forwards", "sigmas"),
    ("seconds", "frames"),
    ("size", "aspect"),
    ("use_adapter", "no_adapters"),
)


@dataclass(frozen=True, kw_only=True)
class ClipFlags:
    """Values as typed; what nobody said is None, empty or False."""

    prompt: str | None = None
    seed: int | None = None
    seconds: float | None = None
    frames: int | None = None
    size: str | None = None
    aspect: str | None = None
    steps: int | None = None
    forwards: int | None = None
    sigmas: str | None = None
    flow_shift: float | None = None
    audio_flow_shift: float | None = None
    quality: str | None = None
    task: str | None = None
    outputs: int | None = None
    no_audio: bool = False
    no_record_inputs: bool = False
    use_adapter: tuple[str, ...] = ()
    no_adapters: bool = False
    first_frame: str | None = None
    last_frame: str | None = None
    reference: tuple[str, ...] = ()
    soundtrack: str | None = None
    footage: str | None = None
    redo_sound: str | None = None
    redo_picture: str | None = None
    fit: str | None = None

    @property
    def names_media(self) -> bool:
        return bool(self.first_frame or self.last_frame or self.reference or self.soundtrack or self.footage)

    def having(self, said: Mapping[str, Any]) -> ClipFlags:
        """With what a line of a file says, of JSON's types. Raises ``InvalidRequest`` for what is no key or value."""
        values: dict[str, Any] = {}
        for key, value in said.items():
            name = key.replace("-", "_")
            if name not in _TYPES:
                raise InvalidRequest(f"{key!r} is not known", hint="keys are " + ", ".join(_TYPES), param=key)
            values[name] = _of_json(key, value, _TYPES[name])
        for group in TOGETHER:
            if any(name in values for name in group):
                values = {name: _DEFAULTS[name] for name in group} | values
        return replace(self, **values)

    def request(self, base: VideoRequest | None = None) -> VideoRequest:
        """The request, or ``base`` with what is said here. Raises ``InvalidRequest``."""
        if self.steps is not None and self.forwards is not None and self.steps != self.forwards + 1:
            raise InvalidRequest(
                f"--steps {self.steps} are {self.steps - 1} forwards, but --forwards says {self.forwards}",
                hint="give one of them",
                param="steps",
            )
        if self.forwards is not None and not MIN_SIGMAS <= self.forwards + 1 <= MAX_SIGMAS:
            raise InvalidRequest(
                f"--forwards {self.forwards} is outside {MIN_SIGMAS - 1}..{MAX_SIGMAS - 1}",
                hint="choose a value inside",
            )
        changes: dict[str, Any] = {
            "prompt": self.prompt,
            "seed": self.seed,
            "num_sigmas": self.forwards + 1 if self.forwards is not None else self.steps,
            "sigmas": _ladder(self.sigmas),
            "video_shift": self.flow_shift,
            "audio_shift": self.audio_flow_shift,
            "task": self.task,
            "fit": self.fit,
            "quality": self.quality,
            "num_outputs": self.outputs,
            "audio": False if self.no_audio else None,
            "record_inputs": False if self.no_record_inputs else None,
            "adapters": _adapters(self.use_adapter, self.no_adapters),
            "conditions": self._conditions() or None,
            "target": self._target(base.target if base is not None else Target()),
        }
        changes = {name: value for name, value in changes.items() if value is not None}
        if "sigmas" in changes:  # each stands instead of the other that a repeated clip had
            changes.setdefault("num_sigmas", None)
        elif "num_sigmas" in changes:
            changes["sigmas"] = None
        if base is not None:
            return base.replace(**changes)
        if "prompt" not in changes:
            raise InvalidRequest(
                "prompt is missing", hint="talkies generate PROMPT, --prompts FILE, or --from CLIP.mp4", param="prompt"
            )
        return VideoRequest(**changes)

    def _conditions(self) -> tuple[Condition, ...]:
        keyframes: dict[Role, str | None] = {"first": self.first_frame, "last": self.last_frame}
        conditions = [Condition(kind="image", uri=uri, role=role) for role, uri in keyframes.items() if uri is not None]
        conditions += [Condition(kind=_kind(uri), uri=uri) for uri in self.reference]
        conditions += lock("soundtrack", self.soundtrack, "--redo-sound", self.redo_sound)
        conditions += lock("footage", self.footage, "--redo-picture", self.redo_picture)
        return tuple(conditions)

    def _target(self, given: Target) -> Target | None:
        """``given`` with the canvas, the length or both replaced; ``None`` if neither is."""
        changes: dict[str, Any] = {}
        if self.size is not None or self.aspect is not None:
            width, height = parse_size(self.size) if self.size is not None else (None, None)
            changes |= {"width": width, "height": height, "aspect": self.aspect}
        if self.seconds is not None or self.frames is not None:
            changes |= {"seconds": self.seconds, "num_frames": self.frames}
        return replace(given, **changes) if changes else None


_TYPES: Mapping[str, Any] = get_type_hints(ClipFlags)
_DEFAULTS: Mapping[str, Any] = {one.name: one.default for one in fields(ClipFlags)}
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _of_json(key: str, value: Any, kind: Any) -> Any:
    """Raises ``InvalidRequest`` for a value of another type."""
    if kind == tuple[str, ...]:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise InvalidRequest(f"{key}={value!r} is not a list of text", hint='for example ["a.png"]', param=key)
        return tuple(listed)
    if key == "sigmas" and isinstance(value, list):
        return ",".join(map(str, value))
    wanted: type = next(one for one in (bool, int, float, str) if kind in (one, one | None))
    fits = isinstance(value, bool) if wanted is bool else isinstance(value, wanted) and not isinstance(value, bool)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise InvalidRequest(f"{key}={value!r} is not {_WORDS[wanted]}", hint="leave it out", param=key)
    return value


def _adapters(names: tuple[str, ...], none: bool) -> tuple[AdapterChoice, ...] | None:
    """``NAME`` or ``NAME:STRENGTH`` of each; ``None`` if nothing is said."""
    if none and names:
        raise InvalidRequest(
            f"--no-adapters and --use-adapter {names[0]} exclude each other", hint="give one of them", param="adapters"
        )
    chosen = []
    for text in names:
        name, colon, strength = text.partition(":")
        try:
            chosen.append(AdapterChoice(name=name, strength=float(strength) if colon else 1.0))
        except ValueError:
            raise InvalidRequest(
                f"--use-adapter {text}: {strength!r} is not a number", hint="for example film:0.8", param="adapters"
            ) from None
    return tuple(chosen) if names or none else None


def _kind(uri: str) -> Kind:
    kind = kind_of_uri(uri)
    if kind is None:
        raise InvalidRequest(
            f"--reference {uri[:80]}: its name does not say whether it is a picture, a video or a sound",
            hint="give it its usual suffix, such as .png, .mp4 or .wav",
            param="reference",
        )
    return kind


def _ladder(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"sigmas={text!r} is not a list of numbers", hint="for example 1,0.75,0.5,0.25,0", param="sigmas"
        ) from None
