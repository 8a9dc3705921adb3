"""What a user waits for on a CPU: the default clip in a warm process, as a command, and a server until it is ready.

    python -m bench.start [--runs 5] [--threads 2]

Seconds of such things say as much about the machine and what else it does as about the engine. So each is run in turn
with a yardstick in the same kind of process, and the figure is the median of the ratios: inside a warm process a fixed
loop of products of torch; beside a command and a server a Python process that imports torch and runs that loop once.
Seconds and the yardsticks' stand beside. Writes <out>/start-cpu.json.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from bench.load import PROMPT, Server
from bench.report import RESULTS, print_table, write_result
from talkies import Engine, VideoRequest
from talkies.media.inspect.report import inspect
from talkies.request import Target

LOOP = "x = torch.ones(512, 512)\nfor _ in range(200): x = x @ x.T / 512"  # 54 GFLOP, and ones stay ones
PROCESS = f"import torch\ntorch.set_num_threads({{threads}})\n{LOOP}"


def loop() -> None:
    exec(LOOP, {"torch": torch})


def process(threads: int) -> None:
    subprocess.run([sys.executable, "-c", PROCESS.format(threads=threads)], check=True)


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def in_turn(what: Callable[[], float], yardstick: Callable[[], object], runs: int) -> tuple[list[float], list[float]]:
    """Seconds of both. A yardstick is the mean of the ones before and after."""
    taken, around = [], [seconds(yardstick)]
    for _ in range(runs):
        taken.append(what())
        around.append(seconds(yardstick))
    return taken, [(a + b) / 2 for a, b in pairwise(around)]


def summary(name: str, taken: Sequence[float], yardstick: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_s": statistics.median(taken),
        f"{name}_yardstick_s": statistics.median(yardstick),
        f"{name}_over_yardstick": statistics.median(a / b for a, b in zip(taken, yardstick, strict=True)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the yardsticks' torch")
    parser.add_argument("--frames", type=int, help="of the clip; the checkpoint's default when absent")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    runs, threads = arguments.runs, arguments.threads
    metrics: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm_path, path = folder / "warm.mp4", folder / "command.mp4"
        engine = Engine.open()
        frames = arguments.frames or engine.limits.default_num_frames
        request = VideoRequest(prompt=PROMPT, seed=42, target=Target(num_frames=frames))

        def warm() -> float:
            engine.components._memo.clear()  # a repeated prompt must be encoded again
            return seconds(lambda: engine.render(request, [warm_path]))

        command = [sys.executable, "-m", "talkies", "generate", PROMPT, "--seed", "42", "--frames", str(frames)]
        command += ["-o", str(path)]

        def generate() -> float:
            return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))

        def serve() -> float:
            data = folder / f"server-{time.monotonic_ns()}"
            data.mkdir()
            with contextlib.closing(Server(data, None)) as server:
                return seconds(server.start)

        # Right before fast: both ways must make a whole clip, the same one.
        warm()
        generate()
        checks = {
            "command_writes_the_same_bytes": warm_path.read_bytes() == path.read_bytes(),
            "the_clip_has_picture_and_sound": inspect(path).flags == (),
        }
        if all(checks.values()):
            torch.set_num_threads(threads)
            metrics |= summary("warm_clip", *in_turn(warm, loop, runs))
            metrics |= summary("command", *in_turn(generate, lambda: process(threads), runs))
            metrics |= summary("server_ready", *in_turn(serve, lambda: process(threads), runs))
    shape = {"frames": frames, "runs": runs, "threads": threads, "yardstick": LOOP}
    print_table("what a user waits for, CPU", metrics, {}, checks)
    write_result("start", "cpu", shape=shape, metrics=metrics, peer={}, checks=checks, folder=arguments.out)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
