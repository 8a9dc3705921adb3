"""Which tests are about which room, fastest first. A fault is given to the test file that mirrors its file, then to the
folders of its room, in this order; the first failure ends it."""

from __future__ import annotations

from pathlib import Path

SOURCE, TESTS = "src/talkies", "tests"
ROOMS: dict[str, tuple[str, ...]] = {
    "sampling": ("tests/sampling", "tests/parity/test_schedule.py"),
    "stepcache": ("tests/stepcache",),
    "h3": ("tests/h3", "tests/model"),
    "model": ("tests/model", "tests/parity/test_dit_forward.py"),
    "kernels": ("tests/kernels",),
    "attention": ("tests/attention", "tests/kernels/test_qkv_ops.py"),
    "files": ("tests/files",),
    "placement": ("tests/placement",),
    "capacity": ("tests/capacity",),
    "codecs": (
        "tests/codecs",
        "tests/parity/test_release_defaults.py",
        "tests/parity/test_audio_vae.py",
        "tests/parity/test_video_vae.py",
    ),
    "media": ("tests/media",),
    "engine": ("tests/engine",),
    "server": ("tests/server",),
}
# What no test on a CPU runs: Triton kernels without Triton, and code of one make of GPU.
NOT_ON_A_CPU = ("triton.py", "device.py", "launch.py", "flash4.py", "sage.py", "flex.py", "measure.py")


def files_of(root: Path, room: str) -> list[str]:
    """The room's files that a CPU runs, as paths from ``root``, sorted."""
    folder = root / SOURCE / room
    return sorted(p.relative_to(root).as_posix() for p in folder.rglob("*.py") if p.name not in NOT_ON_A_CPU)


def stages_of(root: Path, room: str, path: str) -> list[tuple[str, ...]]:
    """Tests for a fault in ``path``, in runs: its mirror, its own folder of tests, then the rest of the room's."""
    inside = Path(path).relative_to(SOURCE)
    folder = Path(TESTS) / inside.parent
    mirror = folder / f"test_{inside.name}"
    first = (mirror.as_posix(),) if (root / mirror).is_file() else ()
    nested = (folder.as_posix(),) if len(inside.parts) > 2 and (root / folder).is_dir() else ()
    return [stage for stage in (first, nested, *((folder,) for folder in ROOMS[room])) if stage]
