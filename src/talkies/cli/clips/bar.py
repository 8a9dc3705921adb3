"""What a person sees on stderr while clips are made: one progress bar, notes above it, a line for each clip."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from talkies.cli.common import plain
from talkies.cli.flag_names import flag_names
from talkies.errors import respelled

if TYPE_CHECKING:
    from talkies.engine.events import Progress
    from talkies.engine.port.facts import Facts


class Bar:
    """Stage, step and what is left, of all clips together. No bar where stderr is no terminal; ``quiet`` says nothing
    at all. Log lines that come meanwhile stand above it."""

    def __init__(self, *, num_clips: int, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True)
        self._quiet, self._num_clips, self._done = quiet, num_clips, 0
        self._bar = RichProgress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
            transient=True,
        )
        self._id = self._bar.add_task("loading", total=1.0, detail="")

    def stage(self, word: str) -> None:
        self._bar.update(self._id, description=word)

    def on_progress(self, p: Progress) -> None:
        left = "" if p.eta_s is None else f", {p.eta_s:.1f} s left"
        which = f"clip {self._done + 1} of {self._num_clips}, " if self._num_clips > 1 else ""
        fraction = (self._done + p.fraction) / self._num_clips
        detail = f"{which}{p.step}/{p.num_steps}{left}"
        self._bar.update(self._id, description=p.stage, completed=fraction, detail=detail)

    def clip_done(self) -> None:
        self._done += 1
        self._bar.update(self._id, completed=self._done / self._num_clips)

    def clips(self, results: Iterable[Facts], notes: Iterable[str] = ()) -> None:
        """What became of the clips of one request."""
        if self._quiet:
            return
        results = list(results)
        told = dict.fromkeys([*(note for one in results for note in one.warnings), *notes])
        for note in told:
            self.line(f"note: {respelled(note, flag_names(), ' ')}", lead="note:")
        for one in results:
            total = sum(one.stages_s.values())
            name = plain(str(one.path))
            self.line(f"{name}  {one.frames} frames, {one.seconds:.2f} s, made in {total:.1f} s", lead=name)

    def line(self, text: str, *, lead: str = "") -> None:
        """One line; ``lead`` is its beginning, which stands out."""
        from rich.text import Text

        if self._quiet:
            return
        shown = Text(plain(text))
        shown.stylize("yellow" if lead == "note:" else "bold", 0, len(lead))
        self.console.print(shown, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()
