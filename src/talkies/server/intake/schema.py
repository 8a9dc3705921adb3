"""Body -> :class:`Draft`: every field of three APIs, checked and folded into one VideoRequest. The only door.

What the client asked for and what it becomes are both told: a field that loses to another, or that has no effect on
this model, is a warning of the job; a field that nobody knows is a 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from talkies.errors import InvalidRequest
from talkies.h3.geometry import Limits
from talkies.request import Condition, Target, Task, VideoRequest
from talkies.server.errors import told_as
from talkies.server.intake import fields, references
from talkies.server.intake.adapters import adapters_of, counted
from talkies.server.intake.body import Body
from talkies.server.intake.coerce import coerce, shown
from talkies.server.intake.references import Source
from talkies.server.intake.sampling import sampling
from talkies.values import parse_ratio, parse_size

MAX_PRIORITY = 100
MAX_WEBHOOK_URL_CHARS = 2048


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A request whose structure is right. Its conditions still stand for ``sources``, which are not opened yet.

    ``names``: for a field of the request, where the client wrote it, if that was elsewhere."""

    request: VideoRequest
    names: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    priority: int = 0
    webhook_url: str | None = None
    return_metrics: bool = False


def to_draft(body: Body, *, limits: Limits, model_names: Sequence[str]) -> Draft:
    """``model_names``: what the model is called, and other names it may be given. Raises ``InvalidRequest`` with
    ``param`` set."""
    return _Reader(body, limits, model_names).draft()


