"""Hostile forms against the whole application: refused in the error shape, never a 5xx, never a file left behind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from talkies.errors import InvalidRequest
from talkies.server.app import create_app
from talkies.server.config import ServerConfig
from talkies.server.intake.body import MAX_FOLD_DEPTH, fold
from tests.fuzzing import FUZZ_SECONDS
from tests.server.fakes import FakeService

NAMES = [
    "prompt", "seed", "size", "seconds", "extra_params", "extra_params[task]", "extra_params[frame_indices][]",
    "conditions[][type]", "conditions[0][uri]", "conditions[9999][uri]", "input_reference", "input_references",
    "input_references[]", "image_reference", "image_reference[image_url]", "lora", "[]", "][", "a[b", "a]b[",
    "prompt[]", "prompt[x]", "", "__proto__", "extra_params[a][b][c][d][e]", "x" * 300,
]  # fmt: skip
name = st.one_of(st.sampled_from(NAMES), st.text(max_size=40))
value = st.one_of(
    st.sampled_from(
        ["", "a ball", "{}", "[]", "{", '{"a":', "[" * 2000, '{"a":' * 500, "1e999", "NaN", "-0", "9" * 400]
    ),
    st.text(max_size=60),
    st.binary(max_size=60),
)
pairs = st.lists(st.tuples(name, value), max_size=12)


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        service = FakeService(step_s=0.0)
        app = create_app(service, ServerConfig(data_dir=Path(folder), max_queue=100_000))
        app.state.coordinator.start()
        import anyio

        async def limiter() -> Any:
            return anyio.CapacityLimiter(4)

        app.state.intake = asyncio.run(limiter())
        yield app
        app.state.coordinator.close()


def post(app: Any, content: bytes, content_type: str) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/v1/videos", content=content, headers={"Content-Type": content_type})

    return asyncio.run(go())


def judge(app: Any, answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code", "status"}
        assert len(answer.content) < 20_000  # a hostile value is not sent back whole
        uploads = app.state.coordinator.config.uploads
        assert not uploads.exists() or not [p for p in uploads.rglob("*") if p.is_file()]


def raw(item: str | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=pairs, named=st.booleans(), cut=st.integers(0, 60), end=st.booleans())
@example(fields=[("prompt", "a"), ("prompt", "b")], named=False, cut=0, end=True)
@example(fields=[("prompt", "a"), ("input_reference", b"\0" * 60)], named=True, cut=0, end=True)
@example(fields=[("prompt", "a"), ("flow_shift", "1\x1d")], named=False, cut=0, end=True)
@example(fields=[("prompt", "a"), ("seed", "\x1c0")], named=False, cut=0, end=True)  # a space to re, not to int()
def test_multipart(app: Any, fields: list[tuple[str, str | bytes]], named: bool, cut: int, end: bool) -> None:
    body = b""
    for key, item in fields:
        body += b'--x\r\nContent-Disposition: form-data; name="' + raw(key) + b'"'
        body += b'; filename="../../../tmp/evil.png"\r\nContent-Type: image/png' if named else b""
        body += b"\r\n\r\n" + raw(item) + b"\r\n"
    body += b"--x--\r\n" if end else b""
    judge(app, post(app, body[: len(body) - cut] if cut else body, "multipart/form-data; boundary=x"))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.one_of(st.binary(max_size=400), pairs.map(lambda ps: b"&".join(raw(k) + b"=" + raw(v) for k, v in ps))))
@example(body=b"&" * 5000)
@example(body=b"prompt=" + b"%" * 3000)
def test_urlencoded(app: Any, body: bytes) -> None:
    judge(app, post(app, body, "application/x-www-form-urlencoded"))


MEDIA_TYPES = [
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=" + "b" * 5000,
    'multipart/form-data; boundary="x',
    "application/json",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300), kind=st.sampled_from(MEDIA_TYPES))
@example(body=b"[" * 100_000, kind="application/json")
@example(body=b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", kind="application/json")
def test_broken_bodies(app: Any, body: bytes, kind: str) -> None:
    judge(app, post(app, body, kind))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(name, st.text(max_size=10)), max_size=30))
def test_folding_gives_nested_values_or_one_refusal(items: list[tuple[str, str]]) -> None:
    try:
        folded = fold(items)
    except InvalidRequest:
        return
    assert depth(folded) <= MAX_FOLD_DEPTH + 2


def depth(item: Any) -> int:
    inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return 1 + max((depth(i) for i in inner), default=0)


@pytest.mark.slow
@pytest.mark.timeout(FUZZ_SECONDS + 300)
def test_hostile_forms_for_a_while(app: Any) -> None:
    """The same properties, for FUZZ_SECONDS; memory must not grow with the bodies."""
    import resource
    import time

    begun, first = time.monotonic(), 0

    @settings(max_examples=400, deadline=None, database=None)
    @given(fields=pairs, named=st.booleans(), cut=st.integers(0, 60), end=st.booleans())
    def multipart(fields: list[tuple[str, str | bytes]], named: bool, cut: int, end: bool) -> None:
        test_multipart.hypothesis.inner_test(app, fields, named, cut, end)

    while not first or time.monotonic() - begun < FUZZ_SECONDS:
        multipart()
        if not first and time.monotonic() - begun > FUZZ_SECONDS / 3:
            first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first < 64 << 10
