"""``--soundtrack`` and ``--footage`` with the part of each that is made anew, as one condition."""

from __future__ import annotations

from talkies.errors import InvalidRequest, retold
from talkies.request import LOCK_KINDS, Condition, Role


def lock(role: Role, uri: str | None, flag: str, window: str | None) -> list[Condition]:
    """None or one. ``window``: ``FROM:TO`` in seconds, as ``flag`` gives it. Raises ``InvalidRequest``."""
    if uri is None:
        if window is not None:
            raise InvalidRequest(
                f"{flag} {window} is a part of --{role}, and there is none", hint=f"add --{role} FILE", param=flag
            )
        return []
    start, end = (None, None) if window is None else _times(flag, window)
    try:
        return [Condition(kind=LOCK_KINDS[role], uri=uri, role=role, start_time_s=start or 0.0, end_time_s=end)]
    except InvalidRequest as error:
        if window is not None and error.param in ("start_time_s", "end_time_s"):
            retold(error, {"start_time_s": "FROM", "end_time_s": "TO"}).param = flag
        raise


def _times(flag: str, window: str) -> tuple[float | None, float | None]:
    first, colon, last = window.partition(":")
    try:
        times = [float(part) if part.strip() else None for part in (first, last)]
    except ValueError:
        times = []
    if not colon or not times or times == [None, None]:
        raise InvalidRequest(
            f"{flag} {window} is not FROM:TO in seconds", hint="for example 1.5:3, or 1.5: to the end", param=flag
        )
    return times[0], times[1]
