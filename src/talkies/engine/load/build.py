"""From a checkpoint folder to components in memory: what lives long is built here and handed down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from talkies.adapters.fuse import FusedTensors
from talkies.attention import registry as attention
from talkies.attention.base import Trimmed
from talkies.capacity.ram import give_back, peak_rss_bytes
from talkies.codecs.audio.vae import AudioVAE
from talkies.codecs.memo import Memo, content_key
from talkies.codecs.text.encoder import Conditioner, RunEncoder, TextCondition
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import Visual
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.codecs.video.vae import VideoVAE
from talkies.engine.config import EngineConfig, ResolvedConfig, resolve
from talkies.engine.load.adapt import AdaptedDiT, Adapters, use_adapters
from talkies.engine.load.checkpoint import checkpoint_of
from talkies.engine.load.dits import build_dits
from talkies.engine.load.load_report import LoadReport
from talkies.engine.load.place_components import build_text, place_audio, place_video
from talkies.engine.load.planning import Placement, cap, decide
from talkies.engine.load.rank_processes import Ranks
from talkies.engine.load.tables import Tables
from talkies.errors import ConfigError
from talkies.files.location import hash_with, model_hash
from talkies.h3.geometry import Limits
from talkies.h3.partitions import Parts
from talkies.h3.release_schedule import ReleaseSchedule, read_schedule
from talkies.h3.timesteps import StepPlan
from talkies.kernels import select as kernels
from talkies.model.dit import PackedDiT
from talkies.model.modulation import ModulationTable
from talkies.model.runner import Runner
from talkies.model.weights import DiTReader
from talkies.placement.components import Residency
from talkies.placement.graphs.recorder import CudaRecorder
from talkies.placement.graphs.replay import MAX_BYTES, Graphs
from talkies.placement.ranks.leader import Leader
from talkies.placement.stream.host_memory import gib
from talkies.quality import Tiers
from talkies.sampling.schedule import DualSchedule
from talkies.stepcache import registry as step_caches

MEMO_BYTES = 256 << 20


@dataclass
class Components:
    """One checkpoint's parts. Text encoder and VAEs are shared by all DiTs; ``dits`` is keyed by partition.

    AdaLN projections are never resident: ``readers`` hand them out one block at a time when ``tables`` builds one.
    """

    config: ResolvedConfig
    limits: Limits
    parts: Parts
    checkpoint_hash: str
    model_hash: str  # of the checkpoint and of the adapters that the operator gave
    schedule: ReleaseSchedule
    attend: Trimmed
    dits: dict[str, PackedDiT]
    runners: dict[str, Runner]  # what a step has run of each, see placement/apply.py
    readers: dict[str, DiTReader | FusedTensors]
    tables: Tables
    text: Conditioner
    audio: AudioVAE
    placement: Placement
    loading: LoadReport
    alive: Callable[[], object] = lambda: None  # called now and then by what may take long
    residency: Residency = field(default_factory=Residency)
    adapted: dict[str, AdaptedDiT] = field(default_factory=dict)  # DiTs whose weights can have adapters in them
    ranks: Ranks | None = None  # the other processes of a DiT that is cut over several devices
    graphs: Graphs | None = None  # of small forwards; None: all are launched kernel by kernel
    _memo: Memo = field(default_factory=lambda: Memo(MEMO_BYTES))

    @cached_property
    def video(self) -> VideoVAE:
        with self.loading.part("video VAE decoder") as part:
            vae = place_video(
                self.parts.video_vae,
                self.residency,
                self.placement.residences.video,
                dtype=self.config.video_dtype,
                device=self.config.device,
                ops=kernels.create(self.config.kernels),
            )
            part.num_bytes = vae.bytes_read
        vae.on_tile = lambda: self.alive()
        return vae

    def synchronize(self) -> None:
        """Waits for the device: a step is done when the device has done it, and its fault shows here."""
        if self.config.device.type == "cuda":
            torch.cuda.synchronize(self.config.device)

    def release(self) -> None:
        """What can be made again leaves the device: after a failure, that of a full device above all."""
        self.residency.release()
        if self.graphs is not None:
            self.graphs.forget()

    @property
    def leader(self) -> Leader | None:
        """Of the other ranks."""
        return None if self.ranks is None else self.ranks.leader

    @property
    def broken(self) -> str | None:
        """Why nothing can be denoised any more: the ranks ended. ``None`` while all is well."""
        return None if self.ranks is None else self.ranks.leader.failure

    def close(self) -> None:
        """Ends the other processes, if there are any. Nothing can be denoised after."""
        if self.ranks is not None:
            self.ranks.close()

    def give_back(self) -> None:
        """Freed memory goes to the system, as far as it takes it."""
        give_back()
        if self.config.device.type == "cuda":
            torch.cuda.empty_cache()

    def peak_memory_bytes(self) -> int:
        """The high-water mark of this process: of the device's allocator, or of the host."""
        if self.config.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.config.device)
        return peak_rss_bytes()

    def use(self, partition: str, adapters: Adapters) -> None:
        """Has ``adapters`` in the weights of ``partition`` on this rank; costs nothing where they are there."""
        use_adapters(self.adapted, partition, adapters)

    def table(
        self, partition: str, schedule: DualSchedule, steps: Sequence[StepPlan], adapters: Adapters = ()
    ) -> ModulationTable:
        """The modulation table of a schedule with ``adapters`` in the weights; made once, kept for the next request
        with the same ones."""
        return self.tables.of(partition, schedule, steps, adapters)

    def encode_text(self, prompt: str, visuals: Sequence[Visual], run: RunEncoder | None = None) -> TextCondition:
        """The text rows; a repeated prompt with the same pictures is encoded once. ``run`` takes the place of the
        encoder's own, where other ranks have a share of it."""
        key = content_key("text", prompt, list(visuals))
        return self._memo.remember(key, lambda: self._encode_text(prompt, visuals, run))

    def encode_video(self, frames: np.ndarray) -> Tensor:
        """Normalized latents [1, C, t, h, w] of uint8 [F, H, W, 3]; the same pixels are encoded once."""
        key = content_key("video", frames)
        return self._memo.remember(key, lambda: self._encode_video(frames))

    def encode_audio(self, wave: np.ndarray) -> Tensor:
        """Normalized latents [2, C, a] of float32 [2, N]; the same samples are encoded once."""
        key = content_key("audio", wave)
        return self._memo.remember(key, lambda: self._encode_audio(wave))

    def _encode_text(self, prompt: str, visuals: Sequence[Visual], run: RunEncoder | None) -> TextCondition:
        self.residency.enter("text")
        return self.text.encode(prompt, visuals, run)

    def _encode_video(self, frames: np.ndarray) -> Tensor:
        self.residency.enter("video.encoder")
        return self.video.encode(torch.from_numpy(np.array(frames)))

    def _encode_audio(self, wave: np.ndarray) -> Tensor:
        self.residency.enter("audio")
        return self.audio.encode(torch.from_numpy(np.array(wave)))


