"""Pictures, videos and sounds of a stated size, written once each."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from PIL import Image

from talkies.media.write.mp4 import write_mp4

RATE = 32_000


class MediaFiles:
    """``folder`` keeps what was written; a file's name says what it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def picture(self, width: int, height: int) -> str:
        path = self._folder / f"{width}x{height}.png"
        if not path.exists():
            Image.new("RGB", (width, height), (90, 120, 30)).save(path)
        return str(path)

    def turned_picture(self, width: int, height: int) -> str:
        """A photograph stored lying on its side: it is ``height`` wide when it is shown."""
        path = self._folder / f"{width}x{height}-turned.jpg"
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (width, height)).save(path, exif=exif)
        return str(path)

    def video(self, width: int, height: int, num_frames: int, sound_s: float | None = None) -> str:
        """24 frames a second; ``None`` is a silent file."""
        path = self._folder / f"{width}x{height}-{num_frames}-{sound_s}.mp4"
        if not path.exists():
            sound = None if sound_s is None else np.zeros((2, round(sound_s * RATE)), np.float32)
            write_mp4(path, np.zeros((num_frames, height, width, 3), np.uint8), sound)
        return str(path)

    def sound(self, num_samples: int, rate_hz: int) -> str:
        path = self._folder / f"{num_samples}-{rate_hz}.wav"
        if not path.exists():
            with wave.open(str(path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(rate_hz)
                file.writeframes(bytes(2 * num_samples))
        return str(path)
