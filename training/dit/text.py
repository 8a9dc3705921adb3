"""The stock Qwen3-VL text encoder, run for training: a few live layers, one vision layer, one presentation per batch.

A batch shares its token positions (same keyframes, same prompt length), so rotary tables are [L, H] and no mask is
needed beyond causality. Equal to hidden_states[50] of the stock 51-layer model whose other layers are identities
(tests/training/test_text_and_dit.py).

B samples, L tokens, K keyframes, P patches and V = P/4 tokens per keyframe, C = 64 channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.components import NUM_LIVE_TEXT_LAYERS, NUM_TEXT_LAYERS, text_encoder_config
from training.tokenizer import special_ids
from training.world import Canvas

PATCH_PX, MERGE, IMAGE_MULTIPLE = 16, 2, 32


def encoder_image_size(canvas: Canvas) -> tuple[int, int]:
    """(height, width) that the image processor resizes a keyframe to: each side to the nearest multiple of 32."""
    return tuple(max(1, round(side / IMAGE_MULTIPLE)) * IMAGE_MULTIPLE for side in (canvas.height, canvas.width))


@dataclass(frozen=True)
class Presentation:
    """The part of the token sequence in front of the prompt, and M-RoPE positions [3, L] for a prompt length."""

    ids: tuple[int, ...]
    is_vision: tuple[bool, ...]
    is_pad: tuple[bool, ...]
    positions: tuple[tuple[int, int, int], ...]
    next_position: int

    def with_prompt(self, num_tokens: int) -> Tensor:
        prompt = [(self.next_position + i,) * 3 for i in range(num_tokens)]
        return torch.tensor([*self.positions, *prompt]).T


class PresentationBuilder:
    """Collects labels and vision blocks in order, with their M-RoPE positions."""

    def __init__(self, tokenizer) -> None:
        self._tokenizer, self._special = tokenizer, special_ids(tokenizer)
        self._ids: list[int] = []
        self._vision: list[bool] = []
        self._pads: list[bool] = []
        self._positions: list[tuple[int, int, int]] = []
        self._at = 0

    def _add(self, token: int, is_vision: bool, position: tuple[int, int, int], is_pad: bool = False) -> None:
        self._ids.append(token)
        self._vision.append(is_vision)
        self._pads.append(is_pad)
        self._positions.append(position)

    def text(self, label: str) -> None:
        for token in self._tokenizer(label, add_special_tokens=False)["input_ids"]:
            self._add(token, False, (self._at,) * 3)
            self._at += 1

    def vision(self, size: tuple[int, int], pad: str = "<|image_pad|>") -> None:
        """One block of (height, width) pixels, both multiples of 32."""
        height, width = (side // IMAGE_MULTIPLE for side in size)
        self._add(self._special["<|vision_start|>"], True, (self._at,) * 3)
        self._at += 1
        for row in range(height):
            for column in range(width):
                self._add(self._special[pad], True, (self._at, self._at + row, self._at + column), is_pad=True)
        self._at += max(height, width)
        self._add(self._special["<|vision_end|>"], True, (self._at,) * 3)
        self._at += 1

    def done(self) -> Presentation:
        return Presentation(tuple(self._ids), tuple(self._vision), tuple(self._pads), tuple(self._positions), self._at)


def present(tokenizer, canvas: Canvas, num_keyframes: int) -> Presentation:
    """`<Picture i>: ` and a vision block per keyframe."""
    builder = PresentationBuilder(tokenizer)
    for index in range(num_keyframes):
        builder.text(f"<Picture {index + 1}>: ")
        builder.vision(encoder_image_size(canvas))
    return builder.done()


def pair_to_patches(pairs_B23HW: Tensor, size: tuple[int, int]) -> Tensor:
    """Frame pairs in 0..1 -> [B, P, 1536]: bicubic resize, range -1..1, channel slowest and frame next in a patch."""
    x = pairs_B23HW.flatten(0, 1)
    if tuple(x.shape[-2:]) != size:
        x = F.interpolate(x, size=size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    x = (x * 2 - 1).unflatten(0, (-1, 2))
    b, pair, c, h, w = x.shape
    block = PATCH_PX * MERGE
    x = x.reshape(b, pair, c, h // block, MERGE, PATCH_PX, w // block, MERGE, PATCH_PX)
    return x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(b, h * w // PATCH_PX**2, -1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def _merge_order(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Row and column of every patch, in the order of `to_patches`."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    blocks = (height // MERGE, MERGE, width // MERGE, MERGE)
    return tuple(axis.reshape(blocks).permute(0, 2, 1, 3).flatten() for axis in (rows, columns))


class VisionTables(nn.Module):
    """What depends on the grid alone: bilinear weights into the 8 x 8 position table, rotary tables."""

    def __init__(self, size: tuple[int, int], num_positions: int, head_dim: int) -> None:
        super().__init__()
        height, width = (side // PATCH_PX for side in size)
        row, column = _merge_order(height, width)
        side = int(num_positions**0.5)
        weights = torch.zeros(len(row), num_positions)
        for lines, count in ((row, height), (column, width)):
            assert int(lines.max()) == count - 1
        y, x = row * (side - 1) / max(height - 1, 1), column * (side - 1) / max(width - 1, 1)
        for low_y in (True, False):
            for low_x in (True, False):
                yi = y.floor() if low_y else (y.floor() + 1).clamp(max=side - 1)
                xi = x.floor() if low_x else (x.floor() + 1).clamp(max=side - 1)
                share = (1 - (y - y.floor()) if low_y else y - y.floor()) * (
                    1 - (x - x.floor()) if low_x else x - x.floor()
                )
                weights[torch.arange(len(row)), (yi * side + xi).long()] += share
        inv_freq = 1.0 / 10000 ** (torch.arange(0, head_dim // 2, 2) / (head_dim // 2))
        angles = torch.cat([row[:, None] * inv_freq, column[:, None] * inv_freq], -1).repeat(1, 2)
        self.register_buffer("position_weights", weights)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())


def _merge(merger: nn.Module, x: Tensor) -> Tensor:
    grouped = x.unflatten(1, (-1, MERGE**2)).flatten(2)
    x = merger.norm(grouped) if merger.use_postshuffle_norm else merger.norm(x).unflatten(1, (-1, MERGE**2)).flatten(2)
    return merger.linear_fc2(merger.act_fn(merger.linear_fc1(x)))


def run_vision(visual: nn.Module, tables: VisionTables, patches_BPX: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, DeepStack features), [B, V, C] each."""
    proj = visual.patch_embed.proj
    x = F.linear(patches_BPX, proj.weight.flatten(1), proj.bias)
    x = x + tables.position_weights.to(x.dtype) @ visual.pos_embed.weight
    block = visual.blocks[0]
    attn = block.attn
    q, k, v = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = _rotate(q, tables.cos, tables.sin).to(v.dtype), _rotate(k, tables.cos, tables.sin).to(v.dtype)
    x = x + attn.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    x = x + block.mlp(block.norm2(x))
    return _merge(visual.merger, x), _merge(visual.deepstack_merger_list[0], x)


