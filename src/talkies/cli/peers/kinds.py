"""What a peer's flag can be, and the words that several tables share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Takes = Literal["nothing", "one", "maybe", "several"]
ANY = ("*",)
YES, NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")

ONE_DEVICE = "several devices share a model by --tensor-parallel-size, --ulysses-degree and --ring-degree only"
PLACED = "weights are placed by the engine itself"
NO_CACHE = "step caches are chosen by each request: quality=high, medium or low"
NO_LORA = "adapters have names here: --adapter NAME=PATH:STRENGTH"
LANGUAGE = "it is about language models"
NO_COMPILE = "nothing is compiled"


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """``accepted``: values that are already so here. ``noted``: values that only say how work is done; clips are the
    same without. ``ANY`` is every value. ``takes``: how many words follow; ``maybe`` is a yes or no that may be left
    out.
    """

    reason: str
    accepted: tuple[str, ...] = ()
    takes: Takes = "one"
    noted: tuple[str, ...] = ()

    def answer(self, value: str) -> Literal["accepted", "noted", "refused"]:
        for answer, values in (("accepted", self.accepted), ("noted", self.noted)):
            if value in values or values == ANY:
                return answer  # type: ignore[return-value]
        return "refused"


def switch(reason: str, *, holds: bool = False) -> PeerFlag:
    """A flag without a value, which is already so (``holds``) or cannot be."""
    return PeerFlag(reason, ("",) if holds else (), "nothing")


def noted_switch(reason: str) -> PeerFlag:
    return PeerFlag(reason, takes="nothing", noted=("",))


def boolean(reason: str, *, holds: bool) -> PeerFlag:
    """``--flag``, ``--flag true`` or ``--flag false``; what holds here is accepted."""
    return PeerFlag(reason, ("", *YES) if holds else NO, "maybe")


def noted(reason: str, takes: Takes = "one") -> PeerFlag:
    return PeerFlag(reason, takes=takes, noted=ANY)


def refused(reason: str, takes: Takes = "one") -> PeerFlag:
    return PeerFlag(reason, takes=takes)
