"""Locks: given rows stay what they are, the clip has the given samples and frames, and a window is all that is made."""

import itertools
import json
import shutil
import wave
from dataclasses import replace

import numpy as np
import pytest
import torch

from talkies import Engine
from talkies.capacity.demand import demand_of
from talkies.codecs.audio.vae import AudioVAE
from talkies.codecs.video.vae import VideoVAE
from talkies.engine.pipeline import path as pipeline
from talkies.engine.pipeline.clip import Clip
from talkies.engine.pipeline.given import FADE_FRAMES, FADE_S
from talkies.engine.pipeline.preview import Peek
from talkies.engine.pipeline.resume import ResumeFile, request_hash
from talkies.engine.pipeline.run import Boundary, RequestRun
from talkies.engine.pipeline.sinks import Mp4Sink
from talkies.engine.pipeline.step import denoise_step
from talkies.engine.worker.batching import Batcher, batch_key
from talkies.errors import CheckpointError, InvalidRequest
from talkies.h3.layout import Role
from talkies.h3.packing import audio_to_rows, patchify_video
from talkies.h3.timesteps import row_timesteps
from talkies.media.read.probe import probe
from talkies.media.write import mp4
from talkies.request import Condition, Target, VideoRequest
from talkies.sampling import noise as sampling_noise

RATE, FRAMES = 32_000, 39
SIZE = 64
SECONDS = FRAMES / 24


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A WAV of 1.7 s, longer than the clip; its samples."""
    path = tmp_path_factory.mktemp("sound") / "own.wav"
    samples = (np.random.default_rng(3).uniform(-0.5, 0.5, (2, round(1.7 * RATE))) * 32768).astype(np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.T.tobytes())
    return str(path), samples.astype(np.float32) / 32768


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A film of 42 frames on the canvas, with a sound of its own."""
    path = tmp_path_factory.mktemp("film") / "own.mp4"
    rng = np.random.default_rng(4)
    shade = np.linspace(20, 220, 42).astype(np.uint8)
    frames = np.broadcast_to(shade[:, None, None, None], (42, SIZE, SIZE, 3)) + rng.integers(
        0, 9, (42, SIZE, SIZE, 3), dtype=np.uint8
    )
    mp4.write_mp4(path, frames, np.zeros((2, 56_000), np.float32))
    return str(path)


@pytest.fixture(scope="module")
def free(tiny_folder):
    """A checkpoint without a card."""
    return Engine.open(tiny_folder)


def with_card(tiny_folder, folder, card):
    shutil.copytree(tiny_folder, folder)
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tiny_folder, tmp_path_factory):
    card = {"locks": ["soundtrack", "footage"]}
    return Engine.open(with_card(tiny_folder, tmp_path_factory.mktemp("trained") / "model", card))


def soundtrack(sound, **times):
    return Condition(kind="audio", uri=sound[0], role="soundtrack", **times)


def footage(film, **times):
    return Condition(kind="video", uri=film, role="footage", **times)


def ask(*conditions, **changes):
    values = {"num_sigmas": 4, "target": Target(width=SIZE, height=SIZE, num_frames=FRAMES), **changes}
    return VideoRequest(prompt="x", conditions=conditions, **values)


def packed(engine, request, **kwargs):
    components = engine.components
    encoded = pipeline.encode(components, pipeline.prepare(components, request))
    return pipeline.pack(components, encoded, **kwargs), encoded


def through(engine, state):
    while not state.done:
        denoise_step(engine.components, state)
    return state


def drawn(state, components):
    g, config = state.geometry, components.dits[state.partition].config
    return sampling_noise.draw(
        state.seed,
        latent_frames=g.latent_frames,
        latent_height=g.latent_height,
        latent_width=g.latent_width,
        audio_latents=g.audio_latents,
        in_channels=config.in_channels,
        audio_in_channels=config.audio_in_channels,
        patch_size=config.patch_size,
    )


