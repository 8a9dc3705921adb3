"""Predicted memory against what torch records, and what follows from it: refusals, waiting, budgets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from talkies import Engine
from talkies.capacity import stage_bytes
from talkies.capacity.admission import MemoryModel, Visits
from talkies.capacity.admission import check_fits as check_fits_of
from talkies.capacity.demand import demand_of
from talkies.capacity.forward_bytes import forward_rates
from talkies.capacity.sizes import Sizes
from talkies.capacity.stage_bytes import forward_bytes
from talkies.engine.load.tables import MAX_TABLES
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker import memory_model as footprint
from talkies.errors import ConfigError, InvalidRequest
from talkies.h3.config import DiTConfig
from talkies.media.write.mp4 import write_mp4
from talkies.model.chunking import Chunking
from talkies.request import Condition, Target, VideoRequest
from tests.capacity.media_files import MediaFiles
from tests.capacity.memory_meter import peak_and_kept_bytes, peak_bytes

MIB = 1 << 20


@pytest.fixture(scope="module")
def engine(tiny_folder):
    return Engine.open(tiny_folder, threads=1)


@pytest.fixture(scope="module")
def model(engine):
    return footprint.measure(engine.components)


def request(num_frames=22, width=64, height=64, **changes):
    target = Target(num_frames=num_frames, width=width, height=height)
    return VideoRequest(**{"prompt": "a ball", "num_sigmas": 3, "target": target, **changes})


def need_of(model, wanted, limits):
    return model.need(demand_of(wanted, limits))


def check_fits(model, wanted, limits):
    check_fits_of(model, wanted, demand_of(wanted, limits), limits)


@pytest.mark.parametrize(("frames", "width", "height"), [(22, 64, 64), (56, 96, 64), (124, 64, 96), (362, 96, 64)])
def test_no_unit_takes_more_than_was_predicted_nor_far_less(engine, model, frames, width, height):
    """Too little would break the promise; several times too much would refuse what fits."""
    c, wanted = engine.components, request(frames, width, height)
    state = pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, wanted)))
    peaks = [peak_bytes(lambda: denoise_step(c, state)), peak_bytes(lambda: pipeline.decode_audio(c, state))]
    peaks.append(peak_bytes(lambda: [None for _ in pipeline.decode_video(c, state)]))
    need = need_of(model, wanted, c.limits)
    assert max(peaks) <= need.transient <= 3 * max(peaks)


@pytest.mark.slow
@pytest.mark.parametrize(("frames", "width", "height"), [(22, 64, 64), (124, 96, 64), (124, 144, 64)])
def test_the_embedded_model_keeps_to_its_prediction(embedded_engine, frames, width, height):
    c, wanted = embedded_engine.components, request(frames, width, height)
    model = footprint.measure(c)
    state = pipeline.pack(c, pipeline.encode(c, pipeline.prepare(c, wanted)))
    peaks = [peak_bytes(lambda: denoise_step(c, state)), peak_bytes(lambda: pipeline.decode_audio(c, state))]
    peaks.append(peak_bytes(lambda: [None for _ in pipeline.decode_video(c, state)]))
    need = need_of(model, wanted, c.limits)
    assert max(peaks) <= need.transient <= 3 * max(peaks)


def test_the_modulation_of_a_request_is_counted_while_it_is_held(engine, model):
    c = engine.components
    held = {n: need_of(model, request(num_sigmas=n), c.limits).held for n in (3, 21, 200)}
    for n in (21, 200):
        prepared = pipeline.prepare(c, request(num_sigmas=n))
        state = pipeline.pack(c, pipeline.encode(c, prepared))
        assert state.table.all_steps_bytes <= held[n] - held[3] + 3 * stage_bytes.step_modulation_bytes(
            model.sizes, demand_of(request(), c.limits)
        )
    assert need_of(replace(model, whole_modulation=0), request(num_sigmas=200), c.limits).held == held[3]


def test_a_ladder_is_counted_by_its_points(model, engine):
    ladder = tuple(i / 20 for i in range(20, -1, -1))
    limits = engine.components.limits
    assert need_of(model, request(num_sigmas=None, sigmas=ladder), limits) == need_of(
        model, request(num_sigmas=21), limits
    )


def test_tables_of_long_schedules_take_no_more_than_was_kept_for_tables(engine):
    c = engine.components
    kept = c.tables._tables
    kept.clear()
    encoded = pipeline.encode(c, pipeline.prepare(c, request()))
    for i in range(10):
        wanted = request(num_sigmas=200, video_shift=2.0 + i)
        pipeline.pack(c, replace(encoded, prepared=replace(encoded.prepared, request=wanted), refined=[]))
        assert (
            sum(table.num_bytes for table in c.tables._tables.values()) <= c.tables.max_bytes
            or len(c.tables._tables) == 1
        )
    for i in range(10):
        wanted = request(num_sigmas=c.limits.default_num_sigmas, video_shift=2.0 + i)
        pipeline.pack(c, replace(encoded, prepared=replace(encoded.prepared, request=wanted), refined=[]))
    assert len(kept) == MAX_TABLES


def test_references_are_counted_by_their_own_size(engine, model, tmp_path):
    c, limits = engine.components, replace(engine.limits, tasks=("t2va", "fl2va", "ref2va"))
    frames = np.zeros((39, 64, 96, 3), np.uint8)
    write_mp4(tmp_path / "v.mp4", frames, np.zeros((2, 39 * 32_000 // 24), np.float32))
    Image.new("RGB", (128, 64)).save(tmp_path / "p.png")
    video = Condition(kind="video", uri=str(tmp_path / "v.mp4"))
    picture = Condition(kind="image", uri=str(tmp_path / "p.png"))
    wanted = request(56, 96, 64, conditions=(video, picture))
    demand = demand_of(wanted, limits)
    clip, still = demand.conditions
    assert (clip.width, clip.height, clip.num_frames, clip.latent_frames) == (96, 64, 39, 12)
    assert (still.width, still.height, still.num_frames) == (128, 64, 1)
    alone = request(56, 96, 64)
    added = demand.rows - demand_of(alone, limits).rows
    assert added == 12 * 3 * 2 + 2 * clip.audio_latents + 4 * 2 + clip.text_tokens + still.text_tokens
    assert need_of(model, wanted, limits).held > need_of(model, alone, limits).held
    assert peak_bytes(lambda: c.video.encode(torch.from_numpy(frames))) <= need_of(model, wanted, limits).transient
    far = request(56, 96, 64, conditions=(Condition(kind="video", uri="https://example.com/v.mp4"),))
    assert need_of(model, far, limits).held > need_of(model, replace_conditions(wanted, video), limits).held


def replace_conditions(wanted, *conditions):
    return wanted.replace(conditions=conditions)


KINDS = {
    "words": lambda files: (),
    "first": lambda files: (Condition(kind="image", uri=files.picture(120, 80), role="first"),),
    "both": lambda files: tuple(
        Condition(kind="image", uri=files.picture(120, 80), role=role) for role in ("first", "last")
    ),
    "pictures": lambda files: tuple(Condition(kind="image", uri=files.picture(60, 60 + 40 * i)) for i in range(4)),
    "video": lambda files: (Condition(kind="video", uri=files.video(96, 64, 45, 1.5)),),
    "picture and sounds": lambda files: (
        Condition(kind="image", uri=files.picture(60, 60)),
        *(Condition(kind="audio", uri=files.sound(n, 44_100)) for n in (20_000, 55_555)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("frames", "width", "height"), [(22, 64, 64), (56, 96, 64)])
def test_no_task_takes_or_keeps_more_than_was_predicted(tiny_ref_components, tmp_path, kind, frames, width, height):
    """Every unit of a job: the text with its pictures, each condition, packing, a forward, sound and frames."""
    c = tiny_ref_components
    wanted = request(frames, width, height, conditions=KINDS[kind](MediaFiles(tmp_path)))
    demand = demand_of(wanted, c.limits, count_tokens=c.text.tokenizer.count)
    prepared = pipeline.prepare(c, wanted)
    parts, encoded = pipeline.encode_by_parts(c, prepared), []

    def unit():
        try:
            next(parts)
        except StopIteration as end:
            encoded.append(end.value)

    peaks = []
    while not encoded:
        peaks.append(peak_bytes(unit))
    pipeline.pack(c, encoded[0])  # the table of a schedule is kept for other requests, too
    encoded[0].refined.clear()
    made = []
    packing, kept = peak_and_kept_bytes(lambda: made.append(pipeline.pack(c, encoded[0])))
    state = made[0]
    assert state.num_rows == demand.rows
    peaks.append(peak_bytes(lambda: denoise_step(c, state)))
    peaks.append(peak_bytes(lambda: pipeline.decode_audio(c, state)))
    peaks.append(peak_bytes(lambda: [None for _ in pipeline.decode_video(c, state)]))
    need = footprint.measure(c).need(demand)
    assert max(peaks) <= need.transient <= 3 * max(peaks)
    assert kept <= need.held
    assert packing <= need.peak


def test_a_clip_that_cannot_fit_is_refused_with_what_would(engine, model):
    limits = engine.limits
    long = request(124, 96, 64)
    tight = replace(model, room=need_of(model, request(90, 96, 64), limits).peak, budget=900 * MIB)
    with pytest.raises(InvalidRequest) as caught:
        check_fits(tight, long, limits)
    error = caught.value
    assert error.param == "num_frames"
    assert "num_frames=124" in error.message
    assert "900 MiB (--ram-budget)" in error.message
    assert "at most 90 frames" in error.hint
    check_fits(tight, request(90, 96, 64), limits)
    in_seconds = long.replace(target=Target(seconds=5, width=96, height=64))
    with pytest.raises(InvalidRequest, match="seconds=5") as caught:
        check_fits(tight, in_seconds, limits)
    assert caught.value.param == "seconds"
    tiny = replace(model, room=need_of(model, request(22, 32, 32), limits).peak)
    with pytest.raises(InvalidRequest, match="size=96x64") as caught:
        check_fits(tiny, request(22, 96, 64), limits)
    assert "32x32 with 22 frames would fit" in caught.value.hint
    many = request(22, 64, 64, conditions=(Condition(kind="image", uri="https://x/a.png", role="first"),))
    roomy = replace(model, room=need_of(model, request(22, 64, 64), limits).peak)
    with pytest.raises(InvalidRequest, match="1 references") as caught:
        check_fits(roomy, many, limits)
    assert caught.value.param == "conditions"
    check_fits(replace(model, room=None), long, limits)
    check_fits(None, long, limits)


def test_a_budget_is_a_promise_or_a_refusal_to_start(engine):
    c = engine.components
    with pytest.raises(ConfigError, match="--ram-budget of 64 MiB leaves 0 MiB") as caught:
        footprint.measure(c, ram_budget=64 * MIB)
    enough = int(caught.value.hint.removeprefix("use at least ").removesuffix("MiB"))
    assert footprint.measure(c, ram_budget=(enough + 64) * MIB).room > 0
    with pytest.raises(ConfigError, match="--vram-budget has no meaning on cpu"):
        footprint.measure(c, vram_budget=64 * MIB)


def test_without_a_budget_the_room_is_what_the_machine_has_left(engine, model, monkeypatch):
    assert model.budget is None
    monkeypatch.setattr(footprint, "free_ram_bytes", lambda: 4096 * MIB)
    before = footprint.measure(engine.components).room
    monkeypatch.setattr(footprint, "free_ram_bytes", lambda: 2048 * MIB)
    assert before - footprint.measure(engine.components).room == int(0.9 * 2048 * MIB)
    monkeypatch.setattr(footprint, "free_ram_bytes", lambda: None)
    assert footprint.measure(engine.components).room is None


def test_the_model_crosses_to_the_server(model):
    import pickle

    assert pickle.loads(pickle.dumps(model)) == model
    assert isinstance(model, MemoryModel)


def test_the_margin_is_kept_on_what_is_held_and_on_what_comes_and_goes(model, engine):
    bare, doubled = (need_of(replace(model, slack=slack), request(), engine.limits) for slack in (1.0, 2.0))
    assert doubled.held == pytest.approx(2 * bare.held, rel=1e-6)
    assert doubled.transient == pytest.approx(2 * bare.transient, rel=1e-6)


def test_weights_that_visit_are_counted_with_their_stage_and_without_slack(model, engine):
    limits, wanted = engine.limits, request()
    plain = need_of(model, wanted, limits)
    small = replace(model, visits=Visits(text=1))
    assert need_of(small, wanted, limits).transient == plain.transient  # the largest stage is another one
    # Two sizes that both make this stage the largest: what is between them is the weights alone, not times the slack.
    big, bigger = (
        need_of(replace(model, visits=Visits(decode=n), slack=2.0), wanted, limits) for n in (10**12, 10**13)
    )
    assert bigger.transient - big.transient == 9 * 10**12
    assert 10**12 < big.transient <= 10**12 + 2 * plain.transient
    big = replace(model, visits=Visits(decode=10**12))
    assert need_of(big, wanted, limits).held == plain.held


def test_a_clip_is_admitted_by_what_its_plan_counted(model, engine):
    """Chunked and in fp8, as the planner has it: the formula of a CPU would refuse what a plan promised."""
    rates = forward_rates(DiTConfig(), 2, Chunking(mlp_rows=8192, head_groups=2))
    chunked = replace(model, forward=rates, slack=1.0)
    rows = demand_of(request(124, 96, 64), engine.limits).rows
    assert forward_bytes(Sizes(), 58_758, Chunking(mlp_rows=8192, head_groups=2)) == round(rates.bytes(58_758))
    assert need_of(chunked, request(124, 96, 64), engine.limits).transient >= 0.99 * rates.bytes(rows)


def test_what_a_job_holds_in_host_memory_by_hand(model, engine):
    """Twelve bytes a pixel of a decoded window, half of it again while the next is begun; three copies of the sound in
    float32 and two channels; and 225 bytes a pixel of the writer."""
    exact = replace(model, slack=1.0)
    demand = demand_of(request(56, 96, 64), engine.limits)
    window = 12 * model.sizes.video.window_frames * 96 * 64
    sound = 3 * 2 * 4 * demand.target.num_samples
    packed = stage_bytes.held_bytes(model.sizes, demand, whole_modulation=model.whole_modulation)
    assert exact.need(demand).held == packed + 1.5 * window + sound + 225 * 96 * 64


@pytest.mark.parametrize("stage", ["denoise", "text", "decode", "encode", "sound"])
def test_weights_that_visit_are_added_to_the_bytes_of_their_own_stage(model, engine, stage, tmp_path):
    Image.new("RGB", (96, 64)).save(tmp_path / "p.png")
    still = Condition(kind="image", uri=str(tmp_path / "p.png"), role="first")
    demand = demand_of(request(22, 96, 64, conditions=(still,)), engine.limits)
    works = {
        "denoise": model.forward.bytes(demand.rows),
        "text": stage_bytes.text_bytes(model.sizes, demand, fp8=model.fp8_text),
        "decode": stage_bytes.decode_bytes(model.sizes, demand),
        "encode": stage_bytes.condition_bytes(model.sizes, demand.conditions[0]),
        "sound": stage_bytes.sound_bytes(model.sizes, demand),
    }
    visited = replace(model, slack=1.0, visits=Visits(**{stage: 10**12}))
    assert visited.need(demand).transient == round(10**12 + works[stage])
