"""Faults that tests once did not notice, and the tests that do now: ``python -m tests.plant --named`` plants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.plant.faults import Fault


@dataclass(frozen=True, slots=True)
class Named:
    """``before`` stands once in the file below ``src/talkies``; ``tests`` are a file or more."""

    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def fault(self, root: Path) -> Fault:
        """Raises ``ValueError`` where the file has changed so that the fault has no place in it any more."""
        source = (root / self.path).read_bytes()
        before = self.before.encode()
        if source.count(before) != 1:
            raise ValueError(f"{self.path} has {source.count(before)} times {self.before!r}, not once")
        start = source.index(before)
        line = source.count(b"\n", 0, start) + 1
        return Fault(self.path, "named", line, start, start + len(before), self.after.encode())


def _named(path: str, before: str, after: str, *tests: str) -> Named:
    return Named(f"src/talkies/{path}", before, after, tuple(f"tests/{test}" for test in tests))


STREAM = "placement/stream/test_layerwise.py"
LANES = "placement/stream/test_lanes.py"
NAMED = (
    # A request on disk, and a server that ends.
    _named("engine/pipeline/resume.py",
           'save_file(tensors, aside, metadata={**self._identity(), "output": str(output)})\n'
           "            os.replace(aside, self.path)",
           'save_file(tensors, self.path, metadata={**self._identity(), "output": str(output)})',
           "engine/pipeline/test_resume.py"),
    _named("server/jobs/coordinator.py", "requeue_running(crashed=True)", "requeue_running(crashed=False)",
           "server/test_kill.py"),
    _named("server/jobs/store.py", "attempts = attempts + ?", "attempts = attempts + 0 * ?", "server/test_kill.py"),
    # Values.
    _named("codecs/video/vae.py", "logvar.clamp(-30.0, 20.0)", "logvar", "codecs/video/test_vae.py"),
    _named("codecs/video/vae.py", "logvar.clamp(-30.0,", "logvar.clamp(-60.0,", "codecs/video/test_vae.py"),
    _named("model/block.py", "config.qk_norm_eps", "config.norm_eps", "model/test_dit.py"),
    _named("model/dit.py", "c.rope_freq_dim, c.rope_theta", "c.rope_freq_dim, 10_000.0", "model/test_dit.py"),
    _named("h3/rope.py", "positions_S3.float()[:", "positions_S3[:", "h3/test_rope.py"),
    _named("h3/rope.py", ".flatten(1)", ".flatten(1).to(dtype)", "h3/test_rope.py"),
    _named("model/modulation.py", "torch.full((GROUP,)", "torch.full((1,)", "model/test_modulation.py"),
    # What a job holds.
    _named("engine/worker/loop.py", "        self._batcher.forget()\n", "", "engine/worker/test_loop.py"),
    _named("engine/worker/batching.py", "finished request stays here.\"\"\"\n        self._group = None",
           "finished request stays here.\"\"\"", "engine/worker/test_batching.py"),
    _named("capacity/admission.py", "1.5 * stage_bytes.window_bytes(sizes.video, demand)", "0",
           "capacity/test_admission.py"),
    _named("capacity/admission.py", "max(visiting + self.slack", "max(self.slack", "capacity/test_admission.py"),
    _named("capacity/price.py", "working + dit.visiting", "fixed + dit.visiting", "capacity/test_planner.py"),
    _named("capacity/price.py", "working + max(refiner", "fixed + max(refiner", "capacity/test_planner.py"),
    _named("capacity/price.py", "working + max(video.visiting", "fixed + max(video.visiting",
           "capacity/test_planner.py"),
    # Weights that are on their way.
    _named("placement/stream/layerwise.py", "            self._lane.acquire(slot)\n", "", STREAM),
    _named("placement/stream/layerwise.py", "self._lane.release(self._holds.index(index))", "pass", STREAM),
    _named("placement/stream/lanes.py",
           "torch.cuda.current_stream(self._device).wait_event(self._ready[slot])", "pass", LANES),
    _named("placement/stream/lanes.py", "self._stream.wait_event(self._free[slot])", "pass", LANES),
    _named("placement/stream/lanes.py", "self._ready[slot].record(self._stream)", "pass", LANES),
    _named("placement/stream/lanes.py",
           "self._stream.wait_stream(torch.cuda.current_stream(self._device))", "pass", LANES),
    _named("placement/stream/lanes.py",
           "torch.cuda.current_stream(self._device).wait_stream(self._stream)", "pass", LANES),
)  # fmt: skip