def test_a_trained_lock_is_bit_equal_at_every_step(trained, sound, film):
    """A whole soundtrack beside footage of which frames 12 to 24 are made: latent frames 3 to 7, both included."""
    state, encoded = packed(trained, ask(soundtrack(sound), footage(film, start_time_s=0.5, end_time_s=1.0)))
    c = trained.components
    given = encoded.prepared.given
    clean_sound = audio_to_rows(c.encode_audio(given[0].media))
    clean_film = patchify_video(c.encode_video(given[1].media), (1, 2, 2))
    held = 0.999 * clean_film + (1 - torch.tensor(0.999)) * drawn(state, c).video_rows
    rows = state.geometry.rows_per_frame
    kept = torch.ones(len(held), dtype=torch.bool)
    kept[3 * rows : 8 * rows] = False
    seen = []
    while True:
        assert torch.equal(state.audio_rows, clean_sound)
        torch.testing.assert_close(state.video_rows[kept], held[kept], rtol=0, atol=1e-6)
        seen.append(state.video_rows.clone())
        if state.done:
            break
        denoise_step(c, state)
    assert all(torch.equal(each[kept], seen[0][kept]) for each in seen)
    moved = [(a[~kept] != b[~kept]).any(dim=1).all() for a, b in itertools.pairwise(seen)]
    assert moved == [True] * 3


def test_locked_rows_sit_at_their_own_timestep_where_they_were_trained_to(trained, free, sound, film):
    request = ask(soundtrack(sound, start_time_s=0.5, end_time_s=1.0), footage(film))
    t_video, t_audio = torch.tensor(0.25), torch.tensor(0.5)
    for engine, is_trained in ((trained, True), (free, False)):
        layout = packed(engine, request)[0].layout
        distinct, index = row_timesteps(layout, t_video, t_audio)
        rows = distinct[index]
        made = torch.zeros(layout.num_audio_rows, dtype=torch.bool)
        for channel in (0, 65):  # 65 latents of 25 ms a channel, of which 20 to 40 are made
            made[channel + 20 : channel + 40] = True
        sound_t = rows[layout.audio_indices]
        assert (sound_t[made] == 0.5).all()
        assert (sound_t[~made] == (1.0 if is_trained else 0.5)).all()
        assert torch.equal(rows[layout.video_indices].unique(), torch.tensor([0.999 if is_trained else 0.25]))
        assert {s.role for s in layout.segments} >= ({Role.AUDIO_LOCKED, Role.VIDEO_LOCKED} if is_trained else set())
        plain = packed(engine, ask())[0].layout
        assert torch.equal(plain.positions, layout.positions)
        assert torch.equal(plain.tags, layout.tags)


def test_an_untrained_lock_is_the_given_latents_with_the_requests_noise(free, sound, film):
    state, encoded = packed(free, ask(soundtrack(sound, end_time_s=0.5), footage(film, start_time_s=1.0), seed=9))
    c = free.components
    noise = drawn(state, c)
    clean = {
        "audio": audio_to_rows(c.encode_audio(encoded.prepared.given[0].media)),
        "video": patchify_video(c.encode_video(encoded.prepared.given[1].media), (1, 2, 2)),
    }
    rows = state.geometry.rows_per_frame
    kept = {"audio": torch.ones(130, dtype=torch.bool), "video": torch.ones(len(clean["video"]), dtype=torch.bool)}
    kept["audio"][:20] = kept["audio"][65:85] = False
    kept["video"][7 * rows :] = False  # frame 24 is in latent frame 7: 17 frames are 5, the 18th one, 4 the next
    while True:
        done = state.step == state.num_forwards
        for name, grid in (("audio", state.schedule.audio_sigmas), ("video", state.schedule.video_sigmas)):
            sigma = grid[state.step]
            expected = (1 - sigma) * clean[name] + sigma * getattr(noise, f"{name}_rows")
            found = getattr(state, f"{name}_rows")
            assert torch.equal(found[kept[name]], expected[kept[name]])
            if done:
                assert torch.equal(found[kept[name]], clean[name][kept[name]])
                assert not torch.isclose(found[~kept[name]], clean[name][~kept[name]]).all()
        if done:
            break
        denoise_step(c, state)


def handed_over(monkeypatch):
    """The wave and the frames that the encoders of a file are given."""
    handed = {"frames": []}
    write_wave, write_frames = mp4.Mp4Writer.write_wave, mp4.Mp4Writer.write_frames

    def noticed_wave(self, wave):
        handed["wave"] = wave.copy()
        write_wave(self, wave)

    def noticed_frames(self, frames):
        handed["frames"].append(frames.copy())
        write_frames(self, frames)

    monkeypatch.setattr(mp4.Mp4Writer, "write_wave", noticed_wave)
    monkeypatch.setattr(mp4.Mp4Writer, "write_frames", noticed_frames)
    return handed


