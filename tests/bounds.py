"""Runs the tests of a room with the newest and the oldest release of each package that pyproject.toml admits.

    python tests/bounds.py [--python EXE] [--venv FOLDER] [--only av,torch] [--ends newest]

One virtual environment, without the constraints file: first as pip resolves it, which is the newest of everything, then
with one package at a time at its lower bound and what that release itself asks for. Prints the rows of the table in
docs/compatibility.md (Versions); exit code 1 if a row fails. torch comes last: it is gigabytes, and nothing follows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVER = [
    "tests/server/intake/test_body.py",
    "tests/server/intake/test_schema_fuzz.py",
    "tests/server/jobs/test_lifecycle.py",
    "tests/server/test_refusals.py",
    "tests/server/test_api_page.py",
]
# What uses a package most, kept to about a minute each.
ROOMS = {
    "av": ["tests/media/read", "tests/media/write", "tests/media/inspect"],
    "fastapi": SERVER,
    "pydantic": SERVER,
    "transformers": ["tests/codecs/text", "tests/parity/test_text_encoder.py"],
    "diffusers": [
        "tests/codecs/video",
        "tests/codecs/audio",
        "tests/parity/test_video_vae.py",
        "tests/parity/test_audio_vae.py",
    ],
    "torch": ["tests/model", "tests/kernels/test_ops.py", "tests/attention/test_backends.py"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv-bounds", help="made if absent, else brought up to date"
    )
    parser.add_argument("--only", default=",".join(ROOMS), help="packages, with commas between")
    parser.add_argument("--ends", default="newest,oldest", help="of the admitted releases")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - ROOMS.keys():
        parser.error(f"no room is known for {', '.join(sorted(unknown))}; one of {', '.join(ROOMS)}")
    environment = Environment(asked.venv, asked.python)
    rows = [environment.row(name, "newest") for name in names] if "newest" in asked.ends else []
    if "oldest" in asked.ends:
        newest = environment.installed()
        for name in names:
            environment.pip("install", "-qq", f"{name}=={environment.oldest(name)}")
            rows.append(environment.row(name, "oldest"))
            if name != names[-1]:
                environment.pip("install", "-qq", *(f"{other}=={version}" for other, version in newest.items()))
    print("\n| Python | package | release | tests | result |\n|---|---|---|---|---|")
    print("\n".join(line for line, _ in rows))
    return 0 if all(passed for _, passed in rows) else 1


class Environment:
    """A virtual environment with talkies in it, from this checkout."""

    def __init__(self, folder: Path, python: str) -> None:
        self._python = folder / "bin" / "python"
        if not self._python.exists():
            subprocess.run([python, "-m", "venv", folder], check=True)
        self.pip("install", "-qq", "--upgrade", "--upgrade-strategy", "eager", "-e", f"{ROOT}[test]")
        self._admitted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
        self._release = self._run("import platform; print(platform.python_version())").strip()

    def pip(self, *words: str) -> str:
        """What pip prints. Without constraints of any kind: a newcomer has none."""
        bare = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        command = [str(self._python), "-m", "pip", "--disable-pip-version-check", *words]
        return subprocess.run(command, env=bare, check=True, stdout=subprocess.PIPE, text=True).stdout

    def installed(self) -> dict[str, str]:
        """Releases by name, without talkies itself."""
        listed = json.loads(self.pip("list", "--format", "json", "--exclude-editable"))
        return {each["name"]: each["version"] for each in listed if each["name"] != "pip"}

    def oldest(self, name: str) -> str:
        """The lowest release that pyproject.toml admits and that has a wheel for this Python."""
        known = self.pip("index", "versions", name)
        versions = re.search(r"Available versions: (.+)", known)
        if versions is None:
            raise SystemExit(f"pip lists no release of {name}: {known}")
        choose = (
            "import sys; from packaging.requirements import Requirement; from packaging.version import Version\n"
            "admitted = next(r for r in map(Requirement, sys.argv[3:]) if r.name == sys.argv[1]).specifier\n"
            "print(min((v for v in sys.argv[2].split(', ') if admitted.contains(v)), key=Version))"
        )
        return self._run(choose, name, versions[1], *self._admitted).strip()

    def row(self, name: str, which: str) -> tuple[str, bool]:
        """A line of the table, and whether all tests passed."""
        version = self._run("import sys, importlib.metadata as m; print(m.version(sys.argv[1]))", name).strip()
        command = [
            str(self._python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not bench and not gpu",
        ]
        environ = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*command, *ROOMS[name]], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        summary = re.sub(r" in [\d.]+s.*", "", done.stdout.strip().splitlines()[-1])
        if done.returncode:
            print(done.stdout)
        if done.returncode < 0:
            summary = f"the process crashed: signal {-done.returncode}"
        folders = ", ".join(dict.fromkeys(path.removeprefix("tests/").split("/")[0] for path in ROOMS[name]))
        line = f"| {self._release} | {name} | {version} ({which}) | {folders} | {summary} |"
        print(line, flush=True)
        return line, done.returncode == 0

    def _run(self, code: str, *words: str) -> str:
        return subprocess.run(
            [str(self._python), "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout


if __name__ == "__main__":
    sys.exit(main())
