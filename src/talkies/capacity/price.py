"""What a candidate costs, by the formulas of ``weight_bytes``, ``stage_bytes`` and ``seconds``.

Thousands of candidates are priced for one request, so what depends on one choice alone is counted once for each value
of that choice: the terms of the request itself, of each way to hold the DiT, of each place of a codec.
"""

from __future__ import annotations

from functools import cache

from talkies.capacity import seconds as timing
from talkies.capacity import stage_bytes as stages_of
from talkies.capacity import weight_bytes as weights_of
from talkies.capacity.demand import Demand
from talkies.capacity.hardware import Hardware
from talkies.capacity.plan import Component, Plan, Stage, Wishes, candidates, chunk_cost
from talkies.capacity.sizes import Sizes
from talkies.capacity.weight_bytes import Weights
from talkies.model.chunking import Chunking
from talkies.placement.components import Residences, Where
from talkies.placement.modulation_feed import WHOLE_BYTES
from talkies.placement.stream.layerwise import LayerwiseConfig


class Pricing:
    """Prices candidates for one request on one machine; ``plan`` is one of them, whether it fits or not."""

    def __init__(self, sizes: Sizes, demand: Demand, hardware: Hardware, wishes: Wishes) -> None:
        self._sizes, self._demand, self._hardware, self._wishes = sizes, demand, hardware, wishes
        self._fp8 = wishes.quantize.method == "fp8"
        self._fp8_text = wishes.text_quantize.method == "fp8"
        self._rows = demand.rows
        self._held = stages_of.held_bytes(sizes, demand, whole_modulation=WHOLE_BYTES)
        self._table = stages_of.table_bytes(sizes, demand)
        self._text = stages_of.text_bytes(sizes, demand, fp8=self._fp8_text)
        self._conditions = max((stages_of.condition_bytes(sizes, c) for c in demand.conditions), default=0)
        self._decode = stages_of.decode_bytes(sizes, demand)
        self._sound = stages_of.sound_bytes(sizes, demand)
        self._dit = cache(self._dit_of)
        self._codecs = cache(self._codecs_of)
        self._forward = cache(self._forward_of)

    def plan(self, residences: Residences, chunking: Chunking) -> Plan:
        dit, dit_component, refiner, forward_s = self._dit(residences.dit)
        text, video, audio, components, encode_s, decode_s = self._codecs(
            residences.text, residences.video, residences.audio
        )
        fixed = dit.fixed + text.fixed + video.fixed + audio.fixed + stages_of.WORKSPACE
        working = fixed + self._held
        forward_s *= chunk_cost(chunking)
        plain = {2: "bf16", 4: "fp32"}[self._sizes.block_bytes]
        return Plan(
            residences=residences,
            chunking=chunking,
            precision="fp8" if self._fp8 else plain,
            text_precision="fp8" if self._fp8_text else plain,
            num_blocks=self._sizes.dit.num_layers,
            components=(dit_component, *components),
            stages=(
                Stage(
                    name="encode",
                    peak_bytes=fixed + max(text.visiting + self._text, self._conditions),
                    seconds=encode_s,
                ),
                Stage(
                    name="pack",
                    peak_bytes=working + max(refiner, self._table),
                    # AdaLN matrices are read and cross once a schedule; kept for the next request with it.
                    seconds=self._table * self._sizes.dit.num_layers / 2 / self._hardware.h2d_bytes_per_s,
                ),
                Stage(
                    name="denoise",
                    peak_bytes=working + dit.visiting + self._forward(chunking),
                    seconds=forward_s * self._demand.num_forwards,
                ),
                Stage(
                    name="decode",
                    peak_bytes=working + max(video.visiting + self._decode, audio.visiting + self._sound),
                    seconds=decode_s,
                ),
            ),
            forward_s=forward_s,
            demand=self._demand,
            mesh=self._sizes.mesh,
        )

    def all(self) -> list[Plan]:
        """Every candidate, whether it fits or not."""
        return [self.plan(r, c) for r, c in candidates(self._sizes, self._hardware, self._wishes)]

    def _dit_of(self, layerwise: LayerwiseConfig | None) -> tuple[Weights, Component, int, float]:
        """Weights, bytes of the refiner's visit, and seconds of a forward without chunks."""
        sizes, quantize = self._sizes, self._wishes.quantize
        weights = weights_of.dit_weights(sizes, quantize, layerwise)
        # The refiner has one slot of its own, and leaves before the blocks come.
        refiner = max(weights_of.refiner_bytes(sizes.dit, sizes.block_bytes), default=0) if layerwise else 0
        forward_s = timing.forward_seconds(
            sizes,
            self._rows,
            self._hardware,
            layerwise,
            weights_of.block_bytes(sizes.dit, quantize, sizes.block_bytes),
            fp8=self._fp8,
            fp8_attention=self._wishes.fp8_attention,
        )
        where = "streamed" if layerwise else "resident"
        return weights, _component("dit", where, weights), refiner, forward_s

    def _codecs_of(
        self, text_at: Where, video_at: Where, audio_at: Where
    ) -> tuple[Weights, Weights, Weights, tuple[Component, ...], float, float]:
        """Weights of text, video and audio, and seconds of encoding and decoding."""
        sizes, demand, hardware, wishes = self._sizes, self._demand, self._hardware, self._wishes
        text = weights_of.text_weights(sizes, text_at, wishes.slots, wishes.text_quantize)
        video = weights_of.video_weights(sizes, video_at, wishes.slots)
        audio = weights_of.audio_weights(sizes, audio_at)
        placed = (("text", text_at, text), ("video", video_at, video), ("audio", audio_at, audio))
        encode_s = timing.encode_seconds(sizes, demand, hardware, text.host, fp8=self._fp8_text)
        decode_s = timing.decode_seconds(sizes, demand, hardware, video.host, streamed=video_at == "streamed")
        components = tuple(_component(name, where, weights) for name, where, weights in placed)
        return text, video, audio, components, encode_s, decode_s

    def _forward_of(self, chunking: Chunking) -> int:
        return stages_of.forward_bytes(
            self._sizes, self._rows, chunking, fp8=self._fp8, fp8_attention=self._wishes.fp8_attention
        )


def _component(name: str, where: str, weights: Weights) -> Component:
    return Component(
        name=name, where=where, device_bytes=weights.fixed, visiting_bytes=weights.visiting, host_bytes=weights.host
    )
