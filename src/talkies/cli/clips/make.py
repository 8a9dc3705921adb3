"""Clips of one command, with one engine: those that are there already are kept, a failed one ends no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from talkies.cli.clips.bar import Bar
from talkies.cli.clips.batch import blamed_on
from talkies.cli.clips.made import expected, is_made
from talkies.cli.common import as_json, cleans_up, print_json, say_error
from talkies.errors import Cancelled, TalkiesError, WorkerDied
from talkies.files.paths import local_path
from talkies.request import VideoRequest

if TYPE_CHECKING:
    from talkies.engine.config import EngineConfig
    from talkies.engine.port.facts import Facts
    from talkies.h3.geometry import Limits
    from talkies.h3.partitions import Parts

FAULTS = ("silent", "black", "frozen", "clipped")  # flags of ``talkies inspect`` that a maker of clips wants to hear of


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request and its files, one an output. ``where``: what tells it from others of a batch."""

    request: VideoRequest
    paths: tuple[Path, ...]
    where: dict[str, Any]

    @property
    def name(self) -> str | None:
        """By which a refusal tells it from others; ``None`` where it is the only one."""
        return str(self.paths[0]) if self.where else None


def config_for(engine: dict[str, Any], asked: Sequence[Asked]) -> EngineConfig:
    """Of the engine that makes them all: a DiT that no clip needs is not loaded, unless the line says so."""
    from talkies.engine.config import EngineConfig
    from talkies.engine.load.checkpoint import for_task

    config = EngineConfig.of(engine)
    if "task_type" in engine:
        return config
    narrowed = [for_task(config, task) for task in sorted({str(one.request.resolved_task) for one in asked})]
    return narrowed[0] if len({one.task_type for one in narrowed}) == 1 else config


def check_places(asked: Sequence[Asked], *, source: Path | None, makes_folders: bool) -> None:
    """Before any work: a typo in -o must not cost a run. Raises ``InvalidRequest``."""
    from talkies.media.write.destination import check_writable

    for one in asked:
        uris = [c.uri for c in one.request.conditions]
        inputs = [Path(local_path(uri)) for uri in uris if not uri.startswith(("http", "data:"))]
        for path in one.paths:
            if makes_folders:
                path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(path, inputs=[*inputs, *([source] if source else [])])


def planned(config: EngineConfig, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """What ``--dry-run`` says of each. Reads their media and no weights; raises what is wrong with a request."""
    from talkies.engine.load.checkpoint import checkpoint_of

    known = checkpoint_of(config, headers_only=True)
    plans = []
    for one in asked:
        with blamed_on(one.name):
            plans.append(_planned(one, known.parts, known.limits))
    return plans


def _planned(one: Asked, parts: Parts, limits: Limits) -> dict[str, Any]:
    from talkies.capacity.demand import demand_of
    from talkies.engine.pipeline import path as pipeline

    geometry = pipeline.prepare_for(parts, limits, one.request).geometry
    demand = demand_of(one.request, limits)
    return {
        **one.where,
        "paths": [str(path) for path in one.paths],
        "prompt": one.request.prompt,
        "seed": one.request.seed,
        "task": str(one.request.resolved_task),
        "size": geometry.size,
        "frames": geometry.num_frames,
        "seconds": geometry.duration_s,
        "num_forwards": demand.num_forwards,
        "rows": demand.rows,
    }


def make(config: EngineConfig, one: Asked, *, json: bool, quiet: bool) -> None:
    """One request: what it raises ends the command."""
    from talkies.engine.engine import Engine
    from talkies.engine.pipeline import path as pipeline

    with cleans_up(), Bar(num_clips=1, quiet=json or quiet) as bar:
        prepared = pipeline.prepare_ahead(config, one.request)  # a typo must not cost minutes of loading
        engine = Engine.open_config(config)
        try:
            results = engine.render(one.request, one.paths, on_progress=bar.on_progress, prepared=prepared)
        finally:
            engine.close()
        faults = [faults_of(path) for path in one.paths]
    bar.clips(results, _notes(one.paths, faults))
    if json:
        told = [facts.result() | {"flags": flags} for facts, flags in zip(results, faults, strict=True)]
        print_json(told[0] if len(told) == 1 else {"outputs": told})


def make_all(config: EngineConfig, asked: Sequence[Asked], *, json: bool, quiet: bool, overwrite: bool) -> None:
    """A batch: under ``json`` a line for each clip, in order. Raises ``typer.Exit`` with the code of the first failure;
    nothing is made where a request is wrong."""
    from talkies.engine.engine import Engine
    from talkies.engine.load.checkpoint import parts_and_limits
    from talkies.engine.pipeline import path as pipeline
    from talkies.few_steps import in_use
    from talkies.files.location import hash_with, model_hash

    parts, limits = parts_and_limits(config)
    checkpoint = "" if overwrite else model_hash(parts.root)
    wanted: list[Asked] = []
    kept = 0
    for one in asked:
        with blamed_on(one.name):
            geometry = pipeline.prepare_for(parts, limits, one.request).geometry
        if not overwrite:
            used = in_use(one.request, limits.adapters)
            known = hash_with(checkpoint, [(each.facts.sha256, each.strength) for each in used])
            told = expected(one.request, geometry, parts, limits)
            if all(is_made(path, told, one.request, known) for path in one.paths):
                kept += 1
                if json:
                    print_json(one.where | {"path": str(one.paths[0]), "status": "kept"})
                continue
        wanted.append(one)
    failed: list[TalkiesError] = []
    if wanted:
        with cleans_up(), Bar(num_clips=len(wanted), quiet=json or quiet) as bar:
            engine = Engine.open_config(config)
            try:
                for one in wanted:
                    try:
                        results = engine.render(one.request, one.paths, on_progress=bar.on_progress)
                    except (Cancelled, WorkerDied):
                        raise
                    except TalkiesError as error:
                        failed.append(error)
                        said = one.where | {"path": str(one.paths[0]), "status": "failed", "error": as_json(error)}
                        if json:
                            print_json(said)
                        say_error(error, f"{one.paths[0]}: ")
                    else:
                        _tell(one, results, bar, json=json)
                    bar.clip_done()
            finally:
                engine.close()
    if not (json or quiet):
        made = len(wanted) - len(failed)
        Bar(num_clips=1, quiet=False).line(f"{len(asked)} clips: {made} made, {kept} kept, {len(failed)} failed")
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _tell(one: Asked, results: Sequence[Facts], bar: Bar, *, json: bool) -> None:
    faults = [faults_of(path) for path in one.paths]
    bar.clips(results, _notes(one.paths, faults))
    if json:
        for facts, flags in zip(results, faults, strict=True):
            print_json(one.where | {"status": "made"} | facts.result() | {"flags": flags})


def faults_of(path: Path) -> list[str]:
    """What ``talkies inspect`` finds wrong with the picture or the sound: silent, black, frozen or clipped."""
    from talkies.media.inspect.report import inspect

    return [flag for flag in inspect(path).flags if flag.partition(":")[0] in FAULTS]


def _notes(paths: Sequence[Path], faults: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"{path} is {', '.join(flags)} (see talkies inspect)"
        for path, flags in zip(paths, faults, strict=True)
        if flags
    ]