@pytest.mark.parametrize("which", ["free", "trained"])
def test_the_file_has_the_given_samples_and_frames_themselves(which, request, sound, film, tmp_path, monkeypatch):
    engine = request.getfixturevalue(which)
    handed = handed_over(monkeypatch)
    engine.render(ask(soundtrack(sound)), [tmp_path / "a.mp4"])
    assert np.array_equal(handed["wave"], sound[1][:, : round(SECONDS * RATE)])
    handed["frames"].clear()
    engine.render(ask(footage(film)), [tmp_path / "b.mp4"])
    frames = np.concatenate(handed["frames"])
    given = pipeline.prepare(engine.components, ask(footage(film))).given[0].media
    assert frames.shape == (FRAMES, SIZE, SIZE, 3)
    assert np.array_equal(frames, given)
    modes = {"free": "training-free", "trained": "trained"}
    assert probe(tmp_path / "b.mp4").request["effective"]["locks"] == {"footage": modes[which]}
    assert "locks" not in engine.generate(ask()).metadata["effective"]


def test_what_is_given_whole_is_never_decoded(free, sound, film, monkeypatch):
    def refuse(*args):
        raise AssertionError("decoded")

    monkeypatch.setattr(AudioVAE, "decode", refuse)
    free.generate(ask(soundtrack(sound)))
    monkeypatch.undo()
    monkeypatch.setattr(VideoVAE, "decode", refuse)
    free.generate(ask(footage(film)))


def test_a_window_changes_nothing_outside_it_and_fades_inside(free, sound, film):
    window = {"start_time_s": 0.5, "end_time_s": 1.0}
    clip = free.generate(ask(soundtrack(sound, **window), footage(film, **window)))
    assert isinstance(clip, Clip)
    given = pipeline.prepare(free.components, ask(footage(film))).given[0].media
    first, last, fade = RATE // 2, RATE, round(FADE_S * RATE)
    own = sound[1][:, : clip.audio.shape[1]]
    assert np.array_equal(clip.audio[:, :first], own[:, :first])
    assert np.array_equal(clip.audio[:, last:], own[:, last:])
    assert np.array_equal(clip.frames[:12], given[:12])
    assert np.array_equal(clip.frames[24:], given[24:])
    made = free.generate(ask(soundtrack(sound, end_time_s=1.0), footage(film, end_time_s=1.0)))
    assert (made.frames[:22] != given[:22]).any(axis=(1, 2, 3)).all()  # no fade where the clip itself begins
    assert (made.audio[:, :100] != own[:, :100]).any(axis=0).all()
    # In the fades both are seen: the nearer to the border, the more of what was given.
    state = through(free, packed(free, ask(soundtrack(sound, **window), footage(film, **window)))[0])
    decoded = pipeline._made_wave(free.components, state)
    share = (np.arange(fade) + 1) / (fade + 1)
    expected = (1 - share) * own[:, first : first + fade] + share * decoded[:, first : first + fade]
    np.testing.assert_allclose(clip.audio[:, first : first + fade], expected, atol=1e-6)
    expected = (1 - share[::-1]) * own[:, last - fade : last] + share[::-1] * decoded[:, last - fade : last]
    np.testing.assert_allclose(clip.audio[:, last - fade : last], expected, atol=1e-6)
    assert np.array_equal(clip.audio[:, first + fade : last - fade], decoded[:, first + fade : last - fade])
    frames = np.concatenate([*pipeline._made_frames(free.components, state)]).astype(np.float32)
    assert FADE_FRAMES == 2
    for frame, part in ((12, 1 / 3), (13, 2 / 3), (22, 2 / 3), (23, 1 / 3)):
        mixed = (1 - part) * given[frame] + part * frames[frame]
        assert np.abs(clip.frames[frame] - mixed).max() <= 0.51
    assert np.array_equal(clip.frames[14:22], frames[14:22])