def check_tiers(tiers: Tiers, checkpoint_hash: str) -> None:
    """Raises ``ConfigError`` for step caches of another checkpoint, and for what no policy takes."""
    if tiers.checkpoint not in ("", checkpoint_hash):
        raise ConfigError(
            f"the step caches were calibrated for another checkpoint ({tiers.checkpoint[:12]}, and this is "
            f"{checkpoint_hash[:12]})",
            hint="calibrate them for this one: talkies calibrate; or --step-caches none",
            param="step_caches",
        )
    for policy in tiers.all():
        step_caches.create(policy.name, policy.parameters)


def load(
    config: EngineConfig,
    *,
    on_stage: Callable[[str], object] = lambda stage: None,
    on_line: Callable[[str], object] = lambda line: None,
) -> Components:
    """Reads configs first, then weights; ``on_stage`` hears what comes next, ``on_line`` what goes into the log.

    Raises ``ConfigError`` or ``CheckpointError``; nothing is half-built, and no process that was started stays.
    """
    with ExitStack() as undo:
        components = _load(config, on_stage, on_line, undo)
        undo.pop_all()
    return components


def _load(
    config: EngineConfig, on_stage: Callable[[str], object], on_line: Callable[[str], object], undo: ExitStack
) -> Components:
    """``undo`` is told how to end what must not outlive a failure."""
    resolved = resolve(config)
    # The thread count decides how sums are split, and so the last bits: it is part of what a seed reproduces.
    torch.set_num_threads(resolved.threads)
    checkpoint = checkpoint_of(config)
    parts, limits, adapters = checkpoint.parts, checkpoint.limits, checkpoint.adapters
    checkpoint_hash = model_hash(parts.root)
    check_tiers(limits.tiers, checkpoint_hash)
    schedule = read_schedule(parts)
    ops = kernels.create(resolved.kernels)
    attend = attention.create(resolved.attention, ops)
    loading = LoadReport(resolved.device, on_line)
    loading.line(
        f"attention {resolved.attention}, kernels {resolved.kernels}, quantization {resolved.quantize.method}, "
        f"CUDA graphs of small forwards {'on' if resolved.cuda_graphs else 'off'} on {resolved.device}; "
        f"text encoder: attention {resolved.text_attention}, quantization {resolved.text_quantize.method}"
    )
    for line in (line for one in adapters for line in one.notes):
        loading.line(line)
    placement = decide(config, resolved, parts, limits)
    if placement.plan is not None:
        loading.line(f"plan: {placement.plan.summary()}")
    cap(resolved.device, config.vram_budget)
    residency, residences = Residency(), placement.residences
    graphs = None
    if resolved.cuda_graphs and residences.dit is None:  # what streams cannot be replayed
        most = MAX_BYTES if config.vram_budget is None else min(MAX_BYTES, config.vram_budget // 16)
        graphs = Graphs(CudaRecorder(resolved.device), max_bytes=most)
    ranks = None
    if resolved.mesh.size > 1:
        on_stage("ranks")
        ranks = undo.enter_context(closing(Ranks(config, placement, resolved)))
        loading.line(f"{resolved.mesh.size} ranks ({resolved.mesh.described()}), {resolved.threads} CPU threads each")
    groups = None if ranks is None else ranks.groups
    dits = build_dits(
        parts,
        resolved,
        placement,
        residency,
        ops=ops,
        attend=attend,
        loading=loading,
        groups=groups,
        graphs=graphs,
        num_forwards=limits.default_num_sigmas - 1,
        on_stage=on_stage,
        adapters=adapters,
    )
    on_stage("text encoder")
    with loading.part("text encoder") as part:
        encoder = build_text(parts, resolved, placement, residency, ops=ops, groups=groups)
        part.num_bytes = encoder.bytes_read
    if ranks is not None:
        ranks.wait_loaded()
    on_stage("audio VAE")
    with loading.part("audio VAE") as part:
        audio = place_audio(parts.audio_vae, residency, residences.audio, device=resolved.device)
        part.num_bytes = audio.bytes_read
    loading.line(f"weights loaded: {loading.total()}; {gib(residency.host_bytes)} stay in host memory for the device")
    return Components(
        config=resolved,
        limits=limits,
        parts=parts,
        checkpoint_hash=checkpoint_hash,
        model_hash=hash_with(checkpoint_hash, [(one.file.sha256, one.strength) for one in adapters]),
        schedule=schedule,
        attend=attend,
        dits=dits.by_partition,
        runners=dits.runners,
        readers=dits.readers,
        tables=dits.tables,
        adapted=dits.adapted,
        text=Conditioner(FolderTokenizer.load(parts.tokenizer), PatchConfig.load(parts.processor), encoder),
        audio=audio,
        placement=placement,
        loading=loading,
        residency=residency,
        graphs=graphs,
        ranks=ranks,
    )
