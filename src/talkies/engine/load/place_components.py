"""Components to their residences, while they are loaded: what is streamed never passes through the device whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from talkies.attention.base import Attend
from talkies.codecs.audio.vae import AudioVAE
from talkies.codecs.text.encoder import NUM_LAYERS, TextEncoder
from talkies.codecs.text.linears import Fp8Linears
from talkies.codecs.text.shards import TextShard
from talkies.codecs.video.vae import VideoVAE
from talkies.engine.config import ResolvedConfig
from talkies.engine.load.planning import Placement
from talkies.h3.partitions import Parts
from talkies.kernels.select import Ops
from talkies.model.dit import PackedDiT
from talkies.model.weights import DiTSource, Place, as_it_is, build_dit
from talkies.placement.components import Residency, evict, move_buffers, stream_component
from talkies.placement.quantize import TEXT_PREFIX, QuantizeConfig, check_device, placer, quantized_text_names
from talkies.placement.ranks.groups import Group, RankGroups
from talkies.placement.stream.host_memory import HostBuffer
from talkies.placement.stream.layerwise import LayerwiseConfig, stream, streamed_positions, to_host


def place_dit(
    source: DiTSource,
    device: torch.device,
    residency: Residency,
    *,
    group: str,
    attend: Attend,
    text_attend: Attend | None,
    ops: Ops,
    quantize: QuantizeConfig,
    layerwise: LayerwiseConfig | None,
) -> PackedDiT:
    """A DiT without AdaLN projections, its blocks resident or streamed (in ``group``).

    The refiner works once a request, and two blocks of it are as large as two of the others: it streams, too (group
    ``<group>.refiner``). Streamed blocks are settled one by one, so loading needs one block of device memory.
    """
    place = placer(quantize, source.config, ops, device)
    if layerwise is None:
        return build_dit(source, attend=attend, text_attend=text_attend, ops=ops, adaln=False, place=place)
    num_layers, num_refiner = source.config.num_layers, source.config.num_refiner_layers
    refining = LayerwiseConfig(slots=1)
    streamed = {f"blocks.{i}" for i in streamed_positions(num_layers, layerwise)}
    streamed |= {f"token_refiner.blocks.{i}" for i in streamed_positions(num_refiner, refining)}
    buffers: dict[str, HostBuffer] = {}

    def settle(name: str, block: nn.Module) -> None:
        if name in streamed:
            buffers[name] = to_host(block, pin=device.type == "cuda")

    dit = build_dit(
        source,
        attend=attend,
        text_attend=text_attend,
        ops=ops,
        adaln=False,
        place=_past_the_device(place, streamed) if quantize.method == "none" else place,
        settle=settle,
    )
    for where, path, modules, config in (
        (group, "blocks", dit.blocks, layerwise),
        (f"{group}.refiner", "token_refiner.blocks", dit.token_refiner.blocks, refining),
    ):
        by_position = {int(key.rsplit(".", 1)[1]): b for key, b in buffers.items() if key.rsplit(".", 1)[0] == path}
        residency.add(where, [stream(list(modules), device, config, buffers=by_position)])
    return dit


def _past_the_device(place: Place, streamed: set[str]) -> Place:
    """What is streamed unquantised goes from the file to its buffer, not to the device and back."""

    def choose(name: str, tensor: Tensor) -> dict[str, Tensor]:
        parts = name.split(".")
        away = any(".".join(parts[:n]) in streamed for n in (2, 3))
        return as_it_is(name, tensor) if away else place(name, tensor)

    return choose


def place_text(
    folder: Path,
    residency: Residency,
    where: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    quantize: QuantizeConfig,
    attention: str,
    group: Group | None = None,
) -> TextEncoder:
    """The text encoder (group ``text`` of the residency), or this rank's share of it where ``group`` has several. What
    is quantised is quantised on the device, wherever it lives after."""
    names = quantized_text_names(quantize, NUM_LAYERS)
    if names and device.type == "cuda":
        check_device(device, ops, "text_quantization")
    encoder = TextEncoder.load(
        folder,
        dtype=dtype,
        device=device,
        weights_on=None if where == "resident" else "cpu",
        fp8=Fp8Linears(names={n.removeprefix(TEXT_PREFIX) for n in names}, ops=ops, device=device) if names else None,
        attention=attention,
        shard=None if group is None or group.size == 1 else TextShard(group.rank, group.size, partial(_add_up, group)),
    )
    if where == "resident":
        return encoder
    stacks = []
    if where == "streamed":
        stacks = [list(encoder.model.language_model.layers)]
        vision = getattr(getattr(encoder.model, "visual", None), "blocks", None)
        if vision is not None:
            stacks.append(list(vision))
    residency.add("text", stream_component(encoder.model, stacks, device))
    move_buffers(encoder.model, device)
    return encoder


def build_text(
    parts: Parts,
    resolved: ResolvedConfig,
    placement: Placement,
    residency: Residency,
    *,
    ops: Ops,
    groups: RankGroups | None,
) -> TextEncoder:
    """This rank's text encoder, whole or its share of it, as the engine's options say."""
    return place_text(
        parts.text_encoder,
        residency,
        placement.residences.text,
        dtype=resolved.dtype,
        device=resolved.device,
        ops=ops,
        quantize=resolved.text_quantize,
        attention=resolved.text_attention,
        group=None if groups is None else groups.text,
    )


def _add_up(group: Group, part: Tensor) -> None:
    group.summed(part, "the text encoder's products were summed")


def place_video(
    folder: Path, residency: Residency, where: str, *, dtype: torch.dtype, device: torch.device, ops: Ops
) -> VideoVAE:
    """The video VAE (groups ``video`` to decode, ``video.encoder``)."""
    if where == "resident":
        return VideoVAE.load(folder, dtype=dtype, device=device, ops=ops)
    vae = VideoVAE.load(folder, dtype=dtype, device=device, weights_on="cpu", ops=ops)
    stacks = [list(vae.decoder.transformer_blocks)] if where == "streamed" else []
    residency.add("video", stream_component(vae.decoder, stacks, device))
    vae.on_encoder = lambda encoder: residency.add("video.encoder", evict(list(encoder.values()), device))
    return vae


def place_audio(folder: Path, residency: Residency, where: str, *, device: torch.device) -> AudioVAE:
    """The audio VAE (group ``audio``): its parts come when they are called, so one half at most is there."""
    if where == "resident":
        return AudioVAE.load(folder, device=device)
    vae = AudioVAE.load(folder, device="cpu")
    vae.device = device
    modules = [child for child in vae.model.children() if any(True for _ in child.parameters())]
    residency.add("audio", evict(modules, device))
    return vae
