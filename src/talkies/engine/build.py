"""From a checkpoint folder to components in memory: what lives long is built here and handed down."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from talkies.attention import registry as attention
from talkies.attention.base import Trimmed
from talkies.codecs.audio import AudioVAE
from talkies.codecs.checkpoint import Parts, find_parts, limits_of, narrowed
from talkies.codecs.memo import Memo, content_key
from talkies.codecs.patches import PatchConfig
from talkies.codecs.presentation import Visual
from talkies.codecs.text import Conditioner, TextCondition, TextEncoder
from talkies.codecs.tokens import FolderTokenizer
from talkies.codecs.video import VideoVAE
from talkies.engine.config import EMBEDDED, EngineConfig, ResolvedConfig, embedded_folder, resolve
from talkies.engine.process import give_back, peak_rss_bytes
from talkies.engine.schedule import ReleaseSchedule, read_schedule
from talkies.geometry import Limits
from talkies.kernels import select as kernels
from talkies.model.checkpoint import model_hash, resolve_checkpoint
from talkies.model.dit import PackedDiT
from talkies.model.modulation import ModulationTable, build_table
from talkies.model.timesteps import StepPlan
from talkies.model.weights import DiTReader, build_dit
from talkies.placement.modulation_feed import pinned
from talkies.placement.quantize import placer
from talkies.sampling.schedule import DualSchedule

log = logging.getLogger(__name__)

MAX_TABLES = 8  # schedules whose modulation is kept; a released one is 0.5 GB
MEMO_BYTES = 256 << 20


@dataclass
class Components:
    """One checkpoint's parts. Text encoder and VAEs are shared by all DiTs; ``dits`` is keyed by partition.

    AdaLN projections are never resident: ``readers`` hand them out one block at a time when a table is built.
    """

    config: ResolvedConfig
    limits: Limits
    parts: Parts
    model_hash: str
    schedule: ReleaseSchedule
    attend: Trimmed
    dits: dict[str, PackedDiT]
    readers: dict[str, DiTReader]
    text: Conditioner
    audio: AudioVAE
    alive: Callable[[], object] = lambda: None  # called now and then by what may take long
    _tables: OrderedDict[object, ModulationTable] = field(default_factory=OrderedDict)
    _memo: Memo = field(default_factory=lambda: Memo(MEMO_BYTES))

    @cached_property
    def video(self) -> VideoVAE:
        vae = VideoVAE.load(self.parts.video_vae, device=self.config.device)
        vae.on_tile = lambda: self.alive()
        return vae

    def synchronize(self) -> None:
        """Waits for the device: a step is done when the device has done it, and its fault shows here."""
        if self.config.device.type == "cuda":
            torch.cuda.synchronize(self.config.device)

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

    def table(self, partition: str, schedule: DualSchedule, steps: Sequence[StepPlan]) -> ModulationTable:
        """The modulation table of a schedule; made once, kept for the next request with the same one."""
        key = (partition, schedule.key)
        known = self._tables.get(key)
        if known is not None and known.covers(steps):
            self._tables.move_to_end(key)
            return known.rebind(steps)
        # Other rows (a keyframe's, say) add pairs to the same schedule; the larger table serves both.
        device = self.config.device
        table = build_table(self.readers[partition], steps, device)
        if device.type == "cuda":
            table = pinned(table)
        self._tables[key] = table
        while len(self._tables) > MAX_TABLES:
            self._tables.popitem(last=False)
        return table

    def encode_text(self, prompt: str, visuals: Sequence[Visual]) -> TextCondition:
        """The text rows; a repeated prompt with the same pictures is encoded once."""
        key = content_key("text", prompt, list(visuals))
        return self._memo.remember(key, lambda: self.text.encode(prompt, visuals))

    def encode_video(self, frames: np.ndarray) -> Tensor:
        """Normalized latents [1, C, t, h, w] of uint8 [F, H, W, 3]; the same pixels are encoded once."""
        key = content_key("video", frames)
        return self._memo.remember(key, lambda: self.video.encode(torch.from_numpy(np.array(frames))))

    def encode_audio(self, wave: np.ndarray) -> Tensor:
        """Normalized latents [2, C, a] of float32 [2, N]; the same samples are encoded once."""
        key = content_key("audio", wave)
        return self._memo.remember(key, lambda: self.audio.encode(torch.from_numpy(np.array(wave))))


def locate(model: str) -> Path:
    """The folder of a checkpoint: the embedded one, a path, or a hub id. Raises ``CheckpointError``."""
    return embedded_folder() if model == EMBEDDED else resolve_checkpoint(model)


def describe(config: EngineConfig) -> tuple[Parts, Limits]:
    """The parts that will be loaded and what they can make, from configs alone.

    Raises ``ConfigError`` and ``CheckpointError``.
    """
    parts = find_parts(locate(config.model))
    return narrowed(parts, limits_of(parts), config.task_type)


def load(config: EngineConfig, *, on_stage: Callable[[str], object] = lambda stage: None) -> Components:
    """Reads configs first, then weights; ``on_stage`` hears what comes next.

    Raises ``ConfigError`` or ``CheckpointError``; nothing is half-built.
    """
    resolved = resolve(config)
    # The thread count decides how sums are split, and so the last bits: it is part of what a seed reproduces.
    torch.set_num_threads(resolved.threads)
    parts, limits = describe(config)
    schedule = read_schedule(parts)
    ops = kernels.create(resolved.kernels)
    attend = attention.create(resolved.attention, ops)
    # The prompt's few rows pass the refiner once a request: never approximated, and no plan made for their number.
    text_attend = attention.create("sdpa")
    log.info(
        "attention %s, kernels %s, quantization %s on %s",
        resolved.attention,
        resolved.kernels,
        resolved.quantize.method,
        resolved.device,
    )
    dits, readers = {}, {}
    for partition, folder in parts.transformers.items():
        on_stage(f"weights of {partition}")
        reader = readers[partition] = DiTReader(folder, dtype=resolved.dtype)
        place = placer(resolved.quantize, reader.config, ops, resolved.device)
        dit = build_dit(reader, attend=attend, text_attend=text_attend, ops=ops, adaln=False, place=place)
        dit.use_chunking(resolved.chunking)
        dits[partition] = dit
    on_stage("text encoder")
    encoder = TextEncoder.load(parts.text_encoder, dtype=resolved.dtype, device=resolved.device)
    on_stage("audio VAE")
    audio = AudioVAE.load(parts.audio_vae, device=resolved.device)
    return Components(
        config=resolved,
        limits=limits,
        parts=parts,
        model_hash=model_hash(parts.root),
        schedule=schedule,
        attend=attend,
        dits=dits,
        readers=readers,
        text=Conditioner(FolderTokenizer.load(parts.tokenizer), PatchConfig.load(parts.processor), encoder),
        audio=audio,
    )
