"""``talkies calibrate``: which forwards a checkpoint can do without, for ``quality=high``, ``medium`` and ``low``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from talkies.cli.common import cleans_up, reports_errors, say
from talkies.cli.engine_flags import takes_engine_options

POLICIES = ("forecast",)


@reports_errors
@takes_engine_options(leaving=("step_caches", "adapters"))
def calibrate(
    policy: str = typer.Option(
        "forecast", help="The policy to calibrate; block and teacache take thresholds, which the file may hold."
    ),
    requests: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Requests to learn from, a JSON object a line: prompt, conditions, target; of every task that will be "
        "asked for. Four prompts for t2va if absent.",
    ),
    steps: list[int] = typer.Option(
        [], help="Sigma points to calibrate for, repeatable; the checkpoint's own and 50 if absent."
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="FILE", help="The file; step_caches.json in the checkpoint's folder if absent."
    ),
    *,
    engine: dict[str, Any],
) -> None:
    """Find the forwards that each tier of quality may leave out, and write them beside the checkpoint."""
    from talkies.benchmarks import calibrate as calibration
    from talkies.engine.config import EngineConfig
    from talkies.engine.engine import Engine
    from talkies.engine.load.checkpoint import locate
    from talkies.errors import ConfigError, OutputError
    from talkies.files.step_caches import FILE_NAME, read_tiers, write_tiers
    from talkies.values import MAX_SIGMAS, MIN_SIGMAS

    if policy not in POLICIES:
        raise ConfigError(
            f"policy={policy!r} has no calibration",
            hint="use forecast, or write the thresholds of block or teacache into the file (docs/step-caches.md)",
            param="policy",
        )
    wrong = next((points for points in steps if not MIN_SIGMAS + 2 <= points <= MAX_SIGMAS), None)
    if wrong is not None:
        raise ConfigError(f"steps={wrong} is outside {MIN_SIGMAS + 2}..{MAX_SIGMAS}", param="steps")
    config = EngineConfig.of({**engine, "step_caches": "none"})  # those of another checkpoint would be refused
    wanted = read_requests(requests) if requests is not None else calibration.default_requests()
    target = output or locate(config.model) / FILE_NAME
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent} is no folder", hint="make it first, or give another --output")
    with cleans_up():
        opened = Engine.open_config(config)
        try:
            root = opened.components.parts.root
            before = read_tiers(root, target).version if target.is_file() else 0
            points = steps or sorted({opened.limits.default_num_sigmas, 50})
            tiers = calibration.calibrate(opened, wanted, points, version=before + 1, say=say)
        finally:
            opened.close()
    try:
        write_tiers(target, tiers)
    except OSError as error:
        raise OutputError(f"{target}: {error.strerror or error}", hint="give another --output") from error
    print(json.dumps({"path": str(target), "checkpoint": tiers.checkpoint, "version": tiers.version}))


def read_requests(path: Path) -> list[Any]:
    """Raises ``ConfigError`` naming the line, and ``InvalidRequest`` for what it asks."""
    from talkies.errors import ConfigError
    from talkies.request import VideoRequest

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="requests") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}", param="requests") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}, line {number} is no object", hint='{"prompt": "..."}', param="requests")
        found.append(VideoRequest.from_dict(value))
    if not found:
        raise ConfigError(f"{path} holds no requests", hint='a line such as {"prompt": "..."}', param="requests")
    return found
