"""The fixed list of ref2va requests of the meaning suite: what each reference shows, and the files that carry it.

Pictures are PNG, sounds WAV, clips MP4 (H.264 and AAC, as a user's would be), all rendered by `training.world` and read
by the engine like any user's file.
"""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.meaning.cases import Case, case, specs_of
from training import world

SOUND_FRAMES, VIDEO_FRAMES = 39, 39  # 1.6 s


@dataclass(frozen=True, slots=True)
class Reference:
    """A file to give. `shows` are the attributes that it is rendered with; `decides` those that the clip takes on."""

    kind: str  # image, audio or video
    shows: dict[str, str]
    decides: tuple[str, ...]
    canvas: str = "16:9"

    @property
    def decided(self) -> dict[str, str]:
        return {name: self.shows[name] for name in self.decides}


def picture(canvas: str = "16:9", **shows: str) -> Reference:
    return Reference("image", {"motion": "stay"} | shows, ("color", "shape"), canvas)


def sound(timbre: str) -> Reference:
    looks = {"color": "red", "shape": "ball", "motion": "bounce", "tempo": "slow", "background": "dark"}
    return Reference("audio", looks | {"sound": timbre}, ("sound",))


def clip(canvas: str = "16:9", **shows: str) -> Reference:
    decides = tuple(name for name in ("color", "shape", "motion", "tempo", "sound") if name in shows)
    return Reference("video", shows, decides, canvas)


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """A prompt, what it fixes by itself, and its references in order."""

    prompt: str
    says: dict[str, str]
    references: tuple[Reference, ...]

    @property
    def decided(self) -> dict[str, str]:
        """What the references alone decide."""
        return {name: value for ref in self.references for name, value in ref.decided.items()}

    @property
    def whole(self) -> Case:
        return case(self.prompt, **(self.says | self.decided))


def request(prompt: str, *references: Reference, **says: str) -> ReferenceCase:
    return ReferenceCase(prompt, says, references)


REFERENCE_CASES: tuple[ReferenceCase, ...] = (
    request(
        "The object from picture 1 bounces slowly on a dark background with a bell sound.",
        picture(color="orange", shape="triangle", background="dark", place="left"),
        motion="bounce", tempo="slow", background="dark", sound="bell",
    ),
    request(
        "the thing shown in picture 1 slides left quickly, on a light background, with a drum",
        picture(color="cyan", shape="ball", background="light", place="right"),
        motion="left", tempo="fast", background="light", sound="drum",
    ),
    request(
        "On a white background, the object in picture 1 flashes quickly on the right with a beep sound.",
        picture(color="purple", shape="square", background="light", size="big"),
        motion="flash", tempo="fast", place="right", background="light", sound="beep",
    ),
    request(
        "the object from picture 1 moves to the right slowly in the dark and a bell rings",
        picture("1:1", color="green", shape="square", background="dark"),
        motion="right", tempo="slow", background="dark", sound="bell",
    ),
    request(
        "A video of the object in picture 1 jumps up and down quickly, against a light background, with a drum sound.",
        picture("9:16", color="pink", shape="ball", background="light"),
        motion="bounce", tempo="fast", background="light", sound="drum",
    ),
    request(
        "The object from picture 1 stays still on the left, on a black background, in silence.",
        picture(color="yellow", shape="triangle", background="dark", place="right"),
        motion="stay", place="left", background="dark", sound="silent",
    ),
    request(
        "the object from picture 1 bounces slowly on a light background with the sound of audio 1",
        picture(color="red", shape="square", background="light"), sound("beep"),
        motion="bounce", tempo="slow", background="light",
    ),
    request(
        "The thing shown in picture 1 slides right quickly, on a dark background, sounding like audio 1.",
        picture(color="blue", shape="triangle", background="dark"), sound("drum"),
        motion="right", tempo="fast", background="dark",
    ),
    request(
        "the object in picture 1 blinks slowly with the sound from audio 1 in the dark",
        sound("bell"), picture(color="orange", shape="ball", background="dark"),
        motion="flash", tempo="slow", background="dark",
    ),
    request(
        "With the sound of audio 1, the object from picture 1 slides to the left slowly on a white background.",
        sound("drum"), picture(color="cyan", shape="square", background="light", size="small"),
        motion="left", tempo="slow", background="light",
    ),
    request(
        "the object from picture 1 is bouncing fast, sounding like audio 1, on a dark background",
        picture(color="pink", shape="triangle", background="dark", size="big"), sound("bell"),
        motion="bounce", tempo="fast", background="dark",
    ),
    request(
        "Continuing video 1, the object goes on.",
        clip(color="green", shape="ball", background="dark", motion="bounce", tempo="fast", sound="bell"),
    ),
    request(
        "continuing video 1, it continues with the sound of audio 1",
        clip(color="red", shape="square", background="light", motion="flash", tempo="slow", sound="drum"),
    ),
    request(
        "As in video 1, the same object bounces slowly.",
        clip(color="yellow", shape="triangle", background="dark", motion="bounce", tempo="slow", sound="beep"),
    ),
    request(
        "continuing video 1, the thing goes on as before with the same sound",
        clip(color="blue", shape="ball", background="light", motion="flash", tempo="fast", sound="beep", place="left"),
    ),
    request(
        "Continuing video 1, the object from video 1 slides right",
        clip(color="purple", shape="triangle", background="dark", motion="right", tempo="slow", sound="drum"),
    ),
)  # fmt: skip


def write(reference: Reference, path_without_suffix: Path) -> Path:
    """The reference as a file."""
    specs = specs_of(reference.shows, reference.canvas)
    if reference.kind == "image":
        from PIL import Image

        path = path_without_suffix.with_suffix(".png")
        Image.fromarray(frames_of(world.render(specs, 1))[0]).save(path)
        return path
    num_frames = SOUND_FRAMES if reference.kind == "audio" else VIDEO_FRAMES
    rendered = world.render(specs, num_frames)
    samples = world.audio_for(specs, rendered.motion, num_frames)[0].numpy()
    if reference.kind == "audio":
        path = path_without_suffix.with_suffix(".wav")
        with wave.open(str(path), "wb") as file:
            file.setparams((2, 2, world.SAMPLE_RATE_HZ, 0, "NONE", ""))
            file.writeframes((samples.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
        return path
    from talkies.media.write.mp4 import write_mp4

    path = path_without_suffix.with_suffix(".mp4")
    write_mp4(path, frames_of(rendered), samples, fps=world.FPS, sample_rate_hz=world.SAMPLE_RATE_HZ)
    return path


def frames_of(rendered: Any) -> np.ndarray:
    """The first clip of a render: uint8 [F, H, W, 3]."""
    video = rendered.video_B3FHW[0].permute(1, 2, 3, 0)
    return (video * 255).round().to(torch.uint8).contiguous().numpy()
