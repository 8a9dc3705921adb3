"""``talkies convert``: a checkpoint in the other published layout."""

from __future__ import annotations

from pathlib import Path

import typer

from talkies.cli.common import cleans_up, reports_errors


@reports_errors
def convert(
    source: str = typer.Argument(..., help="Folder or hub id; h3-tiny is the embedded checkpoint."),
    target: Path = typer.Argument(..., help="Folder to write; must not exist."),
    to: str = typer.Option(..., help="port (diffusers) or original (FL2VA/, Ref2VA/)."),
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
