"""The files of jobs, under random names that no client chooses, and the pictures made from them.

artifacts/<folder>/0.mp4, 1.mp4, ...    what the engine wrote; thumbnail.webp and spritesheet.jpg when asked for
uploads/<folder>/<random>               references, until the job ends
resume/<folder>/                        latents and step index, until the job ends
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
from pathlib import Path

from talkies.errors import InvalidRequest, OutputError
from talkies.server.config import ServerConfig
from talkies.server.errors import NotFound
from talkies.server.jobs.record import JobRecord

log = logging.getLogger(__name__)
THUMBNAIL_SIDE = 512
SPRITE_COLUMNS, SPRITE_SIDE, MAX_SPRITES = 5, 192, 25


class Artifacts:
    """Where files of a job are. Paths derive from the record's random folder alone."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        for folder in (config.artifacts, config.uploads, config.resume):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @staticmethod
    def new_folder() -> str:
        return secrets.token_hex(16)

    def uploads(self, folder: str) -> Path:
        return self._config.uploads / folder

    def resume_dir(self, folder: str) -> Path:
        return self._config.resume / folder

    def outputs(self, folder: str, num_outputs: int) -> tuple[Path, ...]:
        return tuple(self._config.artifacts / folder / f"{i}.mp4" for i in range(num_outputs))

    def prepare(self, folder: str) -> None:
        (self._config.artifacts / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.resume_dir(folder).mkdir(parents=True, exist_ok=True, mode=0o700)

    def size_bytes(self, folder: str) -> int:
        return sum(file.stat().st_size for file in (self._config.artifacts / folder).glob("*.mp4"))

    def drop_inputs(self, folder: str) -> None:
        """A finished job needs neither its references nor its saved latents."""
        _remove(self.uploads(folder))
        _remove(self.resume_dir(folder))

    def drop(self, folder: str) -> None:
        self.drop_inputs(folder)
        _remove(self._config.artifacts / folder)

    def sweep(self, *, unfinished: set[str], completed: set[str]) -> int:
        """Removes what no job needs any more: a killed server was writing or deleting it. Returns how many folders.

        A job that ended a moment before the kill still has its references and its saved latents."""
        removed = 0
        needed = {
            self._config.artifacts: unfinished | completed,
            self._config.uploads: unfinished,
            self._config.resume: unfinished,
        }
        for root, keep in needed.items():
            for folder in root.iterdir():
                if folder.name not in keep:
                    _remove(folder)
                    removed += 1
        return removed

    def find(self, record: JobRecord, variant: str | None) -> Path:
        """The file of ``variant``: an output's number, video, thumbnail or spritesheet. Blocks while it is made.

        Raises ``InvalidRequest`` for an unknown variant, ``NotFound`` when there is no such output or file, and
        ``OutputError`` for a picture that the disk refuses.
        """
        outputs = self.outputs(record.folder, record.num_outputs)
        chosen = variant or "video"
        if chosen in ("thumbnail", "spritesheet"):
            path = self._picture(outputs[0], chosen)
        elif chosen == "video":
            path = outputs[0]
        elif chosen.isascii() and chosen.isdecimal() and len(chosen) <= 3:
            if int(chosen) >= len(outputs):
                raise NotFound(
                    f"Video {record.id} has no output {chosen}", hint=f"it has 0..{len(outputs) - 1}", param="variant"
                )
            path = outputs[int(chosen)]
        else:
            raise InvalidRequest(
                f"variant={chosen[:40]!r} is unknown",
                hint="use video, thumbnail, spritesheet or the number of an output",
                param="variant",
            )
        if not path.is_file():
            raise NotFound(f"Video {record.id}: file not found on disk", hint="make it again", param="video_id")
        return path

    def _picture(self, video: Path, what: str) -> Path:
        path = video.with_name("thumbnail.webp" if what == "thumbnail" else "spritesheet.jpg")
        if not path.is_file() and video.is_file():
            temp = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
            try:
                (_write_thumbnail if what == "thumbnail" else _write_spritesheet)(video, temp)
                os.replace(temp, path)
            except OSError as error:
                if video.is_file():  # or it was deleted meanwhile, which is a 404
                    reason = f"the {what} cannot be written: {error.strerror or error}"
                    raise OutputError(reason, hint="is the data folder's disk full?", param="variant") from error
            finally:
                temp.unlink(missing_ok=True)
        return path


def _write_thumbnail(video: Path, path: Path) -> None:
    """The frame in the middle: first frames are often still black."""
    from PIL import Image

    frames = _frames(video)
    image = Image.fromarray(frames[len(frames) // 2])
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    image.save(path, quality=85)


def _write_spritesheet(video: Path, path: Path) -> None:
    """Evenly spaced frames, row by row."""
    from PIL import Image

    frames = _frames(video)
    count = min(MAX_SPRITES, len(frames))
    sprites = [Image.fromarray(frames[i * len(frames) // count]) for i in range(count)]
    for sprite in sprites:
        sprite.thumbnail((SPRITE_SIDE, SPRITE_SIDE))
    width, height = sprites[0].size
    columns = min(SPRITE_COLUMNS, count)
    sheet = Image.new("RGB", (columns * width, math.ceil(count / columns) * height))
    for i, sprite in enumerate(sprites):
        sheet.paste(sprite, (i % columns * width, i // columns * height))
    sheet.save(path, quality=85)


def _frames(video: Path):  # type: ignore[no-untyped-def]  # numpy is imported with the reader, not with the server
    """uint8 [F, H, W, 3], small: a full-size clip would be a gigabyte."""
    from talkies.media.read.readers import read_video

    def small(width: int, height: int) -> tuple[int, int]:
        scale = min(1.0, THUMBNAIL_SIDE / max(width, height))
        return max(2, round(width * scale)), max(2, round(height * scale))

    return read_video(video, max_seconds=600.0, size_of=small, with_audio=False).frames


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        # The next sweep tries again; a file that cannot be removed must not stop a job from ending.
        log.warning("cannot remove %s: %s", path.name, error)
