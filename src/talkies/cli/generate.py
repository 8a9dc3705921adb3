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
        None,
        help="A description of the clip in plain words, between quotes; - reads it from stdin. It is required without "
        "--from and --prompts.",
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="The MP4 file to write. A file of that name is replaced; {index:03}, {seed} and {prompt} in the name are "
        "filled in. The default is clip.mp4.",
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
        None,
        metavar="LIST",
        help="Makes each prompt with several seeds, such as 1,2,7 or 1..4. By default it has the one of --seed.",
        rich_help_panel=BATCH,
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
    quality: str | None = typer.Option(
        None,
        help="How much may be skipped: lossless runs every forward; high, medium and low leave out more and more of "
        "them. The default is lossless.",
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
    quiet: bool = typer.Option(
        False, "-q", "--quiet", help="Writes nothing to stderr but errors.", rich_help_panel=ADVANCED
    ),
    verbose: bool = typer.Option(
        False,
        "-v",
        "--verbose",
        help="Shows what was chosen and loaded, as --log-level info does.",
        rich_help_panel=ADVANCED,
    ),
    json: bool = typer.Option(
        False,
        "--json",
        help="Writes the facts of the clip, or an error, as one JSON object on the last line of stdout; of several "
        "clips a line for each.",
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
