"""The path of one request as plain functions: prepare, encode, pack, denoise_step (``step.py``), decode. Who
calls them when is the scheduler's affair; nothing here keeps state between calls but what it is handed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from talkies.codecs.finite import require_finite
from talkies.codecs.text.encoder import TextCondition
from talkies.engine.config import EngineConfig
from talkies.engine.load.adapt import Adapters
from talkies.engine.load.build import Components
from talkies.engine.load.checkpoint import parts_and_limits
from talkies.engine.pipeline import tasks
from talkies.engine.pipeline.condition_media import MediaAccess, SoundInput
from talkies.engine.pipeline.given import Given, locked_latents, locks_of, of_role
from talkies.engine.pipeline.orders import lead_encode, lead_refine
from talkies.engine.pipeline.state import RequestState, plans_of, state_of
from talkies.engine.pipeline.tasks import TASKS, Prepared
from talkies.few_steps import followed, in_use
from talkies.h3.clip_plan import cache_of
from talkies.h3.conditions import AudioCondition, PackedCondition, VisualCondition
from talkies.h3.geometry import Geometry, Limits, encodable_frames
from talkies.h3.packing import audio_to_rows, build_layout, patchify_video, rows_to_audio, unpatchify_video
from talkies.h3.partitions import Parts
from talkies.h3.release_schedule import ReleaseSchedule, read_schedule
from talkies.request import VideoRequest
from talkies.sampling import noise as sampling_noise
from talkies.sampling.anchors import build_anchors
from talkies.sampling.noise import Noise
from talkies.sampling.schedule import DualSchedule, build_dual


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What the conditions became, in packed order: text states, normalized latents [1, C, t, h, w] of the visuals
    and condition rows [2 * a, C] of the sounds, with the descriptors that the layout is built from."""

    prepared: Prepared
    text: TextCondition
    conditions: tuple[PackedCondition, ...] = ()
    visual_latents: tuple[Tensor, ...] = ()
    audio_rows: tuple[Tensor, ...] = ()
    given_rows: tuple[Tensor, ...] = ()  # of each lock, all rows of the target's stream, clean
    refined: list[Tensor] = field(default_factory=list)  # what the DiT's refiner made of the text, by the first pack

    def refined_text(self, refine: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows [L, D]: one pass of the refiner, however many outputs the request has."""
        if not self.refined:
            self.refined.append(refine(self.text.states))
        return self.refined[0]


def prepare(components: Components, request: VideoRequest, access: MediaAccess | None = None) -> Prepared:
    """Checks the request against the checkpoint and reads its media. Every user error is raised here."""
    schedule_of(components, request)
    return tasks.prepare(request, components.limits, access or MediaAccess())


def prepare_ahead(config: EngineConfig, request: VideoRequest) -> Prepared:
    """As :func:`prepare`, from a checkpoint's configs: a wrong file costs no loading of weights."""
    return prepare_for(*parts_and_limits(config), request)


def prepare_for(parts: Parts, limits: Limits, request: VideoRequest) -> Prepared:
    """The same, for many requests to one checkpoint."""
    schedule_for(parts, limits, request)
    return tasks.prepare(request, limits, MediaAccess())


def schedule_for(parts: Parts, limits: Limits, request: VideoRequest) -> DualSchedule:
    """As :func:`schedule_of`, from a checkpoint's configs."""
    return _schedule(request, read_schedule(parts), limits)


def schedule_of(components: Components, request: VideoRequest) -> DualSchedule:
    """The two noise schedules; the request's values, else the checkpoint's."""
    return _schedule(request, components.schedule, components.limits)


def _schedule(request: VideoRequest, stated: ReleaseSchedule, limits: Limits) -> DualSchedule:
    num_sigmas, base, video_shift, audio_shift = followed(request, stated, limits.adapters)
    if base is None and num_sigmas is None:
        num_sigmas = limits.default_num_sigmas
    return build_dual(num_sigmas, video_shift=video_shift, audio_shift=audio_shift, base=base)


def adapters_of(components: Components, request: VideoRequest) -> Adapters:
    """Those of its DiT that are in its weights while it is denoised: names and strengths, in order."""
    return tuple((one.facts.name, one.strength) for one in in_use(request, components.limits.adapters))


def encode(components: Components, prepared: Prepared) -> Encoded:
    """Text (with the pictures it sees) and condition latents; each is remembered by content."""
    parts = encode_by_parts(components, prepared)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


@torch.inference_mode()
def encode_by_parts(components: Components, prepared: Prepared) -> Generator[None, None, Encoded]:
    """As :func:`encode`, with a pause after the text and after each picture, video and sound."""
    leader, run = components.leader, None
    if leader is not None and components.config.num_text > 1:
        run = partial(lead_encode, leader, components.text.encoder)
    text = components.encode_text(prepared.request.prompt, prepared.presentation, run)
    conditions: list[PackedCondition] = []
    visual_latents: list[Tensor] = []
    audio_rows: list[Tensor] = []
    for item in prepared.inputs:
        yield
        audio_latents = 0
        if item.wave is not None:
            latents = components.encode_audio(item.wave)
            audio_latents = latents.shape[2]
            audio_rows.append(audio_to_rows(latents))
        if isinstance(item, SoundInput):
            conditions.append(AudioCondition(audio_latents=audio_latents))
            continue
        frames = item.frames
        if item.kind == "video":
            frames = frames[: encodable_frames(frames.shape[0], components.limits)]
        z = components.encode_video(frames)
        visual_latents.append(z)
        conditions.append(
            VisualCondition(
                kind=item.kind,  # type: ignore[arg-type]
                latent_frames=z.shape[2],
                latent_height=z.shape[3],
                latent_width=z.shape[4],
                audio_latents=audio_latents,
            )
        )
    given_rows: list[Tensor] = []
    for given in prepared.given:
        yield
        given_rows.append(_encode_given(components, given, prepared.geometry))
    return Encoded(
        prepared=prepared,
        text=text,
        conditions=tuple(conditions),
        visual_latents=tuple(visual_latents),
        audio_rows=tuple(audio_rows),
        given_rows=tuple(given_rows),
    )


def _encode_given(components: Components, given: Given, geometry: Geometry) -> Tensor:
    """All rows of the target's stream: video [Nv, C * 4] or audio [Na, C]."""
    if given.plan.role == "footage":
        z = components.encode_video(given.media)
        return patchify_video(z, (1, geometry.patch_size, geometry.patch_size))
    # Latents end up to 8.3 ms before or after the picture, where the wave ends.
    lacking = max(0, geometry.num_samples - given.media.shape[1])
    wave = np.pad(given.media[:, : geometry.num_samples], ((0, 0), (0, lacking)))
    return audio_to_rows(components.encode_audio(wave))


@torch.inference_mode()
def pack(components: Components, encoded: Encoded, *, output: int = 0, noise: Noise | None = None) -> RequestState:
    """The first state of output ``output``: layout, schedule, modulation table, noise and anchors."""
    prepared = encoded.prepared
    request, geometry = prepared.request, prepared.geometry
    partition = TASKS[prepared.task].partition
    dit = components.dits[partition]
    config, device = dit.config, components.config.device
    layout = build_layout(
        text_tags=encoded.text.tags,
        conditions=encoded.conditions,
        latent_frames=geometry.latent_frames,
        latent_height=geometry.latent_height,
        latent_width=geometry.latent_width,
        audio_latents=geometry.audio_latents,
        patch_size=config.patch_size,
        isolate=components.config.isolate,
        locked=locked_latents(prepared.given),
    )
    schedule = schedule_of(components, request)
    adapters = adapters_of(components, request)
    table = components.table(partition, schedule, plans_of(layout, schedule), adapters)
    seed = request.seed + output
    noise = noise or sampling_noise.draw(
        seed,
        latent_frames=geometry.latent_frames,
        latent_height=geometry.latent_height,
        latent_width=geometry.latent_width,
        audio_latents=geometry.audio_latents,
        in_channels=config.in_channels,
        audio_in_channels=config.audio_in_channels,
        patch_size=config.patch_size,
        visual_conditions=[c for c in encoded.conditions if isinstance(c, VisualCondition)],
    )
    anchors = build_anchors(
        encoded.visual_latents,
        noise.conditions,
        encoded.audio_rows,
        patch_size=config.patch_size,
        video_row_dim=config.video_row_dim,
        audio_channels=config.audio_in_channels,
    ).to(device)

    def refine(states_LT: Tensor) -> Tensor:
        def own(states_LT: Tensor) -> Tensor:
            components.use(partition, adapters)
            components.residency.enter(f"dit.{partition}.refiner")
            return components.runners[partition].refine_text(states_LT)

        states_LT = states_LT.to(device)
        leader = components.leader
        return own(states_LT) if leader is None else lead_refine(leader, partition, adapters, states_LT, own)

    refined_text = encoded.refined_text(refine)
    video_rows, audio_rows = anchors.assemble(noise.video_rows.to(device), noise.audio_rows.to(device))
    locks = locks_of(prepared.given, encoded.given_rows, noise, layout, geometry).to(device)
    locks.begin(video_rows, audio_rows, schedule.step(0))
    return state_of(
        components,
        table,
        request=request,
        task=prepared.task,
        partition=partition,
        seed=seed,
        geometry=geometry,
        layout=layout,
        schedule=schedule,
        adapters=adapters,
        cache=cache_of(request, components.limits).policy,
        anchors=anchors,
        locks=locks,
        given=prepared.given,
        refined_text=refined_text,
        video_rows=video_rows,
        audio_rows=audio_rows,
    )


def target_latents(state: RequestState) -> tuple[Tensor, Tensor]:
    """Normalized latents of the target: video [1, C, T, h, w], audio [2, C, Ta]."""
    g, layout = state.geometry, state.layout
    patch = (1, g.patch_size, g.patch_size)
    video = unpatchify_video(
        state.video_rows[layout.num_condition_video_rows :], g.latent_frames, g.latent_height, g.latent_width, patch
    )
    return video, rows_to_audio(state.audio_rows[layout.num_condition_audio_rows :])


@torch.inference_mode()
def decode_audio(components: Components, state: RequestState) -> np.ndarray:
    """The wave, float32 [2, N] in -1..1, as long as the picture to the nearest sample.

    Audio latents of 25 ms end up to 8.3 ms before or after the last frame: what is over is cut off, what lacks is
    silent, so that clips that are joined do not drift. Of a soundtrack the given samples.
    """
    given = of_role(state.given, "soundtrack")
    if given is None:
        return _made_wave(components, state)
    return given.media if given.plan.keeps_all else given.join_wave(_made_wave(components, state))


def _made_wave(components: Components, state: RequestState) -> np.ndarray:
    latents = require_finite(target_latents(state)[1], "denoise audio")
    components.residency.enter("audio")
    wave = components.audio.decode(latents).numpy()
    wanted = state.geometry.clip_samples
    return np.pad(wave[:, :wanted], ((0, 0), (0, max(0, wanted - wave.shape[1]))))


def decode_video(components: Components, state: RequestState) -> Iterator[np.ndarray]:
    """The frames in order, chunk by chunk, uint8 [f, H, W, 3]; of footage the given ones."""
    given = of_role(state.given, "footage")
    if given is None:
        yield from _made_frames(components, state)
        return
    if given.plan.keeps_all:
        size = components.limits.clip_frames
        yield from (given.media[at : at + size] for at in range(0, len(given.media), size))
        return
    first = 0
    for made in _made_frames(components, state):
        yield given.join_frames(made, first)
        first += len(made)


def _made_frames(components: Components, state: RequestState) -> Iterator[np.ndarray]:
    latents = require_finite(target_latents(state)[0], "denoise video")
    chunks = components.video.decode(latents)
    while True:
        components.residency.enter("video")  # before each chunk: another request may have taken a step meanwhile
        chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk.cpu().numpy()