def test_what_the_request_leaves_free_follows_its_locks(free, sound, film, tmp_path):
    """1.7 s of sound cover 39 frames; a wide film gives a wide canvas."""
    prepared = pipeline.prepare(free.components, ask(soundtrack(sound), target=Target()))
    assert prepared.geometry.num_frames == 39
    wide = tmp_path / "wide.mp4"
    mp4.write_mp4(wide, np.zeros((60, 80, 120, 3), np.uint8), None)
    request = ask(footage(str(wide)), target=Target())
    prepared = pipeline.prepare(free.components, request)
    assert (prepared.geometry.size, prepared.geometry.num_frames) == ("96x64", 56)
    assert demand_of(request, free.limits).target == prepared.geometry
    both = pipeline.prepare(free.components, ask(footage(str(wide)), soundtrack(sound, end_time_s=1), target=Target()))
    assert (both.geometry.size, both.geometry.num_frames) == ("96x64", 39)  # the shorter of the two
    named = pipeline.prepare(free.components, ask(footage(str(wide))))
    assert named.given[0].media.shape == (FRAMES, SIZE, SIZE, 3)
    assert named.given[0].used["kept"] == "80x80"  # the middle of 120x80


def test_facts_and_warnings_say_what_became_of_each(free, trained, sound, film):
    clip = free.generate(ask(footage(film, start_time_s=1.0)))
    (used,) = clip.facts.conditions_used
    assert (used["role"], used["mode"], used["made_anew"]) == ("footage", "training-free", [1.0, 1.625])
    assert any("its sound is not used" in note for note in clip.facts.warnings)
    assert any("not trained to follow it" in note for note in clip.facts.warnings)
    clip = trained.generate(ask(soundtrack(sound)))
    (used,) = clip.facts.conditions_used
    assert (used["mode"], used["made_anew"], used["source_sample_rate_hz"]) == ("trained", None, RATE)
    assert clip.metadata["request"]["conditions"][0]["role"] == "soundtrack"
    assert clip.facts.warnings == ()


def test_the_text_encoder_does_not_see_them(free, sound, film):
    components = free.components
    locked = pipeline.encode(components, pipeline.prepare(components, ask(soundtrack(sound))))
    plain = pipeline.encode(components, pipeline.prepare(components, ask()))
    assert torch.equal(locked.text.states, plain.text.states)


@pytest.mark.parametrize("which", ["free", "trained"])
def test_a_resumed_run_ends_in_the_same_bits(which, request, sound, film, tmp_path):
    engine = request.getfixturevalue(which)
    asked = ask(soundtrack(sound), footage(film, end_time_s=1.0))
    whole = through(engine, packed(engine, asked)[0])
    begun = packed(engine, asked)[0]
    denoise_step(engine.components, begun)
    file = ResumeFile(folder=tmp_path, request=asked, model_hash="m")
    file.save(begun, output=0)
    resumed = packed(engine, asked)[0]
    resumed.restore(file.load().tensors)
    through(engine, resumed)
    assert torch.equal(resumed.video_rows, whole.video_rows)
    assert torch.equal(resumed.audio_rows, whole.audio_rows)
    other = ask(soundtrack(sound), footage(film, end_time_s=0.9))
    assert request_hash(other) != request_hash(asked)


def test_a_run_that_is_ended_leaves_nothing(free, sound, film, tmp_path):
    """In the middle of its steps, and while given frames are being written."""
    for stop in (Boundary("denoise"), Boundary("decode", 17, FRAMES)):
        path = tmp_path / "clip.mp4"
        run = RequestRun(
            free.components,
            ask(soundtrack(sound), footage(film, start_time_s=1.5)),
            lambda output, state, facts, path=path: Mp4Sink.of(free.components, path, state, facts),
        )
        while run.advance() != stop:
            while run.wants_forward:
                run.forward()
        run.close()
        assert run.state is None
        assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("which", ["free", "trained"])
def test_a_shared_forward_keeps_each_requests_locks(which, request, sound, film):
    engine = request.getfixturevalue(which)

    def states():
        return [
            packed(engine, ask(soundtrack(sound)))[0],
            packed(engine, ask(seed=3, num_sigmas=5))[0],
            packed(engine, ask(footage(film, start_time_s=1.0), seed=4))[0],
        ]

    alone, together = [through(engine, state) for state in states()], states()
    assert len({batch_key(state) for state in together}) == 1
    batcher = Batcher(engine.components)
    while group := [state for state in together if not state.done]:
        batcher.step(group)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(b.video_rows, a.video_rows, rtol=0, atol=1e-4)
        torch.testing.assert_close(b.audio_rows, a.audio_rows, rtol=0, atol=1e-4)
    assert torch.equal(alone[0].audio_rows, together[0].audio_rows)  # locked from end to end


