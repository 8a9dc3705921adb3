"""Fine-tunes a copy of the first partition's DiT on references; the text encoder and both VAEs stay as they are.

Loss, timesteps and noise are `train_dit`'s. What differs is the batch: a kind of request, references of one size each,
and text rows of the frozen encoder from vision features that were computed once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from training import world
from training.components import NUM_LIVE_TEXT_LAYERS, PATCH
from training.dit import batched, noise, text, train_dit
from training.ref2va import reference_data, references
from training.ref2va.reference_data import LONGEST_SOUND, SoundBank, StillBank, TargetClips
from training.ref2va.references import Reference

PEAK_LR = 6e-4
KIND_SHARE = {
    "image": 0.28,
    "image_bare": 0.10,
    "image_audio": 0.22,
    "audio_image": 0.06,
    "video": 0.26,
    "video_silent": 0.08,
}
CANVAS_SHARE = {"16:9": 0.5, "21:9": 0.1, "4:3": 0.1, "1:1": 0.12, "3:4": 0.08, "9:16": 0.1}
STILL_CANVAS_SHARE = {"16:9": 0.45, "1:1": 0.3, "4:3": 0.15, "9:16": 0.1}
FRAME_SHARE = {22: 0.10, 39: 0.10, 56: 0.45, 90: 0.12, 124: 0.23}
PRECEDING_SHARE = {22: 0.3, 39: 0.4, 56: 0.3}  # frames; the engine cuts a reference to the target's length
SOUND_SHARE = {40: 0.6, LONGEST_SOUND: 0.4}  # latents, cut to the target's length as well


class ReferenceModels(nn.Module):
    """The DiT to be trained and the frozen text encoder."""

    def __init__(self, dit: nn.Module, encoder: text.TextEncoder) -> None:
        super().__init__()
        self.dit, self.text = dit, encoder.eval().requires_grad_(False)


def load(folder: Path, tokenizer) -> ReferenceModels:
    """The saved first partition: `transformer/` and `text_encoder/` of a checkpoint, in float32."""
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

    # by hand, as in assemble.load_video_vae
    dit = MiniMaxH3Transformer3DModel.from_config(MiniMaxH3Transformer3DModel.load_config(folder / "transformer"))
    dit.load_state_dict(load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors"))
    encoder = text.TextEncoder(tokenizer)
    saved = load_file(folder / "text_encoder" / "model.safetensors")
    wanted = encoder.stock.state_dict()
    missing = set(wanted) - set(saved) - {"lm_head.weight"}  # tied to the embeddings, and never run
    if missing:
        raise SystemExit(
            f"{folder / 'text_encoder'} lacks {sorted(missing)[:3]} of its first {NUM_LIVE_TEXT_LAYERS} layers"
        )
    encoder.stock.load_state_dict({name: saved[name] for name in wanted if name in saved}, strict=False)
    return ReferenceModels(dit.float(), encoder.float())


@dataclass(frozen=True, kw_only=True)
class ReferenceBatch:
    placed: batched.PlacedLayout
    presentation: text.Presentation
    prompt_ids: Tensor  # [B, L]
    features: tuple[Tensor, Tensor] | None  # [B, V, 64] each, all references' pads in order
    condition_rows: list[Tensor]  # [B, rows, 64 or 16] each, in sequence order; visual ones with their noise
    audio_rows: Tensor  # [B, 2*Ta, 16]
    video_rows: Tensor  # [B, T*R, 64]
    shows_object: Tensor  # [B, T*R]
    clip: Tensor  # [B] index into the target clips


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the samples of one batch have in common."""

    kind: str
    canvas: str
    num_frames: int
    still_canvas: str = "16:9"
    preceding_frames: int = 39
    sound_latents: int = 40