def _text_rotary(positions_3L: Tensor, config) -> tuple[Tensor, Tensor]:
    parameters = config.rope_parameters
    inv_freq = 1.0 / parameters["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
    angles = positions_3L[..., None].float() * inv_freq
    mixed = angles[0].clone()
    for axis in (1, 2):
        picked = slice(axis, parameters["mrope_section"][axis] * 3, 3)
        mixed[:, picked] = angles[axis][:, picked]
    mixed = torch.cat([mixed, mixed], -1)
    return mixed.cos(), mixed.sin()


class TextEncoder(nn.Module):
    """Holds a stock Qwen3VLForConditionalGeneration of the live layers alone and runs one batch's presentation."""

    def __init__(self, tokenizer, num_live_layers: int = NUM_LIVE_TEXT_LAYERS) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.stock = build_stock(tokenizer, num_live_layers)
        self._vision_tables: dict[tuple[int, int], VisionTables] = {}
        self._rotary: dict[tuple, tuple[Tensor, Tensor]] = {}
        self._prefix: dict[Presentation, tuple[Tensor, Tensor]] = {}

    def vision(self, images_B3HW: Tensor, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """(tokens, DeepStack features) of keyframes in 0..1, [B, V, C] each."""
        return self.vision_of_pairs(images_B3HW[:, None].expand(-1, 2, -1, -1, -1), canvas)

    def vision_of_pairs(self, pairs_B23HW: Tensor, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """The same for pairs of video frames."""
        visual = self.stock.model.visual
        size = encoder_image_size(canvas)
        if size not in self._vision_tables:
            attn = visual.blocks[0].attn
            tables = VisionTables(size, visual.pos_embed.weight.shape[0], attn.qkv.in_features // attn.num_heads)
            self._vision_tables[size] = tables.to(pairs_B23HW.device)
        return run_vision(visual, self._vision_tables[size], pair_to_patches(pairs_B23HW, size))

    def forward(
        self, presentation: Presentation, prompt_ids_BL: Tensor, features: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Text rows [B, L, C]; `features` are the keyframes' vision tokens, keyframes in order along V."""
        language = self.stock.model.language_model
        batch, num_prompt_tokens = prompt_ids_BL.shape
        device = prompt_ids_BL.device
        if presentation not in self._prefix:  # kept on the device: a copy to it waits for everything queued before it
            pads = [i for i, is_pad in enumerate(presentation.is_pad) if is_pad]
            tensors = (torch.tensor(values, device=device, dtype=torch.long) for values in (presentation.ids, pads))
            self._prefix[presentation] = tuple(tensors)
        prefix, pads = self._prefix[presentation]
        x = language.embed_tokens(torch.cat([prefix.expand(batch, -1), prompt_ids_BL], 1))
        if features is not None:
            x = x.index_copy(1, pads, features[0].to(x.dtype))
        key = (presentation.positions, num_prompt_tokens)
        if key not in self._rotary:
            tables = _text_rotary(presentation.with_prompt(num_prompt_tokens), language.config)
            self._rotary[key] = tuple(table.to(device) for table in tables)
        cos, sin = self._rotary[key]
        for index, layer in enumerate(language.layers):
            attn, y = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (p(y).unflatten(-1, (-1, attn.head_dim)) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
            q, k = attn.q_norm(q).transpose(1, 2), attn.k_norm(k).transpose(1, 2)
            q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
            x = x + attn.o_proj(y.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if index == 0 and features is not None:
                x = x.index_add(1, pads, features[1].to(x.dtype))
        return x


def build_stock(tokenizer, num_layers: int) -> nn.Module:
    from transformers import Qwen3VLForConditionalGeneration

    config = text_encoder_config(special_ids(tokenizer), len(tokenizer), num_layers)
    return Qwen3VLForConditionalGeneration(config)


@torch.no_grad()
def expand(trained: nn.Module, tokenizer) -> nn.Module:
    """The 51-layer stock model: the trained layers in front, identities behind (all their matrices are zero)."""
    model = build_stock(tokenizer, NUM_TEXT_LAYERS)
    for p in model.model.language_model.layers[len(trained.model.language_model.layers) :].parameters():
        if p.ndim == 2:
            p.zero_()
    state = {k: v for k, v in trained.state_dict().items() if not k.endswith("language_model.norm.weight")}
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    return model.eval()
