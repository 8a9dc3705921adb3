"""What is counted of a request against the layout that is packed for it, for every task and kind of condition."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talkies.capacity import cost, hardware
from talkies.capacity import headers as headers_module
from talkies.capacity.demand import demand_of, estimated_tokens, of_clip
from talkies.capacity.planner import make_plan
from talkies.codecs.memo import Memo
from talkies.engine.load.planning import sizes_of
from talkies.engine.pipeline import path as pipeline
from talkies.errors import InvalidRequest
from talkies.h3.geometry import Limits
from talkies.h3.layout import Role
from talkies.media.read.probe import probe
from talkies.request import Condition, Target, VideoRequest
from tests.capacity.media_files import MediaFiles

RELEASED = Limits(tasks=("t2va", "fl2va", "ref2va"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return MediaFiles(tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="module")
def hollow(embedded_engine):
    """The embedded checkpoint whose encoders give zeros of the right shape: layouts only follow from sizes.

    ``seen`` are the patch rows that reached the text encoder.
    """
    c = embedded_engine.components
    seen = []

    def text(presentation, images, videos):
        seen.append(images.shape[0] + videos.shape[0])
        return torch.zeros(len(presentation), c.dits["fl2va"].config.text_dim)

    def clip(pixels):
        _, _, frames, height, width = pixels.shape
        side, factor = c.video.config.spatial_factor, c.video.config.temporal.factor
        channels = 2 * c.video.config.latent_channels
        return torch.zeros(1, channels, -(-frames // factor), height // side, width // side)

    def sound(wave):
        config = c.audio.config
        return torch.zeros(2, config.latent_channels, -(-wave.shape[1] // config.hop))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c, "_memo", Memo(64 << 20))
        patch.setattr(c.text.encoder, "run", text)
        patch.setattr(c.video, "load_encoder", lambda: None)
        patch.setattr(c.video, "_encode_clip", clip)
        patch.setattr(c.audio, "encode", sound)
        yield c, seen


def packed(components, request):
    return pipeline.pack(components, pipeline.encode(components, pipeline.prepare(components, request)))


def check(components, request):
    """Compares role by role. Returns the demand."""
    state = packed(components, request)
    layout, geometry = state.layout, state.geometry
    demand = demand_of(request, components.limits, count_tokens=components.text.tokenizer.count)
    assert demand.target == geometry
    assert demand.num_forwards == state.num_forwards
    roles = {
        Role.TEXT: demand.text_tokens,
        Role.VIDEO_CONDITION: demand.condition_video_rows,
        Role.AUDIO_CONDITION: demand.condition_audio_rows,
        Role.VIDEO_TARGET: demand.target.video_rows,
        Role.AUDIO_TARGET: demand.target.audio_rows,
    }
    packed_rows = {role: sum(s.stop - s.start for s in layout.segments if s.role is role) for role in Role}
    packed_rows[Role.VIDEO_TARGET] += packed_rows.pop(Role.VIDEO_LOCKED)  # given or made, they are the target's
    packed_rows[Role.AUDIO_TARGET] += packed_rows.pop(Role.AUDIO_LOCKED)
    assert roles == packed_rows
    assert demand.rows == layout.num_rows
    estimate = demand_of(request, components.limits)
    assert estimate.rows - estimate.text_tokens == demand.rows - demand.text_tokens
    assert estimate.vision_patches == demand.vision_patches
    return demand


lengths = st.sampled_from([22, 39, 56, 73])
targets = st.builds(
    lambda frames, side: Target(num_frames=frames, aspect=side), lengths, st.sampled_from([None, "1:1", "21:9", "9:16"])
)
explicit = st.builds(
    lambda w, h, n: Target(width=16 * w, height=16 * h, num_frames=n), st.integers(3, 9), st.integers(3, 6), lengths
).filter(lambda t: t.width * t.height <= 9216)
sides = st.tuples(st.integers(40, 400), st.integers(40, 400)).filter(lambda s: max(s) <= 4 * min(s))
stretches = st.sampled_from([(64, 64, 30), (96, 64, 45), (48, 96, 22), (176, 64, 80)])
sounds = st.sampled_from([(55_555, 44_100), (8_001, 8_000), (200_000, 48_000), (33_000, 32_000)])


@st.composite
def requests(draw, files):
    """Of every task; files are made as they are asked for."""
    conditions = []
    task = draw(st.sampled_from(["t2va", "first", "last", "both", "ref2va"]))
    if task == "ref2va":
        kinds = draw(st.lists(st.sampled_from(["image", "video", "silent", "audio"]), min_size=1, max_size=4))
        kinds = ["image", *kinds] if set(kinds) == {"audio"} else kinds
        assert kinds.count("audio") <= 4
        for kind in kinds:
            conditions.append(draw(references(files, kind)))
        conditions = _within_limits(conditions)
    elif task != "t2va":
        for role in ("first", "last") if task == "both" else (task,):
            conditions.append(Condition(kind="image", uri=files.picture(*draw(sides)), role=role))
    conditions += draw(st.sampled_from(locks(files, with_footage=task in ("t2va", "ref2va"))))
    return VideoRequest(
        prompt=draw(st.sampled_from(["a red ball rolls left", "hi", "a blue box hits the wall. " * 8])),
        num_sigmas=draw(st.integers(2, 5)),
        target=draw(targets | explicit),
        conditions=tuple(conditions),
    )


def locks(files, *, with_footage):
    """None, and what goes with any task or with all but keyframes; each as long as the longest clip of this page."""
    sound = Condition(kind="audio", uri=files.sound(200_000, 48_000), role="soundtrack")
    film = Condition(kind="video", uri=files.video(64, 64, 80), role="footage", end_time_s=0.5)
    return [[], [sound], *([[film], [film, sound]] if with_footage else [])]


@st.composite
def references(draw, files, kind):
    if kind == "image":
        return Condition(kind="image", uri=files.picture(*draw(sides)))
    if kind == "audio":
        return Condition(kind="audio", uri=files.sound(*draw(sounds)))
    sound_s = None if kind == "silent" else draw(st.sampled_from([0.4, 1.5, 3.0]))
    width, height, frames = draw(stretches)
    start = draw(st.sampled_from([0.0, 0.25]))
    return Condition(kind="video", uri=files.video(width, height, frames + 6, sound_s), start_time_s=start)


def _within_limits(conditions):
    kept = []
    for condition in conditions:
        if sum(c.kind == condition.kind for c in kept) < 3:
            kept.append(condition)
    return kept


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_rows_are_those_of_the_packed_layout(data, hollow, files):
    components, seen = hollow
    request = data.draw(requests(files))
    seen.clear()
    components._memo = Memo(1 << 20)
    demand = check(components, request)
    assert seen == [demand.vision_patches]


def test_the_encoders_themselves_give_the_rows_that_are_counted(tiny_ref_components, files):
    """No stand-ins: a picture, a video with sound and a sound of odd lengths through the real networks."""
    conditions = (
        Condition(kind="image", uri=files.picture(70, 130)),
        Condition(kind="video", uri=files.video(64, 64, 30, 0.7)),
        Condition(kind="audio", uri=files.sound(12_345, 44_100)),
    )
    request = VideoRequest(
        prompt="a ball", num_sigmas=3, target=Target(width=64, height=64, num_frames=22), conditions=conditions
    )
    demand = check(tiny_ref_components, request)
    assert [c.kind for c in demand.conditions] == ["image", "video", "audio"]
    assert demand.conditions[1].num_frames == 22  # cut to the clip's length
    assert demand.conditions[2].num_samples == 8958  # of 12,345 at 44.1 kHz


def nine_squares(files):
    picture = Condition(kind="image", uri=files.picture(512, 512))
    return VideoRequest(prompt="x" * 1000, target=Target(num_frames=124), conditions=(picture,) * 9)


def test_nine_square_pictures_by_hand(files):
    """The release: each picture is 2048x2048, 4,096 rows of latents and 128x128 patches in 4,096 vision tokens."""
    demand = demand_of(nine_squares(files), RELEASED)
    assert demand.target.size == "1344x768"
    assert (demand.target.video_rows, demand.target.audio_rows) == (37 * 42 * 24, 2 * 207)
    assert demand.condition_video_rows == 9 * 64 * 64
    assert demand.vision_patches == 9 * 128 * 128
    label = estimated_tokens("<Picture 1>: ")
    assert demand.text_tokens == 9 * (label + 1 + 64 * 64 + 1) + estimated_tokens("x" * 1000)
    assert demand.rows == 37_296 + 414 + 36_864 + 36_864 + 9 * (label + 2) + 287


def test_large_pictures_are_shown_within_the_processors_bounds(files):
    """2048 x 8192 is the largest reference, and just what the text encoder takes at most: a smaller bound shrinks."""
    picture = Condition(kind="image", uri=files.picture(400, 100))
    request = VideoRequest(prompt="x", conditions=(picture,))
    assert demand_of(request, RELEASED).vision_patches == 128 * 512
    small = replace(RELEASED, vision=replace(RELEASED.vision, max_pixels=1 << 20))
    (seen,) = demand_of(request, small).conditions
    assert seen.vision_patches <= (1 << 20) / 16**2
    assert (seen.width, seen.height) == (8192, 2048)  # what is VAE-encoded stays


def test_plan_cost_and_admission_report_the_same_rows(files, embedded_engine):
    c = embedded_engine.components
    sizes = sizes_of(c.parts, on_gpu=True, dtype=torch.bfloat16)
    for request in (
        nine_squares(files).replace(target=Target(num_frames=56)),
        VideoRequest(prompt="a ball", conditions=(Condition(kind="image", uri=files.picture(90, 60), role="last"),)),
        VideoRequest(prompt="a ball"),
    ):
        demand = demand_of(request, c.limits, count_tokens=c.text.tokenizer.count)
        plan = make_plan(sizes, demand, hardware.H200).as_dict()
        assert plan["work_rows"] == cost.size_of(demand).rows == demand.rows
        assert plan["work_rows"] == plan["work_video_rows"] + plan["work_audio_rows"] + plan["work_text_tokens"]


def test_what_cannot_be_asked_counts_as_the_largest(files):
    def rows(**condition):
        known = Condition(kind="image", uri=files.picture(64, 64))
        request = VideoRequest(prompt="x", conditions=(known, Condition(**condition)))
        return demand_of(request, RELEASED).rows

    for kind, uri in (
        ("image", files.picture(320, 100)),
        ("video", files.video(96, 64, 45, 3.0)),
        ("audio", files.sound(55_555, 44_100)),
    ):
        for unknown in ("https://example.com/file", "data:x", "/no/such/file"):
            assert rows(kind=kind, uri=unknown) > rows(kind=kind, uri=uri)
    keyframe = VideoRequest(prompt="x", conditions=(Condition(kind="image", uri="https://x/a.png", role="first"),))
    width, height = 144, 64  # 21:9, the largest canvas of the embedded checkpoint
    tiny = replace(RELEASED, patch_size=1, canvas_short_edge=64, canvas_max_pixels=9216)
    assert demand_of(keyframe, tiny).target.size == f"{width}x{height}"


def test_a_length_that_no_header_states_is_the_clips_own(files, monkeypatch):
    path = files.video(96, 64, 45, 1.0)
    info = probe(path)
    bare = replace(info, video=replace(info.video, duration_s=0.0), audio=replace(info.audio, duration_s=0.0))
    monkeypatch.setattr("talkies.media.read.probe.probe", lambda path: bare)
    request = VideoRequest(prompt="x", conditions=(Condition(kind="video", uri=path),))
    (clip,) = demand_of(request, RELEASED).conditions
    assert (clip.num_frames, clip.num_samples) == (124, 124 * 32_000 // 24)


def test_a_turned_photograph_gives_the_canvas_that_it_is_shown_with(files):
    keyframe = Condition(kind="image", uri=files.turned_picture(160, 90), role="first")
    assert demand_of(VideoRequest(prompt="x", conditions=(keyframe,)), RELEASED).target.size == "768x1344"


def test_a_picture_outside_the_ratios_waits_for_its_own_refusal(files):
    thin = Condition(kind="image", uri=files.picture(500, 100), role="first")
    assert demand_of(VideoRequest(prompt="x", conditions=(thin,)), RELEASED).target.width > 1344


def test_another_clip_of_the_same_request_reads_no_file_again(files, monkeypatch):
    video = Condition(kind="video", uri=files.video(96, 64, 86, 3.0))
    request = VideoRequest(prompt="x", target=Target(num_frames=73, width=96, height=64), conditions=(video,))
    limits = replace(RELEASED, min_seconds=0.9)
    demand = demand_of(request, limits)
    monkeypatch.setattr(headers_module, "_clip", None)
    shorter = of_clip(demand, request, limits, width=64, height=64, num_frames=39)
    assert shorter.target.size == "64x64"
    assert (demand.conditions[0].num_frames, shorter.conditions[0].num_frames) == (73, 39)
    asked = request.replace(target=Target(num_frames=39, width=64, height=64))
    monkeypatch.undo()
    assert shorter == demand_of(asked, limits)


def test_a_distilled_checkpoint_takes_its_own_number_of_forwards():
    assert demand_of(VideoRequest(prompt="x"), Limits(default_num_sigmas=5)).num_forwards == 4
    assert demand_of(VideoRequest(prompt="x", sigmas=(1.0, 0.5, 0.0)), Limits()).num_forwards == 2


def test_what_the_checkpoint_cannot_make_is_refused(files):
    with pytest.raises(InvalidRequest, match="seconds=60"):
        demand_of(VideoRequest(prompt="x", target=Target(seconds=60)), RELEASED)
