"""``talkies convert``: a checkpoint in the other published layout."""

from __future__ import annotations

from pathlib import Path

import typer

from talkies.cli.common import cleans_up, reports_errors


@reports_errors
def convert(
    source: str = typer.Argument(
        ..., help="The checkpoint to convert: a folder, a hub id, or h3-tiny, which is inside the package."
    ),
    target: Path = typer.Argument(..., help="The folder to write, which must not exist yet."),
    to: str = typer.Option(
        ..., help="The layout to write: port, which diffusers reads, or original, with the folders FL2VA and Ref2VA."
    ),
) -> None:
    """Convert a checkpoint between its two disk layouts; tensors keep their bits and dtypes."""
    from talkies.engine.load.checkpoint import locate
    from talkies.engine.load.convert import convert as run
    from talkies.errors import ConfigError

    if to not in ("port", "original"):
        raise ConfigError(f"--to {to!r} is unknown", hint="use port or original", param="to")
    with cleans_up():
        made = run(locate(source), target, to=to)  # type: ignore[arg-type]
    for folder in made:
        print(folder)
