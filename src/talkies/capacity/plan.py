"""Candidate plans: what is resident, streamed or evicted, chunks, peak and seconds.

What each costs: ``price.py``; which one is taken: ``planner.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.sizes import Sizes
from talkies.model.chunking import Chunking
from talkies.placement.components import Residences, Where
from talkies.placement.quantize import QuantizeConfig
from talkies.placement.ranks.mesh import ONE, Mesh
from talkies.placement.stream.host_memory import gib
from talkies.placement.stream.layerwise import LayerwiseConfig, streamed_positions

MARGIN = 1.08  # of a predicted peak: what the prediction may miss, and the allocator's gaps
HOST_SPARE = 4 << 30  # of the process itself: Python, torch, remembered encodings, modulation tables
CHUNKINGS = (
    Chunking(),
    Chunking(mlp_rows=8192),
    Chunking(mlp_rows=8192, head_groups=2),
    Chunking(mlp_rows=8192, head_groups=4),
    Chunking(mlp_rows=4096, head_groups=8),
)
# A group of heads or a chunk of rows more costs launches and smaller products. H200, 58,758 rows of 8,192 and two or
# four groups: 1.2 and 0.9 % in bf16, 0.6 and 0.4 in fp8.
CHUNK_COST = 0.004
PLACES: tuple[Where, ...] = ("resident", "evicted", "streamed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the operator fixed; ``None`` leaves it to the planner."""

    resident_blocks: int | None = None
    residences: Residences | None = None
    chunking: Chunking | None = None
    quantize: QuantizeConfig = field(default_factory=QuantizeConfig)
    text_quantize: QuantizeConfig = field(default_factory=QuantizeConfig)
    fp8_attention: bool = False
    slots: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """``peak_bytes`` of the device's allocator; ``seconds`` of the whole request (all forwards)."""

    name: str
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """``device_bytes`` always there, ``visiting_bytes`` while it works, ``host_bytes`` in pinned memory."""

    name: str
    where: str
    device_bytes: int
    visiting_bytes: int
    host_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One candidate, priced. ``precision`` and ``text_precision``: fp8, or the block dtype as bf16 or fp32."""

    residences: Residences
    chunking: Chunking
    precision: str
    text_precision: str
    num_blocks: int
    components: tuple[Component, ...]
    stages: tuple[Stage, ...]
    forward_s: float
    demand: Demand
    mesh: Mesh = ONE  # of the devices that share each forward; this is one of them

    @property
    def peak_bytes(self) -> int:
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def total_s(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def host_bytes(self) -> int:
        return sum(component.host_bytes for component in self.components)

    @property
    def resident_blocks(self) -> int:
        """Of the DiT."""
        layerwise = self.residences.dit
        return self.num_blocks - (0 if layerwise is None else len(streamed_positions(self.num_blocks, layerwise)))

    def fits(self, hardware: Hardware) -> bool:
        """With the margins of :func:`needed` and :func:`host_needed`."""
        return needed(self.peak_bytes) <= hardware.vram_bytes and host_needed(self) <= hardware.ram_bytes

    def summary(self) -> str:
        """One line for the log."""
        places = ", ".join(f"{c.name} {c.where}" for c in self.components)
        return (
            f"{places}; {self.resident_blocks} of {self.num_blocks} blocks resident, {self.precision}, "
            f"text {self.text_precision}, "
            f"mlp_rows {self.chunking.mlp_rows}, head_groups {self.chunking.head_groups}, "
            f"peak {gib(self.peak_bytes)}, host {gib(self.host_bytes)}, forward {self.forward_s:.2f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: bytes and seconds in the names."""
        clip = self.demand.target
        return {
            "precision": self.precision,
            "text_precision": self.text_precision,
            "resident_blocks": self.resident_blocks,
            "num_blocks": self.num_blocks,
            "slots": 0 if self.residences.dit is None else self.residences.dit.slots,
            "mlp_rows": self.chunking.mlp_rows,
            "head_groups": self.chunking.head_groups,
            "components": [asdict(component) for component in self.components],
            "stages": [asdict(stage) for stage in self.stages],
            "peak_bytes": self.peak_bytes,
            "budget_needed_bytes": needed(self.peak_bytes),
            "host_bytes": self.host_bytes,
            "forward_s": self.forward_s,
            "total_s": self.total_s,
            "shard_degrees": {"ulysses": self.mesh.ulysses, "ring": self.mesh.ring, "tensor": self.mesh.tensor},
            "work_rows": self.demand.rows,
            "work_video_rows": self.demand.video_rows,
            "work_audio_rows": self.demand.audio_rows,
            "work_text_tokens": self.demand.text_tokens,
            "work_latent_frames": clip.latent_frames,
            "work_width": clip.width,
            "work_height": clip.height,
            "work_num_frames": clip.num_frames,
            "work_num_samples": clip.num_samples,
            "work_num_forwards": self.demand.num_forwards,
        }


def needed(peak_bytes: int) -> int:
    """The budget that a predicted peak asks for."""
    return round(peak_bytes * MARGIN)


def chunk_cost(chunking: Chunking) -> float:
    """Factor of a forward's seconds."""
    return 1 + CHUNK_COST * CHUNKINGS.index(chunking) if chunking in CHUNKINGS else 1.0


def candidates(sizes: Sizes, hardware: Hardware, wishes: Wishes) -> Iterator[tuple[Residences, Chunking]]:
    """What may be chosen from, within the wishes."""
    chunkings: tuple[Chunking, ...] = CHUNKINGS if wishes.chunking is None else (wishes.chunking,)
    chunkings = tuple(c for c in chunkings if sizes.dit.num_attention_heads % (c.head_groups * sizes.mesh.ulysses) == 0)
    if wishes.residences is not None:
        yield from product((wishes.residences,), chunkings)
        return
    if hardware.unified:  # the device's memory is the host's: a copy there would be a second one
        yield from product((Residences(),), chunkings)
        return
    n = sizes.dit.num_layers
    blocks = range(n, -1, -1) if wishes.resident_blocks is None else (wishes.resident_blocks,)
    dits: list[LayerwiseConfig | None] = []
    for resident in blocks:
        config = LayerwiseConfig(resident=resident, slots=wishes.slots)
        streams = bool(streamed_positions(n, config))
        if streams or None not in dits:
            dits.append(config if streams else None)
    for dit, text, video, audio in product(dits, PLACES, PLACES, PLACES[:2]):
        yield from product((Residences(dit=dit, text=text, video=video, audio=audio),), chunkings)


def host_needed(plan: Plan) -> int:
    """Bytes of host memory: the weights that wait there, and the process itself."""
    return plan.host_bytes + HOST_SPARE
