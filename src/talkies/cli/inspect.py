"""``talkies inspect``: what is inside an MP4, measured, not read off its header."""

from __future__ import annotations

from pathlib import Path

import typer

from talkies.cli.common import plain, print_json, reports_errors


@reports_errors
def inspect(
    file: Path = typer.Argument(..., help="The file to report on: a clip of talkies or any other video."),
    json: bool = typer.Option(False, "--json", help="Writes the report to stdout as one JSON object."),
) -> None:
    """Streams, lengths, loudness, black or frozen spans, A/V offset, and the request that made the clip."""
    from talkies.media.inspect.report import inspect as measure

    report = measure(file).to_dict()
    if json:
        print_json(report)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, not markup: brackets in a name or a prompt are brackets.
    table = Table(title=Text(plain(file.name)), show_header=False, title_justify="left")
    for part in ("video", "audio"):
        values = report[part]
        table.add_row(part, "none" if values is None else "  ".join(f"{k} {_short(v)}" for k, v in values.items()))
    offset = report["sync_offset_ms"]
    table.add_row(
        "sync",
        "no audible impact to measure"
        if offset is None
        else f"sound {abs(offset):.1f} ms {'after' if offset > 0 else 'before'} picture",
    )
    table.add_row("flags", ", ".join(map(str, report["flags"])) or "none")
    request = report["request"].get("request")
    if isinstance(request, dict):
        table.add_row("prompt", Text(plain(request.get("prompt", ""))))
        made_by = f"talkies {report['request'].get('talkies')}, seed {request.get('seed')}"
        table.add_row("made by", Text(plain(made_by)))
    Console().print(table)


def _short(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