@dataclass
class _Reader:
    body: Body
    limits: Limits
    model_names: Sequence[str]
    warnings: list[str] = field(default_factory=list)
    flat: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def draft(self) -> Draft:
        self._read_top_level()
        target = self._target()
        with told_as(self.names):
            self._check_fixed()
            task, sources = self._task_and_sources()
            if sources and not self.flat.get("conditions"):
                self.names["conditions"] = sources[0].field
            if sources and "task" not in self.flat:
                self.names["task"] = sources[0].field  # what made it the task that it is
            if sources and "aspect_ratio" not in self.flat:
                self.names["aspect_ratio"] = sources[0].field  # a canvas that nobody named follows the first picture
            request = VideoRequest(
                prompt=self._prompt(),
                task=task,
                target=self._canvas_and_length(target),
                conditions=tuple(placeholder(i, s) for i, s in enumerate(sources)),
                adapters=adapters_of(self.flat, self.names, self.warnings, form=self.body.form),
                **sampling(self.flat, self.names, form=self.body.form),
            )
            if "num_inference_steps" in self.flat and self.flat.get("num_forwards") is None:
                request = counted(request, self.limits.adapters, self.warnings)
        return Draft(
            request=request,
            names=self.names,
            sources=tuple(sources),
            warnings=tuple(dict.fromkeys(self.warnings)),
            priority=self._priority(),
            webhook_url=self._webhook_url(),
            return_metrics=self.flat.get("return_stage_metrics", False),
        )

    def _read_top_level(self) -> None:
        values = {k: v for k, v in self.body.values.items() if not self._absent(k, v)}
        extra_body = values.pop("extra_body", None)
        if extra_body is not None:
            # SGLang merges this object into the body; curl users paste it from Python snippets.
            inside = coerce("extra_body", "object", extra_body, form=self.body.form)
            if "extra_body" in inside:
                raise InvalidRequest(
                    "extra_body holds another extra_body",
                    hint="put its fields one level up",
                    param="extra_body.extra_body",
                )
            inside = {k: v for k, v in inside.items() if not self._absent(k, v)}
            lost = [k for k, v in inside.items() if k in values and values[k] != v]
            self.warnings += [f"{name} is ignored: extra_body.{name} wins" for name in lost]
            values |= inside
            self.body = Body(values=values, form=self.body.form)
        for name, value in values.items():
            if name in fields.TOP_LEVEL:
                self.flat[name] = coerce(name, fields.TOP_LEVEL[name], value, form=self.body.form)
            elif name in fields.NO_EFFECT:
                kind, reason = fields.NO_EFFECT[name]
                coerce(name, kind, value, form=self.body.form)
                self.warnings.append(f"{name} is ignored: {reason}")
            elif name in fields.REFUSED:
                fields.refuse(name, value)
            else:
                raise fields.unknown(str(name), [*fields.TOP_LEVEL, *fields.NO_EFFECT])
        model = self.flat.get("model")
        if model is not None and model not in self.model_names:
            raise InvalidRequest(
                f"Model mismatch: this server serves {self.model_names[0]!r}, not {shown(model)}",
                hint=f"use {self.model_names[0]!r} or leave model out",
                param="model",
            )
        self._merge("video_params", fields.VIDEO_PARAMS, wins=False)
        self._merge_extra_params()

    def _absent(self, name: str, value: Any) -> bool:
        # A form has no null: an empty part is a field left empty. The prompt keeps its own message.
        return value is None or (value == "" and name != "prompt" and (self.body.form or name == "size"))

    def _merge(self, where: str, known: dict[str, str], *, wins: bool) -> None:
        for name, value in (self.flat.get(where) or {}).items():
            if name not in known:
                raise fields.unknown(str(name), known, where=where)
            if value is not None:
                self._put(name, coerce(f"{where}.{name}", known[name], value, form=self.body.form), where, wins=wins)

    def _merge_extra_params(self) -> None:
        for name, value in (self.flat.get("extra_params") or {}).items():
            if name in fields.REFUSED:
                if value is not None:
                    fields.refuse(name, value, where="extra_params")
            elif name in fields.NO_EFFECT:
                self.warnings.append(f"extra_params.{name} is ignored: {fields.NO_EFFECT[name][1]}")
            elif name not in fields.EXTRA_PARAMS:
                raise fields.unknown(str(name), [*fields.EXTRA_PARAMS, *fields.REFUSED], where="extra_params")
            elif value is not None:
                flat_name = fields.EXTRA_PARAMS[name]
                kind = fields.TOP_LEVEL[flat_name]
                value = coerce(f"extra_params.{name}", kind, value, form=self.body.form)
                self._put(flat_name, value, "extra_params", written=name)

    def _put(self, name: str, value: Any, where: str, *, wins: bool = True, written: str | None = None) -> None:
        old = self.flat.get(name)
        old_name, new_name = self.names.get(name, name), f"{where}.{written or name}"
        if old is not None and old != value:
            loser, winner = (old_name, new_name) if wins else (new_name, old_name)
            self.warnings.append(f"{loser} is ignored: {winner} wins")
        if old is None or wins:
            self.flat[name] = value
            self.names[name] = new_name

    def _target(self) -> dict[str, Any]:
        """SGLang's target object. It wins over the flat fields, except for frame_indices, where the flat one wins."""
        target: dict[str, Any] = {}
        where = self.names.get("target", "target")
        for name, value in (self.flat.get("target") or {}).items():
            if name not in fields.TARGET:
                raise fields.unknown(str(name), fields.TARGET, where=where)
            if value is not None:
                target[name] = coerce(f"{where}.{name}", fields.TARGET[name], value, form=self.body.form)
        for name in ("short_edge", "aspect_ratio"):
            if name in target:
                self._put(name, target[name], where)
        if "duration_seconds" in target:
            self._put("seconds", target["duration_seconds"], where, written="duration_seconds")
        if "frame_indices" in target:
            self._put("frame_indices", target["frame_indices"], where, wins=False)
        return target

    def _check_fixed(self) -> None:
        fixed = (("fps", self.limits.fps), ("short_edge", self.limits.canvas_short_edge))
        for name, only in fixed:
            value = self.flat.get(name)
            if value is not None and value != only:
                raise InvalidRequest(f"{name} must be {only}, got {value:g}", hint="leave it out", param=name)

    def _prompt(self) -> str:
        if "prompt" not in self.flat:
            raise InvalidRequest("prompt is missing", hint="describe the clip in words", param="prompt")
        return self.flat["prompt"]

    def _task_and_sources(self) -> tuple[Task | None, list[Source]]:
        sources = references.collect(self.body)
        mode_field = self.names.get("audio_mode", "audio_mode")
        sources = references.lock_sound(sources, self.flat.get("audio_mode"), field=mode_field)
        task: Task | None = None
        if "task" in self.flat:
            try:
                task = Task(self.flat["task"])
            except ValueError:
                raise InvalidRequest(
                    f"task={shown(self.flat['task'])} is unknown", hint="use one of " + ", ".join(Task), param="task"
                ) from None
        explicit = bool(self.flat.get("conditions"))
        resolved = task or self._infer(sources, explicit)
        indices = self.flat.get("frame_indices")
        if isinstance(indices, int):
            indices = [indices]
        sources = references.assign_roles(sources, resolved, indices, explicit=explicit)
        starts, start_field = self.flat.get("start_time_seconds"), self.names.get("start_time_seconds")
        sources = references.assign_start_times(sources, starts, field=start_field or "start_time_seconds")
        return (task if task is not None or not sources else resolved), sources

    def _infer(self, sources: list[Source], explicit: bool) -> Task:
        sources = [s for s in sources if not s.is_lock]  # they go with any task
        if not sources:
            return Task.T2VA
        only_images = all(s.kind == "image" for s in sources)
        if explicit:
            keyframes = all(s.role != "reference" for s in sources)
            return Task.FL2VA if keyframes else Task.REF2VA
        return Task.FL2VA if only_images and Task.FL2VA in self.limits.tasks else Task.REF2VA

    def _canvas_and_length(self, target: dict[str, Any]) -> Target:
        width, height = self.flat.get("width"), self.flat.get("height")
        if "size" in self.flat:
            sides = parse_size(self.flat["size"])
            if (width or height) and (width, height) != sides:
                self.warnings.append("width and height are ignored: size wins")
            width, height = sides
            self.names |= {"width": "size", "height": "size"}
        elif width is not None:
            self.names["size"] = self.names.get("width", "width")
        elif "aspect_ratio" in self.flat:
            self.names["size"] = self.names.get("aspect_ratio", "aspect_ratio")
        aspect = self.flat.get("aspect_ratio")
        if aspect is not None and aspect not in ("auto", "adaptive"):
            parse_ratio(aspect)
        if width is not None and height is not None:
            if "aspect_ratio" in target:
                self.warnings.append(f"size {width}x{height} is ignored: {self.names['aspect_ratio']} wins")
                width = height = None
            elif aspect is not None:
                if aspect not in ("auto", "adaptive"):
                    self.warnings.append(f"aspect_ratio is ignored: size {width}x{height} wins")
                aspect = None
        seconds, num_frames = self.flat.get("seconds"), self.flat.get("num_frames")
        if seconds is not None and num_frames is not None:
            self.warnings.append("num_frames is ignored: the duration wins")
            num_frames = None
        if seconds is not None:  # what is said of the frames is said of the duration that became them
            self.names["num_frames"] = self.names.get("seconds", "seconds")
        return Target(width=width, height=height, aspect=aspect, seconds=seconds, num_frames=num_frames)

    def _priority(self) -> int:
        value = self.flat.get("priority", 0)
        if not -MAX_PRIORITY <= value <= MAX_PRIORITY:
            raise InvalidRequest(f"priority={value} is outside -{MAX_PRIORITY}..{MAX_PRIORITY}", param="priority")
        return value

    def _webhook_url(self) -> str | None:
        url = self.flat.get("webhook_url")
        if url is not None and (not url.startswith(("https://", "http://")) or len(url) > MAX_WEBHOOK_URL_CHARS):
            raise InvalidRequest("webhook_url must be an http(s) URL", param="webhook_url")
        return url


def placeholder(index: int, source: Source) -> Condition:
    """A condition that stands for a source not yet on disk, so that structure is checked before bytes are moved."""
    with references.blamed_on(source):
        return Condition(
            kind=source.kind,
            uri=f"source:{index}",
            role=source.role,
            start_time_s=source.start_time_s,
            end_time_s=source.end_time_s,
            require_sound=source.require_sound,
            name=source.name,
        )