class ReferenceMaker:
    """Draws batches of about `rows_per_batch` rows; all samples of one share their layout."""

    def __init__(
        self,
        targets: dict[str, TargetClips],
        stills: dict[str, StillBank],
        sounds: SoundBank,
        models: ReferenceModels,
        rows_per_batch: int,
        device: str,
        rank: int = 0,
    ) -> None:
        self.targets, self.stills, self.sounds = targets, stills, sounds
        self.models, self.rows_per_batch, self.device = models, rows_per_batch, device
        self.rng = random.Random(rank)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._place = batched.Placer(models.dit.rope.inv_freq.to(device), dtype)
        self._bases: dict[tuple, tuple[text.Presentation, references.ReferenceLayout]] = {}

    def _pick(self, shares: dict, allowed=lambda value: True):
        kept = {value: share for value, share in shares.items() if allowed(value)}
        return self.rng.choices(list(kept), list(kept.values()))[0]

    def wish(self) -> Wish:
        canvas = self._pick(CANVAS_SHARE, lambda name: name in self.targets)
        num_frames = self._pick(FRAME_SHARE)
        lengths = self.targets[canvas].preceding
        return Wish(
            kind=self._pick(KIND_SHARE),
            canvas=canvas,
            num_frames=num_frames,
            still_canvas=self._pick(STILL_CANVAS_SHARE, lambda name: name in self.stills),
            preceding_frames=self._pick(PRECEDING_SHARE, lambda n: n in lengths and n <= num_frames),
            sound_latents=min(self._pick(SOUND_SHARE), world.num_audio_latents(num_frames)),
        )

    def references_of(self, wish: Wish) -> tuple[Reference, ...]:
        still = Reference(canvas=world.CANVASES[wish.still_canvas])
        sound = Reference(num_audio_latents=wish.sound_latents)
        if wish.kind.startswith("video"):
            film = self.targets[wish.canvas].preceding[wish.preceding_frames].reference
            silent = Reference(canvas=film.canvas, num_frames=film.num_frames)
            return (film if wish.kind == "video" else silent,)
        return {"image_audio": (still, sound), "audio_image": (sound, still)}.get(wish.kind, (still,))

    def _base(self, wish: Wish) -> tuple[text.Presentation, references.ReferenceLayout]:
        refs = self.references_of(wish)
        key = (wish.canvas, wish.num_frames, refs)
        if key not in self._bases:
            presentation = references.present(self.models.text.tokenizer, refs)
            layout = references.layout_of(world.CANVASES[wish.canvas], wish.num_frames, refs, presentation)
            self._bases[key] = presentation, layout
        return self._bases[key]

    def draw(self) -> ReferenceBatch:
        return self.make(self.wish())

    def make(self, wish: Wish, batch_size: int | None = None) -> ReferenceBatch:
        presentation, base = self._base(wish)
        if batch_size is None:
            batch_size = max(2, self.rows_per_batch // (base.num_rows + 20) // 8 * 8)
        target = self.targets[wish.canvas]
        clips = target.clips
        prompt_ids, clip = target.prompts[wish.kind].draw(batch_size, self.rng)
        condition_rows, features = self._conditions(wish, target, clip)
        num_latents = world.num_audio_latents(wish.num_frames)
        return ReferenceBatch(
            placed=self._place(base, prompt_ids.shape[1]),
            presentation=presentation,
            prompt_ids=prompt_ids,
            features=features,
            condition_rows=condition_rows,
            audio_rows=clips.audio[clip, :, :num_latents].flatten(1, 2).float(),
            video_rows=clips.video_rows[clip, : base.num_video_rows].float(),
            shows_object=clips.shows_object[clip, : base.num_video_rows],
            clip=clip,
        )

    def _conditions(self, wish: Wish, target: TargetClips, clip: Tensor) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
        """Condition rows in the order of `references_of`, and the features of what the text encoder sees of them."""
        attributes = {name: value[clip] for name, value in target.clips.attributes.items()}
        if wish.kind.startswith("video"):
            film = target.preceding[wish.preceding_frames]
            soundtrack = [film.audio[clip].flatten(1, 2).float()] if wish.kind == "video" else []
            return [*soundtrack, _anchored(film.rows[clip])], film.features[clip]
        bank = self.stills[wish.still_canvas]
        still = bank.draw(attributes, keep_background=wish.kind == "image_bare")
        rows = [_anchored(bank.rows[still])]
        if wish.kind in ("image_audio", "audio_image"):
            sound = self.sounds.rows[self.sounds.draw(attributes["sound"])]
            rows.append(sound[:, :, : wish.sound_latents].flatten(1, 2).float())
        return rows[::-1] if wish.kind == "audio_image" else rows, bank.features[still]


def _anchored(rows: Tensor) -> Tensor:
    """Latents as the engine holds them: a posterior sample, a thousandth of noise."""
    clean = rows.float() + train_dit.ANCHOR_JITTER * torch.randn_like(rows, dtype=torch.float32)
    return batched.ANCHOR_T * clean + (1 - batched.ANCHOR_T) * torch.randn_like(clean)


@torch.no_grad()
def text_rows(models: ReferenceModels, batch: ReferenceBatch) -> Tensor:
    return models.text(batch.presentation, batch.prompt_ids, batch.features)


def loss_of(models: ReferenceModels, batch: ReferenceBatch, block_fn) -> tuple[Tensor, Tensor, Tensor]:
    """(video, audio, nothing in place of the probes), means over the batch."""
    size, device = len(batch.video_rows), batch.video_rows.device.type
    video_noise, audio_noise = noise.draw_noise(
        batch.placed.layout, batch.video_rows.shape[-1] // PATCH**2, size, device
    )
    video_t, audio_t = noise.draw_timesteps(size, device)
    tv, ta = video_t[:, None, None], audio_t[:, None, None]
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        video_v, audio_v = batched.forward(
            models.dit,
            batch.placed,
            text_rows(models, batch),
            batch.condition_rows,
            ta * batch.audio_rows + (1 - ta) * audio_noise,
            tv * batch.video_rows + (1 - tv) * video_noise,
            video_t,
            audio_t,
            block_fn,
        )
    video_error = video_v - (batch.video_rows - video_noise)
    audio_error = audio_v - (batch.audio_rows - audio_noise)
    return *train_dit.velocity_loss(batch, video_error, audio_error), torch.zeros((), device=device)


def make_maker(
    models: ReferenceModels,
    vae: nn.Module,
    raw_tokenizer,
    *,
    num_clips: int,
    stills_per_look: int,
    rows_per_batch: int,
    device: str,
    seed: int,
    canvases: tuple[str, ...] = tuple(CANVAS_SHARE),
    pool=None,
    rank: int = 0,
) -> ReferenceMaker:
    """Renders and encodes everything that batches are drawn from. `models` are on the device already."""
    encoder = reference_data.Encoder(vae, models.text, device)
    batch = 64 if device == "cuda" else 4
    targets = {}
    for index, name in enumerate(canvases):
        count = max(4, round(num_clips * CANVAS_SHARE[name]))
        generator = torch.Generator().manual_seed(seed + index)
        specs = world.sample_specs(count, world.CANVASES[name], generator)
        targets[name] = reference_data.target_clips(
            encoder, specs, raw_tokenizer, tuple(PRECEDING_SHARE), seed + 100_000 * index, batch, pool
        )
    stills = {
        name: reference_data.still_bank(encoder, world.CANVASES[name], stills_per_look, seed + 50 + index, 4 * batch)
        for index, name in enumerate(STILL_CANVAS_SHARE)
    }
    sounds = reference_data.sound_bank(encoder, 8 * stills_per_look, seed + 70)
    return ReferenceMaker(targets, stills, sounds, models, rows_per_batch, device, rank)
