"""The text encoder: Qwen3-VL up to its 50th decoder layer (docs/model.md, Text encoder).

L tokens, D hidden width. What conditions the DiT is the stream after layer index 49, before any norm:
``hidden_states[50]`` of the stock model. Later layers, the final norm and the head are neither built nor read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from talkies.codecs.finite import require_finite
from talkies.codecs.text.attention import use_attention
from talkies.codecs.text.linears import Fp8Linears
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import PixelRows, Presentation, Visual, pixel_rows, present
from talkies.codecs.text.shards import TextShard
from talkies.codecs.text.source import TextSource
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.errors import CheckpointError, InvalidRequest
from talkies.files.component_folders import WeightFolder
from talkies.files.json_files import read_json
from talkies.model.weights import assign

NUM_LAYERS = 50


@dataclass(frozen=True, eq=False, slots=True)
class TextCondition:
    """``states`` [L, D] in the encoder's dtype on its device; ``tags`` int8 [L] on the CPU (0 vision, 1 text)."""

    states: Tensor
    tags: Tensor


RunEncoder = Callable[[Presentation, Tensor, Tensor], Tensor]  # as TextEncoder.run


class TextEncoder:
    """The vision tower, the embeddings and 50 layers of a Qwen3-VL checkpoint."""

    def __init__(self, model: Any, *, num_live_layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.num_live_layers = num_live_layers  # of NUM_LAYERS; the others are exact identities and are skipped
        self.dtype = dtype
        self.device = device
        self.bytes_read = 0  # stored bytes of its weights

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        weights_on: torch.device | str | None = None,
        fp8: Fp8Linears | None = None,
        attention: str = "sdpa",
        shard: TextShard | None = None,
    ) -> TextEncoder:
        """Reads a ``text_encoder/`` folder, single file or sharded, tensor by tensor.

        A layer whose two output matrices are all zero adds exactly nothing: it is skipped and its weights are not
        read. ``weights_on`` is where weights are put, if whoever loads it brings them to ``device`` when they are
        needed. ``fp8`` makes linears e4m3 one by one, so that loading needs the finished size and one linear. ``shard``
        keeps this rank's share of every layer; not with ``fp8``.
        Raises ``CheckpointError`` naming a key that is missing, unknown or misshapen.
        """
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

        folder, device = Path(folder), torch.device(device)
        home = torch.device(weights_on or device)
        raw = read_json(folder / "config.json")
        if "text_config" not in raw or "vision_config" not in raw:
            raise CheckpointError(f"{folder / 'config.json'} is not a Qwen3-VL config", param=str(folder))
        config: Any = Qwen3VLConfig.from_dict(raw)
        stored_layers = config.text_config.num_hidden_layers
        if stored_layers < NUM_LAYERS:
            raise CheckpointError(
                f"{folder}: the text encoder has {stored_layers} layers, layer {NUM_LAYERS} is the condition",
                param=str(folder),
            )
        config.text_config.num_hidden_layers = NUM_LAYERS
        with torch.device("meta"):
            model: Any = Qwen3VLModel(config)
        stack = model.language_model
        stack.norm = nn.Identity()

        weights = WeightFolder(folder, align=device.type == "cpu")
        source = TextSource(weights, NUM_LAYERS, stored_layers, str(folder))
        expected = {key: tuple(slot.shape) for key, slot in model.state_dict().items()}
        source.check(expected)
        identities = [i for i in range(NUM_LAYERS) if source.is_identity(i)]
        for i in identities:
            stack.layers[i] = PassThrough()
        # Past the deepstack taps nothing happens between layers, so trailing identities need not even be called.
        taps = len(config.vision_config.deepstack_visual_indexes)
        while len(stack.layers) > taps and isinstance(stack.layers[-1], PassThrough):
            del stack.layers[-1]

        if fp8 is not None:
            fp8.install(model)
        if shard is not None:
            assert fp8 is None, "engine.config.resolve refuses the two together"
            shard.install(model)
        use_attention(model, attention)
        for key, stored in source.in_order(list(model.state_dict())):
            tensor = stored if shard is None else shard.cut(key, stored)
            placed = fp8.place(key, tensor, dtype) if fp8 is not None else None
            made = placed or {key: tensor.to(device=home, dtype=dtype)}
            assign(model, {name: value.to(home) for name, value in made.items()})
        assert not any(p.is_meta for p in model.parameters())
        restore_buffers(model, config, home)
        model.requires_grad_(False).eval()
        encoder = cls(model, num_live_layers=NUM_LAYERS - len(identities), dtype=dtype, device=device)
        encoder.bytes_read = weights.bytes_asked
        return encoder

    def encode(self, presentation: Presentation, rows: PixelRows | None = None) -> TextCondition:
        """The condition of one request. ``rows`` are the patch rows of the presentation's images and videos.

        Raises ``NumericsError`` when a state is not finite, ``InvalidRequest`` for an id outside the vocabulary.
        """
        self.check(presentation)
        return self.condition(presentation, self.run(presentation, *self.pixels(presentation, rows or PixelRows())))

    def check(self, presentation: Presentation) -> None:
        """Raises ``InvalidRequest`` for an id outside the vocabulary."""
        vocabulary = self.model.language_model.embed_tokens.num_embeddings
        if max(presentation.input_ids) >= vocabulary:
            raise InvalidRequest(
                f"token id {max(presentation.input_ids)} is outside the encoder's vocabulary of {vocabulary}",
                hint="tokenizer/ and text_encoder/ must come from one checkpoint",
                param="prompt",
            )

    def pixels(self, presentation: Presentation, rows: PixelRows) -> tuple[Tensor, Tensor]:
        """Patch rows of the images and of the videos on the device, in the encoder's dtype; [0, 0] where are none."""
        return (
            self._pixels(rows.images, presentation.image_grids, "images"),
            self._pixels(rows.videos, presentation.video_grids, "videos"),
        )

    @torch.no_grad()
    def run(self, presentation: Presentation, images: Tensor, videos: Tensor) -> Tensor:
        """States [L, D] of a checked presentation and its :meth:`pixels`: what every rank does alike where the encoder
        is cut."""
        input_ids = self._ids(presentation.input_ids)
        vision: dict[str, Any] = {}
        if presentation.image_grids:
            vision |= {"pixel_values": images, "image_grid_thw": self._ids(presentation.image_grids)[0]}
        if presentation.video_grids:
            vision |= {"pixel_values_videos": videos, "video_grid_thw": self._ids(presentation.video_grids)[0]}
        return self.model(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            mm_token_type_ids=self._ids(presentation.mm_token_type_ids),
            use_cache=False,
            **vision,
        ).last_hidden_state[0]

    def condition(self, presentation: Presentation, states: Tensor) -> TextCondition:
        """Raises ``NumericsError`` when a state is not finite."""
        require_finite(states, "text encode")
        return TextCondition(states, torch.tensor(presentation.token_tags, dtype=torch.int8))

    def _ids(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor([values], dtype=torch.long, device=self.device)

    def _pixels(self, rows: np.ndarray | None, grids: Sequence[tuple[int, int, int]], what: str) -> Tensor:
        wanted = sum(t * h * w for t, h, w in grids)
        if not wanted:
            return torch.empty(0, 0, dtype=self.dtype, device=self.device)
        if rows is None or rows.shape[0] != wanted:
            raise ValueError(f"the presentation's {what} need {wanted} patch rows")
        return torch.from_numpy(rows).to(device=self.device, dtype=self.dtype)


class Conditioner:
    """Tokenizer, patch preparation and encoder of one checkpoint behind one call."""

    def __init__(self, tokenizer: FolderTokenizer, patches: PatchConfig, encoder: TextEncoder) -> None:
        self.tokenizer = tokenizer
        self.patches = patches
        self.encoder = encoder

    def present(self, prompt: str, visuals: Sequence[Visual] = ()) -> Presentation:
        """The ids alone: cheap, and enough to know L."""
        return present(self.tokenizer, prompt, visuals, patches=self.patches)

    def encode(self, prompt: str, visuals: Sequence[Visual] = (), run: RunEncoder | None = None) -> TextCondition:
        """Prompt and visuals -> the text rows of the DiT. ``run`` takes the place of the encoder's own, where other
        ranks have a share of it."""
        presentation, encoder = self.present(prompt, visuals), self.encoder
        encoder.check(presentation)
        pixels = encoder.pixels(presentation, pixel_rows(visuals, patches=self.patches))
        return encoder.condition(presentation, (run or encoder.run)(presentation, *pixels))


class PassThrough(nn.Module):
    """A decoder layer that adds exactly zero, called with whatever the stack calls its layers with."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


def restore_buffers(model: nn.Module, config: Any, device: torch.device) -> None:
    """Rotary frequencies are computed, not stored, so the meta device left them empty: build those modules anew."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if any(buffer.is_meta for buffer in child.buffers(recurse=False)):
                # The vision tower's know two numbers in place of a config before transformers 5.17.
                made_of = (child.config,) if hasattr(child, "config") else (child.dim, child.theta)
                setattr(parent, name, type(child)(*made_of).to(device))
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    assert not left, f"not loaded: {left}"
