"""``talkies generate``: a prompt becomes an MP4 in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.common import cleans_up, configure_logs, plain, print_json, reports_errors
from talkies.cli.engine_flags import takes_engine_options
from talkies.cli.lock_flags import lock
from talkies.cli.repeat import check_adapters
from talkies.cli.repeat import repeated as _repeated
from talkies.errors import InvalidRequest
from talkies.files.paths import local_path
from talkies.media.reference_kinds import kind_of_uri
from talkies.request import AdapterChoice, Condition, Kind, Target, VideoRequest
from talkies.values import MAX_SIGMAS, MIN_SIGMAS, parse_size

if TYPE_CHECKING:
    from talkies.engine.events import OnProgress
    from talkies.engine.port.facts import Facts


REQUEST, CONDITIONS, ADVANCED = "Request", "Conditions", "Advanced"  # panels of --help


@reports_errors
@takes_engine_options()
def generate(
    prompt: str | None = typer.Argument(
        None, help="A description of the clip in plain words, between quotes. It is required without --from."
    ),
    output: Path = typer.Option(
        Path("clip.mp4"),
        "-o",
        "--output",
        help="The MP4 file to write. A file of that name is replaced.",
        rich_help_panel=REQUEST,
    ),
    source: Path | None = typer.Option(
        None,
        "--from",
        help="An MP4 of talkies whose request is repeated. Other options replace what they name. By default "
        "PROMPT says what to make.",
        rich_help_panel=REQUEST,
    ),
    seed: int | None = typer.Option(
        None,
        help="A 64-bit integer from which the noise is drawn: the same seed makes the same clip. The default is 42.",
        rich_help_panel=REQUEST,
    ),
    seconds: float | None = typer.Option(
        None,
        help="The length of the clip in seconds, at 24 frames a second. It is rounded up to 17n+5 frames. The "
        "default is the checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    frames: int | None = typer.Option(
        None,
        help="The length of the clip in frames, instead of --seconds. It is rounded up to 17n+5.",
        rich_help_panel=REQUEST,
    ),
    size: str | None = typer.Option(
        None,
        help="The size of the picture as WIDTHxHEIGHT in pixels. By default it follows from --aspect.",
        rich_help_panel=REQUEST,
    ),
    aspect: str | None = typer.Option(
        None,
        help="The shape of the picture: 21:9, 16:9, 4:3, 1:1, 3:4, 9:16, W:H or auto. The default is 16:9, and "
        "with keyframes or footage their own.",
        rich_help_panel=REQUEST,
    ),
    steps: int | None = typer.Option(
        None,
        help="The number of noise levels, 0 at the end included: 50 of them take 49 forwards. The default is the "
        "checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    forwards: int | None = typer.Option(
        None,
        help="The number of passes through the model, instead of --steps, which counts one more.",
        rich_help_panel=REQUEST,
    ),
    sigmas: str | None = typer.Option(
        None,
        help="The noise levels themselves, falling to 0, such as 1,0.75,0.5,0.25,0. By default they are evenly spaced.",
        rich_help_panel=REQUEST,
    ),
    flow_shift: float | None = typer.Option(
        None,
        help="How far the noise levels of the picture are shifted towards noise. The default is the checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    audio_flow_shift: float | None = typer.Option(
        None,
        help="How far the noise levels of the sound are shifted towards noise. The default is the checkpoint's.",
        rich_help_panel=REQUEST,
    ),
    task: str | None = typer.Option(
        None,
        help="The task: t2va (from words), fl2va (between keyframes) or ref2va (after references). By default "
        "it follows from the pictures, videos and sounds that are given.",
        rich_help_panel=REQUEST,
    ),
    outputs: int | None = typer.Option(
        None,
        "-n",
        "--outputs",
        help="How many clips to make, 1 to 10. Several are called NAME-0.mp4, NAME-1.mp4 and so on, with seeds "
        "that count up. The default is 1.",
        rich_help_panel=REQUEST,
    ),
    no_audio: bool = typer.Option(
        False, "--no-audio", help="Writes a file without an audio stream.", rich_help_panel=REQUEST
    ),
    no_record_inputs: bool = typer.Option(
        False,
        "--no-record-inputs",
        help="Leaves the names and hashes of references out of the file's metadata.",
        rich_help_panel=REQUEST,
    ),
    use_adapter: list[str] = typer.Option(
        [],
        metavar="NAME",
        help="An adapter of --adapter to use, as NAME or NAME:STRENGTH; those that are not named are off. The "
        "option may be repeated. By default all adapters are used that --adapter turns on.",
        rich_help_panel=REQUEST,
    ),
    no_adapters: bool = typer.Option(
        False, "--no-adapters", help="Uses none of the adapters that --adapter loads.", rich_help_panel=REQUEST
    ),
    first_frame: str | None = typer.Option(
        None,
        metavar="IMG",
        help="A picture with which the clip begins. By default the model makes the first frame.",
        rich_help_panel=CONDITIONS,
    ),
    last_frame: str | None = typer.Option(
        None,
        metavar="IMG",
        help="A picture with which the clip ends. By default the model makes the last frame.",
        rich_help_panel=CONDITIONS,
    ),
    reference: list[str] = typer.Option(
        [],
        metavar="FILE",
        help="A picture, video or sound that the clip takes after. The option may be repeated, and PROMPT names "
        "references in their order. By default there is none.",
        rich_help_panel=CONDITIONS,
    ),
    soundtrack: str | None = typer.Option(
        None,
        metavar="FILE",
        help="A sound that becomes the sound of the clip; the picture is made to it. By default the model makes "
        "the sound.",
        rich_help_panel=CONDITIONS,
    ),
    footage: str | None = typer.Option(
        None,
        metavar="VIDEO",
        help="A video that becomes the picture of the clip; the sound is made to it. By default the model makes "
        "the picture.",
        rich_help_panel=CONDITIONS,
    ),
    redo_sound: str | None = typer.Option(
        None,
        metavar="FROM:TO",
        help="The part of --soundtrack to make anew, in seconds. Either end may be left out. By default all of it "
        "is kept.",
        rich_help_panel=CONDITIONS,
    ),
    redo_picture: str | None = typer.Option(
        None,
        metavar="FROM:TO",
        help="The part of --footage to make anew, in seconds. Either end may be left out. By default all of it is "
        "kept.",
        rich_help_panel=CONDITIONS,
    ),
    fit: str | None = typer.Option(
        None,
        help="How keyframes and footage of another shape are fitted: stretch, crop, pad, adapt (the clip takes "
        "their shape) or released (as MiniMax's code does). The default is adapt, and crop beside --size or "
        "--aspect.",
        rich_help_panel=CONDITIONS,
    ),
    log_level: str | None = typer.Option(
        None,
        envvar="TALKIES_LOG_LEVEL",
        help="The log lines to show: debug, info, warning or error. By default they are warnings and errors.",
        rich_help_panel=ADVANCED,
    ),
    json: bool = typer.Option(
        False,
        "--json",
        help="Writes the facts of the clip, or an error, as one JSON object on the last line of stdout.",
        rich_help_panel=ADVANCED,
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """Make a clip: picture and sound, in sync, from words alone, between given frames or after references."""
    if log_level is not None:
        configure_logs(log_level)
    # Then the clip's own references are not looked for.
    replaced = bool(first_frame or last_frame or reference or soundtrack or footage)
    base = _repeated(source, with_references=not replaced) if source is not None else None
    if base is None and prompt is None:
        raise InvalidRequest("prompt is missing", hint="talkies generate PROMPT, or --from CLIP.mp4", param="prompt")
    if steps is not None and forwards is not None and steps != forwards + 1:
        raise InvalidRequest(
            f"--steps {steps} are {steps - 1} forwards, but --forwards says {forwards}",
            hint="give one of them",
            param="steps",
        )
    if forwards is not None and not MIN_SIGMAS <= forwards + 1 <= MAX_SIGMAS:
        raise InvalidRequest(
            f"--forwards {forwards} is outside {MIN_SIGMAS - 1}..{MAX_SIGMAS - 1}", hint="choose a value inside"
        )
    changes: dict[str, Any] = {
        "prompt": prompt,
        "seed": seed,
        "num_sigmas": forwards + 1 if forwards is not None else steps,
        "sigmas": _ladder(sigmas),
        "video_shift": flow_shift,
        "audio_shift": audio_flow_shift,
        "task": task,
        "fit": fit,
        "num_outputs": outputs,
        "audio": False if no_audio else None,
        "record_inputs": False if no_record_inputs else None,
        "adapters": _adapters(use_adapter, no_adapters),
    }
    keyframes = (("first", first_frame), ("last", last_frame))
    conditions = [Condition(kind="image", uri=uri, role=role) for role, uri in keyframes if uri is not None]  # type: ignore[arg-type]
    conditions += [Condition(kind=_kind(uri), uri=uri) for uri in reference]
    conditions += lock("soundtrack", soundtrack, "--redo-sound", redo_sound)
    conditions += lock("footage", footage, "--redo-picture", redo_picture)
    if conditions:
        changes["conditions"] = tuple(conditions)
    changes["target"] = _target(base.target if base is not None else Target(), size, aspect, seconds, frames)
    changes = {name: value for name, value in changes.items() if value is not None}
    if "sigmas" in changes:  # each stands instead of the other that a repeated clip had
        changes.setdefault("num_sigmas", None)
    elif "num_sigmas" in changes:
        changes["sigmas"] = None
    request = VideoRequest(**changes) if base is None else base.replace(**changes)

    from talkies.engine.config import EngineConfig
    from talkies.engine.load.build import for_task, parts_and_limits
    from talkies.media.write.destination import check_writable

    paths = _paths(output, request.num_outputs)
    inputs = [Path(local_path(c.uri)) for c in request.conditions if not c.uri.startswith(("http", "data:"))]
    for path in paths:
        check_writable(
            path, inputs=[*inputs, *([source] if source else [])]
        )  # before any work: a typo in -o must not cost a run
    config = EngineConfig.of(engine)
    if "task_type" not in engine:
        config = for_task(config, request.resolved_task)  # a clip needs one DiT
    if source is not None:
        check_adapters(source, request, parts_and_limits(config)[1].adapters)
    results = [facts.result() for facts in _run(config, request, paths, quiet=json)]
    if json:
        print_json(results[0] if len(results) == 1 else {"outputs": results})


def _run(config: Any, request: VideoRequest, paths: list[Path], *, quiet: bool) -> list[Facts]:
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with cleans_up(), _bar(console, quiet) as (note, on_progress):
        note("loading")
        from talkies.engine.engine import Engine
        from talkies.engine.pipeline import path as pipeline

        prepared = pipeline.prepare_ahead(config, request)  # a typo must not cost minutes of loading
        engine = Engine.open_config(config)
        try:
            results = engine.render(request, paths, on_progress=on_progress, prepared=prepared)
        finally:
            engine.close()
    if not quiet:
        for warning in dict.fromkeys(w for r in results for w in r.warnings):
            console.print(f"[yellow]note:[/] {escape(plain(warning))}")
        for r in results:
            total = sum(r.stages_s.values())
            name = escape(plain(str(r.path)))
            console.print(f"[bold]{name}[/]  {r.frames} frames, {r.seconds:.2f} s, made in {total:.1f} s")
    return results


class _bar:
    """A progress line on stderr: stage, step, ETA. Silent under --json and where stderr is no terminal."""

    def __init__(self, console: Any, quiet: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._id = self._bar.add_task("loading", total=1.0, detail="")

    def __enter__(self) -> tuple[Any, OnProgress]:
        self._bar.start()

        def on_progress(p: Any) -> None:
            eta = "" if p.eta_s is None else f", {p.eta_s:.1f} s left"
            self._bar.update(self._id, description=p.stage, completed=p.fraction, detail=f"{p.step}/{p.num_steps}{eta}")

        return (lambda text: self._bar.update(self._id, description=text)), on_progress

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _paths(output: Path, count: int) -> list[Path]:
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}-{i}{output.suffix}") for i in range(count)]


def _target(
    given: Target, size: str | None, aspect: str | None, seconds: float | None, frames: int | None
) -> Target | None:
    """``given`` with the canvas, the length or both replaced; ``None`` if neither is."""
    changes: dict[str, Any] = {}
    if size is not None or aspect is not None:
        width, height = parse_size(size) if size is not None else (None, None)
        changes |= {"width": width, "height": height, "aspect": aspect}
    if seconds is not None or frames is not None:
        changes |= {"seconds": seconds, "num_frames": frames}
    return replace(given, **changes) if changes else None


def _adapters(names: list[str], none: bool) -> tuple[AdapterChoice, ...] | None:
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
