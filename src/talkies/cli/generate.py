"""``talkies generate``: a prompt becomes an MP4 in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from talkies.cli.clips.batch import DEFAULT_PATTERN, is_pattern, wanted
from talkies.cli.clips.dry_run import show_plan
from talkies.cli.clips.flags import ClipFlags
from talkies.cli.clips.make import Asked, check_places, config_for, make, make_all, planned
from talkies.cli.clips.repeat import check_adapters, repeated
from talkies.cli.common import configure_logs, reports_errors
from talkies.cli.engine_flags import takes_engine_options
from talkies.errors import InvalidRequest

REQUEST, CONDITIONS, ADVANCED = "Request", "Conditions", "Advanced"  # panels of --help
BATCH = "Several clips"


@reports_errors
@takes_engine_options()
def generate(
    prompt: str | None = typer.Argument(
        None, help="What happens in the clip, in words, in quotes; - reads it from stdin."
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="The MP4 to write, clip.mp4 if absent; one that is there is replaced. {index:03}, {seed} and {prompt} in "
        "its name are filled in.",
        rich_help_panel=REQUEST,
    ),
    prompts: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Makes a clip of each line: a prompt, or a JSON object whose keys are flags of this command; - reads "
        f"stdin. Clips that are there already are kept. Without --output their names are {DEFAULT_PATTERN}.",
        rich_help_panel=BATCH,
    ),
    seeds: str | None = typer.Option(
        None, metavar="LIST", help="Makes each prompt with several seeds: 1,2,7 or 1..4.", rich_help_panel=BATCH
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Clips of a batch that are there already are made again.", rich_help_panel=BATCH
    ),
    dry_run: bool = typer.Option(
        False,
        "--dry-run",
        help="Checks everything and shows what would be made: size, frames, seconds, forwards and rows.",
        rich_help_panel=BATCH,
    ),
    source: Path | None = typer.Option(
        None, "--from", help="Repeats the clip in this MP4 from its metadata.", rich_help_panel=REQUEST
    ),
    seed: int | None = typer.Option(
        None, help="A 64-bit integer that draws the noise; 42 if absent.", rich_help_panel=REQUEST
    ),
    seconds: float | None = typer.Option(
        None, help="The wanted length; frames are snapped up to 17n+5.", rich_help_panel=REQUEST
    ),
    frames: int | None = typer.Option(None, help="The wanted frames, instead of --seconds.", rich_help_panel=REQUEST),
    size: str | None = typer.Option(None, help="The canvas as WIDTHxHEIGHT in pixels.", rich_help_panel=REQUEST),
    aspect: str | None = typer.Option(
        None, help="The canvas' shape: 21:9, 16:9, 4:3, 1:1, 3:4, 9:16, W:H or auto.", rich_help_panel=REQUEST
    ),
    steps: int | None = typer.Option(
        None, help="Sigma points, as peers count: 50 steps are 49 forwards.", rich_help_panel=REQUEST
    ),
    forwards: int | None = typer.Option(
        None, help="Forwards of the model: the other way to say --steps.", rich_help_panel=REQUEST
    ),
    sigmas: str | None = typer.Option(
        None, help="A ladder of your own, for example 1,0.75,0.5,0.25,0.", rich_help_panel=REQUEST
    ),
    flow_shift: float | None = typer.Option(
        None, help="Video's sigma shift; the checkpoint's if absent.", rich_help_panel=REQUEST
    ),
    audio_flow_shift: float | None = typer.Option(
        None, help="Sound's sigma shift; the checkpoint's if absent.", rich_help_panel=REQUEST
    ),
    quality: str | None = typer.Option(
        None,
        help="lossless, or high, medium, low: a step cache leaves out more and more of the forwards.",
        rich_help_panel=REQUEST,
    ),
    task: str | None = typer.Option(
        None, help="t2va, fl2va or ref2va; known from the conditions if absent.", rich_help_panel=REQUEST
    ),
    outputs: int | None = typer.Option(
        None,
        "-n",
        "--outputs",
        help="Several clips: NAME-0.mp4 with seed, NAME-1.mp4 with seed+1, ...",
        rich_help_panel=REQUEST,
    ),
    no_audio: bool = typer.Option(False, "--no-audio", help="The file gets no audio stream.", rich_help_panel=REQUEST),
    no_record_inputs: bool = typer.Option(
        False,
        "--no-record-inputs",
        help="The file does not name its references, nor hold their hashes.",
        rich_help_panel=REQUEST,
    ),
    use_adapter: list[str] = typer.Option(
        [],
        metavar="NAME",
        help="An adapter that --adapter loads, as NAME or NAME:STRENGTH, and none that is not named; repeatable.",
        rich_help_panel=REQUEST,
    ),
    no_adapters: bool = typer.Option(False, "--no-adapters", help="No adapter is used.", rich_help_panel=REQUEST),
    first_frame: str | None = typer.Option(
        None, metavar="IMG", help="The clip begins with this picture.", rich_help_panel=CONDITIONS
    ),
    last_frame: str | None = typer.Option(
        None, metavar="IMG", help="The clip ends with this picture.", rich_help_panel=CONDITIONS
    ),
    reference: list[str] = typer.Option(
        [], metavar="FILE", help="A picture, video or sound; repeatable, order kept.", rich_help_panel=CONDITIONS
    ),
    soundtrack: str | None = typer.Option(
        None,
        metavar="FILE",
        help="The clip gets this sound, and its picture follows it.",
        rich_help_panel=CONDITIONS,
    ),
    footage: str | None = typer.Option(
        None,
        metavar="VIDEO",
        help="The clip gets this picture, and its sound follows it.",
        rich_help_panel=CONDITIONS,
    ),
    redo_sound: str | None = typer.Option(
        None,
        metavar="FROM:TO",
        help="The part of --soundtrack, in seconds, to make anew; all else is kept. Either end may be left out.",
        rich_help_panel=CONDITIONS,
    ),
    redo_picture: str | None = typer.Option(
        None, metavar="FROM:TO", help="The part of --footage to make anew.", rich_help_panel=CONDITIONS
    ),
    fit: str | None = typer.Option(
        None,
        help="How keyframes and footage meet the canvas: stretch, crop, pad, adapt or released.",
        rich_help_panel=CONDITIONS,
    ),
    log_level: str | None = typer.Option(
        None,
        envvar="TALKIES_LOG_LEVEL",
        help="debug, info (what was chosen, loaded and how fast), warning or error.",
        rich_help_panel=ADVANCED,
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Nothing on stderr but errors.", rich_help_panel=ADVANCED),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="The same as --log-level info.", rich_help_panel=ADVANCED
    ),
    json: bool = typer.Option(
        False,
        "--json",
        help="The last line of stdout is one JSON object with the facts of the clip; of several clips a line for each.",
        rich_help_panel=ADVANCED,
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """Make a clip: picture and sound, in sync, from words alone, between given frames or after references; or many of
    them, with --prompts and --seeds."""
    if quiet and verbose:
        raise InvalidRequest("--quiet and --verbose are both given", hint="give one of them", param="--quiet")
    level = log_level or ("info" if verbose else None)
    if level is not None:
        configure_logs(level)
    flags = ClipFlags(
        prompt=_words(prompt, prompts),
        seed=seed,
        seconds=seconds,
        frames=frames,
        size=size,
        aspect=aspect,
        steps=steps,
        forwards=forwards,
        sigmas=sigmas,
        flow_shift=flow_shift,
        audio_flow_shift=audio_flow_shift,
        quality=quality,
        task=task,
        outputs=outputs,
        no_audio=no_audio,
        no_record_inputs=no_record_inputs,
        use_adapter=tuple(use_adapter),
        no_adapters=no_adapters,
        first_frame=first_frame,
        last_frame=last_frame,
        reference=tuple(reference),
        soundtrack=soundtrack,
        footage=footage,
        redo_sound=redo_sound,
        redo_picture=redo_picture,
        fit=fit,
    )
    # Then the clip's own references are not looked for.
    base = repeated(source, with_references=not flags.names_media) if source is not None else None
    is_batch = prompts is not None or seeds is not None or (output is not None and is_pattern(output))
    if is_batch:
        asked = [
            Asked(request=one.request, paths=(one.path,), where={"index": one.index})
            for one in wanted(flags, prompts, seeds, output, base)
        ]
    else:
        request = flags.request(base)
        paths = _paths(output or Path("clip.mp4"), request.num_outputs)
        asked = [Asked(request=request, paths=tuple(paths), where={})]

    from talkies.engine.load.checkpoint import parts_and_limits

    config = config_for(engine, asked)
    if source is not None:
        known = parts_and_limits(config)[1].adapters
        for one in asked:
            check_adapters(source, one.request, known)
    if dry_run:
        show_plan(planned(config, asked), json=json)
        return
    check_places(asked, source=source, makes_folders=is_batch)
    if is_batch:
        make_all(config, asked, json=json, quiet=quiet, overwrite=overwrite)
    else:
        make(config, asked[0], json=json, quiet=quiet)


def _words(prompt: str | None, prompts: Path | None) -> str | None:
    """``-`` is what stands on stdin. Raises ``InvalidRequest``."""
    if prompt != "-":
        return prompt
    if str(prompts) == "-":
        raise InvalidRequest("prompt - and --prompts - both read stdin", hint="give one of them", param="prompt")
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"prompt - is not text: {error}", hint="pipe UTF-8 into it", param="prompt") from None


def _paths(output: Path, count: int) -> list[Path]:
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}-{i}{output.suffix}") for i in range(count)]
