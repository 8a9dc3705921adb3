"""Nothing lost, nothing twice: 60 jobs, 8 clients, cancels, bad requests, kill -9 of the worker and of the server.

    python -m bench.load [--jobs 60] [--clients 8] [--model FOLDER]

Drives a real ``talkies serve`` on loopback with short clips of the embedded checkpoint. One job in ten is deleted at a
random moment, two in ten are bad (an impossible size, a picture that cannot be read). A third of the
way the worker is killed, at two thirds the server, which is started again on the same folder. In the end every job
must be in the state its kind allows, each clip must be a whole file, and memory must be flat.
Writes bench/results/load-cpu.json; exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from bench.report import print_table, write_result

PROMPT = "a red ball bounces quickly on a dark background with a drum sound"
END = ("completed", "failed")
MOST_GROWTH_MIB = 100


class Server:
    """One ``talkies serve`` process on a fixed port and folder; can be killed and started again."""

    def __init__(self, folder: Path, model: str | None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "talkies", "serve", *([model] if model else [])]
        self.command += ["--port", str(self.port), "--data-dir", str(folder), "--max-queue", "1000"]
        self.log = (folder / "server.log").open("ab")
        self.process: Any = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, start_new_session=True)
        self.wait_ready()

    def wait_ready(self, timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if httpx.get(self.url + "/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise SystemExit("the server did not become ready")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def children(self) -> list[int]:
        """The worker's process and whatever it started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if int(stat[1]) == self.process.pid and b"spawn_main" in command:
                    found.append(int(entry.name))
        return found

    def rss_mib(self) -> float:
        total = 0
        for pid in (self.process.pid, *self.children()):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    total += int(line.split()[1])
        return total / 1024


def patient(call: Any) -> httpx.Response:
    """A client that tries again while the server is away, as a user's would."""
    for _ in range(600):
        try:
            answer = call()
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        if answer.status_code not in (429, 503):
            return answer
        time.sleep(0.2)
    raise SystemExit("the server stayed away")


def one_job(server: Server, index: int, kind: str, rng: random.Random) -> tuple[str, str, str | None]:
    """Returns (kind, how it ended, job id)."""
    body: dict[str, Any] = {"prompt": PROMPT, "num_frames": 22, "num_inference_steps": 6, "seed": index}
    if kind == "refused":
        body["size"] = "63x64"
    if kind == "unreadable":
        body["image_reference"] = {"image_url": "data:image/png;base64,AAAA"}
    key = {"Idempotency-Key": f"job-{index}"}  # a POST whose answer was lost is not a second job
    with httpx.Client(base_url=server.url, timeout=30) as client:
        posted = patient(lambda: client.post("/v1/videos", json=body, headers=key))
        if posted.status_code != 200:
            return kind, f"refused {posted.status_code}", None
        job = posted.json()["id"]
        delete_at = time.monotonic() + rng.uniform(0, 4) if kind == "cancelled" else None
        while True:
            if delete_at is not None and time.monotonic() >= delete_at:
                patient(lambda: client.delete(f"/v1/videos/{job}"))
                return kind, f"gone {patient(lambda: client.get(f'/v1/videos/{job}')).status_code}", job
            state = patient(lambda: client.get(f"/v1/videos/{job}"))
            if state.status_code != 200:
                return kind, f"lost {state.status_code}", job  # nobody deleted it
            status = state.json().get("status")
            if status in END:
                if status == "completed":
                    content = patient(lambda: client.get(f"/v1/videos/{job}/content")).content
                    return kind, "completed" if content[4:8] == b"ftyp" and len(content) > 5000 else "broken file", job
                return kind, "failed", job
            time.sleep(0.1)


EXPECTED = {
    "good": {"completed"},
    "cancelled": {"gone 404", "completed"},  # it may end before its moment comes
    "refused": {"refused 400"},
    "unreadable": {"refused 400", "failed"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model")
    args = parser.parse_args()
    rng = random.Random(0)
    kinds = ["cancelled" if i % 10 == 3 else "refused" if i % 10 == 6 else "unreadable" if i % 10 == 9 else "good"
             for i in range(args.jobs)]  # fmt: skip
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Server(Path(name), args.model)) as server:
        server.start()
        rss = {"start": server.rss_mib()}
        first = one_job(server, 10_000, "good", rng)  # the first clip allocates what stays
        rss["first_clip"] = server.rss_mib()
        begun = time.monotonic()
        ended: list[tuple[str, str, str | None]] = []
        lock = threading.Lock()

        def run(index: int) -> None:
            result = one_job(server, index, kinds[index], random.Random(index))
            with lock:
                ended.append(result)
                count = len(ended)
            if count == args.jobs // 3:
                for pid in server.children():
                    os.kill(pid, signal.SIGKILL)
            if count == args.jobs // 2:
                rss["middle"] = server.rss_mib()
            if count == 2 * args.jobs // 3:
                rss["before_restart"] = server.rss_mib()
                server.kill()
                server.start()
                rss["restart"] = server.rss_mib()

        with ThreadPoolExecutor(args.clients) as pool:
            list(pool.map(run, range(args.jobs)))
        took = time.monotonic() - begun
        rss["end"] = server.rss_mib()
        page = httpx.get(server.url + "/").status_code
        listed = [job["id"] for job in httpx.get(server.url + "/v1/videos", params={"limit": 100}).json()["data"]]

    # Over the whole run, from the fresh start: the first clip's share of it stands apart, and both kinds of process are
    # started anew on the way, so what either had taken before its end counts as well.
    growth = max(rss[name] for name in ("middle", "before_restart", "end")) - rss["start"]
    table = collections.Counter((kind, end) for kind, end, _ in ended)
    for (kind, end), count in sorted(table.items()):
        print(f"  {kind:<12} {end:<14} {count}")
    wrong = sum(end not in EXPECTED[kind] for kind, end, _ in ended)
    kept = {job for kind, end, job in [first, *ended] if job and not end.startswith("gone")}
    metrics = {
        "jobs": len(ended),
        "lost": len(kept - set(listed)),
        "duplicated": len(listed) - len(kept & set(listed)),  # clips that no client was told of
        "wrong_state": wrong,
        **{f"rss_{name}_mib": value for name, value in rss.items()},
        "rss_growth_mib": growth,
        "seconds": took,
    }
    checks = {
        "every_job_ended": len(ended) == args.jobs,
        "nothing_lost": metrics["lost"] == 0,
        "nothing_twice": metrics["duplicated"] == 0,
        "right_states": wrong == 0,
        "page_alive": page == 200,
        "memory_flat": growth < MOST_GROWTH_MIB,
    }
    print_table("load: worker and server killed on the way", metrics, {}, checks)
    write_result(
        "load", "cpu", shape={"jobs": args.jobs, "clients": args.clients}, metrics=metrics, peer={}, checks=checks
    )
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
