"""What is shipped is whole, and files for deployment name what exists: paths, flags, ports."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from configparser import RawConfigParser

import pytest
import typer

from talkies.cli import app
from tests.documents.blocks import ROOT, blocks

yaml = pytest.importorskip("yaml")  # transformers brings it
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPLOY = ROOT / "deploy"


def serve_flags():
    serve = typer.main.get_command(app).commands["serve"]
    return {flag for param in serve.params if param.param_type_name == "option" for flag in param.opts}


def flags_of(words):
    return {word for word in words if word.startswith("--")}


def test_an_sdist_holds_what_its_makefile_and_pages_name():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"Makefile", "constraints.txt", "src", "tests", "bench", "training", "docs", "examples"} <= set(included)
    assert [name for name in included if not (ROOT / name).exists()] == []
    named = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text())
    outside = [name for name in named if not name.startswith("http") and name.split("/")[0] not in included]
    assert outside == []


def test_links_of_readme_are_whole_on_pypi():
    text = (ROOT / "README.md").read_text()
    for one in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert [target for target in targets if target.count("https://") != 1] == []
    assert any(target.endswith("/raw/main/docs/img/clip.png") for target in targets)


def test_an_image_copies_what_is_there():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {PROJECT["project"]["license-files"][0], "src", "pyproject.toml", "README.md"} <= set(copied)
    assert json.loads(re.search(r"^CMD (\[.+\])$", text, re.MULTILINE)[1]) == ["serve"]


def test_the_unit_and_the_pod_give_flags_that_exist():
    unit = RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "talkies.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[1] == "serve"
    (pod,) = [yaml.safe_load(block.text) for block in blocks("yaml") if "Deployment" in block.text]
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "serve"
    assert flags_of(words) | flags_of(container["args"]) <= serve_flags()
    port = container["ports"][0]["containerPort"]
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        port
    }


def test_a_proxy_takes_bodies_as_large_as_the_server_does():
    serve = typer.main.get_command(app).commands["serve"]
    (limit,) = [param.default for param in serve.params if param.name == "max_body_mib"]
    assert f"client_max_body_size {limit}m;" in (DEPLOY / "nginx.conf").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_can_be_read_and_its_targets_exist(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs
    makefile = (ROOT / "Makefile").read_text()
    targets = [target for run in runs for target in re.findall(r"\bmake ([a-z-]+)", run)]
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_page_of_installing_names_the_torch_of_the_constraints():
    pinned = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    assert set(re.findall(r"torch==\S+", (ROOT / "docs" / "start" / "install.md").read_text())) == {pinned}
