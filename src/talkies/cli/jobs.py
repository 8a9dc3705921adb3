"""``talkies jobs list|watch|cancel``: a running server's jobs, over HTTP."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from talkies.cli.common import plain, print_json, reports_errors
from talkies.errors import ConfigError, InvalidRequest, TalkiesError

if TYPE_CHECKING:
    import httpx

app = typer.Typer(no_args_is_help=True, help="Jobs of a running server.")

URL = typer.Option(
    "http://127.0.0.1:8000", envvar="TALKIES_URL", help="The address of the server whose jobs are meant."
)
KEY = typer.Option(
    None,
    envvar=["TALKIES_API_KEY", "VLLM_API_KEY"],
    help="The key of a server that was started with --api-key. By default none is sent.",
)
ID = typer.Argument(..., help="The id of the job, as `talkies jobs list` shows it.")
IDS = typer.Argument(..., help="The ids of the jobs, as `talkies jobs list` shows them.")
JSON = typer.Option(False, "--json", help="Writes JSON to stdout, one object on each line.")


@app.command("list")
@reports_errors
def list_jobs(
    url: str = URL,
    api_key: str | None = KEY,
    limit: int = typer.Option(20, min=1, max=100, help="How many jobs to list at most, the newest first."),
    after: str | None = typer.Option(
        None, help="The id of a job: older ones are listed. By default the list begins with the newest."
    ),
    json: bool = JSON,
) -> None:
    """The newest jobs of this key."""
    query = {"limit": str(limit), **({"after": after} if after else {})}
    with _client(url, api_key) as client:
        page = _json(client.get("/v1/videos", params=query))
    if not isinstance(page.get("data"), list):
        raise _stranger("an answer without jobs")
    for job in page["data"]:
        if json:
            print_json(job)
        else:
            prompt = " ".join(job["prompt"][:240].split())
            print(f"{job['id']}  {_describe(job)}  {plain(prompt)[:60]}")


@app.command("watch")
@reports_errors
def watch(job_id: str = ID, url: str = URL, api_key: str | None = KEY, json: bool = JSON) -> None:
    """Follow one job to its end. Exit code 1 when it failed. Ctrl-C ends the watching, not the job."""
    try:
        last = _followed(job_id, url, api_key, json)
    except KeyboardInterrupt:
        print(f"no longer watching; the job goes on (talkies jobs cancel {job_id} ends it)", file=sys.stderr)
        raise typer.Exit(130) from None
    if last.get("status") not in ("completed", "failed"):
        raise TalkiesError("the server ended the stream", hint="watch again: the job itself goes on")
    if last["status"] == "failed":
        raise TalkiesError(f"job {job_id} failed: {last['error']['message']}")


def _followed(job_id: str, url: str, api_key: str | None, json: bool) -> dict[str, Any]:
    """Shows what happens to a job; its last state."""
    last: dict[str, Any] = {}
    with (
        _client(url, api_key) as client,
        client.stream("GET", f"/v1/videos/{quote(job_id, safe='')}/events") as answer,
    ):
        if answer.status_code != 200:
            answer.read()
            _json(answer)
        for event, data in _events(answer):
            if event == "deleted":
                raise TalkiesError(f"job {job_id} was deleted")
            if event in ("progress", "job"):
                last = {**last, **data}
                _show(last, json)
            elif event == "done":
                return data
    return last


@app.command("cancel")
@reports_errors
def cancel(job_ids: list[str] = IDS, url: str = URL, api_key: str | None = KEY, json: bool = JSON) -> None:
    """Cancel running jobs; delete ended ones with their files."""
    with _client(url, api_key) as client:
        for job_id in job_ids:
            deleted = _json(client.delete(f"/v1/videos/{quote(job_id, safe='')}"))
            if json:
                print_json(deleted)
            else:
                print(f"{job_id}  deleted")


@contextmanager
def _client(url: str, api_key: str | None) -> Iterator[httpx.Client]:
    """Network faults become one line that names the server."""
    import httpx  # here, since every other command starts sooner without it

    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key holds characters that no header can carry", hint="use ASCII", param="api_key")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        # An event stream says something every ten seconds, so a minute of silence is a dead server.
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(f"--url {url!r}: {error}", hint="for example http://127.0.0.1:8000", param="url") from None
    except httpx.TransportError as error:
        raise TalkiesError(f"cannot reach {url}: {error}", hint="is it running? see --url") from None


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        data = answer.json()
    except ValueError:
        data = None
    if answer.status_code == 200 and isinstance(data, dict):
        return data
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict) or "message" not in error:
        raise _stranger(f"HTTP {answer.status_code}")
    kind = InvalidRequest if answer.status_code < 500 else TalkiesError
    raise kind(str(error["message"]), param=error.get("param"))


def _stranger(answer: str) -> TalkiesError:
    return TalkiesError(f"{answer}: not a talkies server", hint="see --url")


def _events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and name != "preview":
            yield name, jsonlib.loads(line[6:])


def _show(job: dict[str, Any], json: bool) -> None:
    if json:
        print_json({k: job.get(k) for k in ("id", "status", "progress", "stage", "step", "num_steps", "eta_s")})
    else:
        print(_describe(job), flush=True)


def _describe(job: dict[str, Any]) -> str:
    text = f"{job['status']:<11} {job['progress']:>3} %"
    if job.get("queue_position"):
        text += f"  place {job['queue_position']}"
    if job.get("stage") and (job["status"] == "in_progress" or job["stage"] == "restarting"):
        text += f"  {job['stage']}" + (f" {job['step']}/{job['num_steps']}" if job.get("num_steps") else "")
    if job.get("eta_s") is not None:
        text += f"  about {job['eta_s']:.0f} s left"
    return text
