"""The command line: parse, build a config or request, call one function. The only room that reads the environment."""

from __future__ import annotations

import typer

from talkies.cli import bench, calibrate, convert, doctor, generate, inspect, jobs, plan, serve
from talkies.cli.common import print_in_any_encoding
from talkies.cli.help_page import Command

app = typer.Typer(
    name="talkies",
    help="Joint audio-video diffusion: a prompt, frames or references in, one MP4 with sound in sync out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", cls=Command)(generate.generate)
app.command("inspect")(inspect.inspect)
app.command("convert")(convert.convert)
app.command("plan", cls=Command)(plan.plan)
app.command("calibrate", cls=Command)(calibrate.calibrate)
app.command("doctor")(doctor.doctor)
app.command("serve", cls=serve.ServeCommand, context_settings=serve.CONTEXT)(serve.serve)
app.add_typer(jobs.app, name="jobs")
app.add_typer(bench.app, name="bench")


def _version(value: bool) -> None:
    if value:
        from talkies import __version__

        print(f"talkies {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "-V", "--version", callback=_version, is_eager=True, help="Print the version of talkies and end."
    ),
) -> None:
    pass


def main() -> None:
    print_in_any_encoding()
    app()