@pytest.mark.parametrize("which", ["free", "trained"])
def test_a_preview_of_locked_picture_shows_it(which, request, film):
    engine = request.getfixturevalue(which)
    state, encoded = packed(engine, ask(footage(film)))
    peek = Peek(state)
    denoise_step(engine.components, state)
    z = engine.components.encode_video(encoded.prepared.given[0].media)
    middle = z[0, :, state.geometry.latent_frames // 2]
    torch.testing.assert_close(peek.x0(state), middle, rtol=0, atol=0.02)  # trained ones hold a thousandth of noise


def test_every_output_keeps_the_same_lock(free, sound):
    request = ask(soundtrack(sound), num_outputs=2)
    (first, encoded), (second, _) = packed(free, request), packed(free, request, output=1)
    through(free, first), through(free, second)
    assert torch.equal(first.audio_rows, second.audio_rows)
    assert not torch.equal(first.video_rows, second.video_rows)
    assert encoded.given_rows[0].shape == first.audio_rows.shape


def test_demand_counts_what_is_encoded_and_no_rows(free, trained, sound, film):
    request = ask(soundtrack(sound, end_time_s=1.0), footage(film, end_time_s=1.0))
    plain = demand_of(ask(), free.limits)
    for engine, timesteps in ((free, 2), (trained, 4)):
        demand = demand_of(request, engine.limits)
        assert (demand.rows, demand.target) == (plain.rows, plain.target)
        assert [c.num_samples for c in demand.conditions] == [demand.target.num_samples, 0]
        assert [c.pixels for c in demand.conditions] == [0, FRAMES * SIZE * SIZE]
        assert demand.num_timesteps == timesteps
        steps = packed(engine, request)[0].table.steps
        assert max(len(step.timesteps) for step in steps) == timesteps


@pytest.mark.parametrize(
    ("times", "param", "says"),
    [
        ({"start_time_s": 1.7}, "start_time_s", "outside the clip of 1.625 s"),
        ({"end_time_s": 1.7}, "end_time_s", "outside the clip of 1.625 s"),
        ({"start_time_s": 0.5, "end_time_s": 0.51}, "end_time_s", "less than a frame"),
        ({"end_time_s": 1.625}, "conditions", "nothing of the footage is kept"),
    ],
)
def test_windows_outside_the_clip_are_refused(free, film, times, param, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        pipeline.prepare(free.components, ask(footage(film, **times)))
    assert refused.value.param == param
    assert refused.value.hint


def test_a_file_shorter_than_the_clip_is_refused_with_the_length_that_it_covers(free, sound, film):
    for lock in (soundtrack(sound), footage(film)):
        request = ask(lock, target=Target(width=SIZE, height=SIZE, num_frames=56))
        with pytest.raises(InvalidRequest, match=r"the clip 2\.333 s.*at most 39 frames \(1\.625 seconds\)"):
            pipeline.prepare(free.components, request)


def test_a_sound_that_lacks_milliseconds_is_filled_and_noted(free, tmp_path):
    path = tmp_path / "short.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(4 * (52_000 - 320)))
    prepared = pipeline.prepare(free.components, ask(soundtrack((str(path), None))))
    assert prepared.given[0].media.shape == (2, 52_000)
    assert any("0.010 s before the clip" in note for note in prepared.warnings)


def test_isolated_modalities_keep_their_locks(tiny_folder, sound):
    engine = Engine.open(tiny_folder, isolate="modality")
    state = through(engine, packed(engine, ask(soundtrack(sound)))[0])
    assert torch.equal(state.audio_rows, audio_to_rows(engine.components.encode_audio(sound[1][:, :52_000])))


def test_a_card_names_locks_that_exist(tiny_folder, tmp_path):
    with pytest.raises(CheckpointError, match="locks has smell"):
        Engine.open(with_card(tiny_folder, tmp_path / "model", {"locks": ["smell"]}))


def test_a_card_does_not_make_another_model(free, trained):
    assert free.components.model_hash == trained.components.model_hash
    assert replace(free.limits, card=trained.limits.card) == trained.limits
