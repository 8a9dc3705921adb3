"""The tokenizer, through the ``tokenizers`` package alone: transformers' wrapper would add seconds of import.

The release appends seven specials to the stock Qwen vocabulary, and a tokenizer without them splits ``<d>`` into
pieces, which changes every later position. So the folder's files are taken as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Tokenizer

from talkies.errors import CheckpointError
from talkies.files.json_files import read_json

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"


class TextTokenizer(Protocol):
    """What the presentation needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def token_id(self, token: str) -> int: ...


class FolderTokenizer:
    """``tokenizer.json`` of a checkpoint with the added tokens of its ``tokenizer_config.json``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path | str) -> FolderTokenizer:
        """Raises ``CheckpointError`` when the file is absent or damaged, or lacks a vision special."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{folder} has no tokenizer.json",
                hint="take the whole tokenizer/ folder of the release; a stock Qwen tokenizer is not enough",
                param=str(folder),
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises bare Exception
            raise CheckpointError(f"cannot read {path}: {error}", param=str(path)) from error
        _add_declared(tokenizer, folder / "tokenizer_config.json")
        found = cls(tokenizer)
        for token in (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD):
            found.token_id(token)
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` without any token added around it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        """How many ids :meth:`encode` gives."""
        return len(self.encode(text))

    def token_id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise CheckpointError(f"the tokenizer has no token {token}", param="tokenizer")
        return found


def _add_declared(tokenizer: Tokenizer, config_path: Path) -> None:
    """Adds the tokens that only ``added_tokens_decoder`` declares, at exactly the ids it declares."""
    if not config_path.is_file():
        return
    declared = read_json(config_path).get("added_tokens_decoder") or {}
    for key in sorted(declared, key=int):
        token, wanted = declared[key], int(key)
        if tokenizer.token_to_id(token["content"]) is None:
            flags = {k: bool(token.get(k, False)) for k in ("lstrip", "rstrip", "single_word", "normalized", "special")}
            tokenizer.add_tokens([AddedToken(token["content"], **flags)])
        if tokenizer.token_to_id(token["content"]) != wanted:
            raise CheckpointError(
                f"{config_path}: {token['content']} has id {tokenizer.token_to_id(token['content'])}, not {wanted}",
                hint="tokenizer.json and tokenizer_config.json must come from one release",
                param=str(config_path),
            )
