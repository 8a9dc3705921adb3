"""Prompts without sentences: key words in any order, and forms filled in."""

from __future__ import annotations

from training.second_edition.prompts import phrases, sounds, words
from training.second_edition.prompts.phrases import Writer

LOOKS = ("color", "shape", "size")


def key_words(w: Writer) -> list[str]:
    """Key words, in any order."""
    parts = []
    if w.due & set(LOOKS):
        things = phrases.noun_phrase(w, hold=0.15, article=False)
        if things.endswith(w.noun) and w.chance(0.1):
            things += "es" if things.endswith("x") else "s"
        parts.append(things)
        parts += [color for name in ("color",) if w.has(name) for color in (phrases.color_word(w),)]
        parts += [w.choose(words.SIZES[w.take(name)]) for name in ("size",) if w.has(name)]
        parts += [phrases.shape_noun(w) for name in ("shape",) if w.has(name)]
    if w.has("motion"):
        parts.append(phrases.verb_phrase(w, 1))
    if w.has("tempo"):
        parts.append(w.choose((*words.TEMPO_ADJECTIVES[w.attributes["tempo"]], phrases.tempo_phrase(w))))
    if w.has("place"):
        place = w.take("place")
        parts.append(
            w.choose(
                (
                    *words.PLACES[place],
                    f"{place} side" if place != "middle" else "centered",
                    "centred" if place == "middle" else f"at {place}",
                )
            )
        )
    if w.has("background"):
        value = w.take("background")
        surface = w.choose(words.SURFACES[value])
        parts.append(
            w.choose(
                (
                    f"{surface} background",
                    f"{surface} backdrop",
                    f"on {surface}",
                    f"{surface} bg",
                    f"{surface} background",
                )
            )
        )
    if w.has("sound"):
        value = w.take("sound")
        silent = sounds.SILENT_TAGS
        parts.append(
            w.choose(silent)
            if value == "silent"
            else w.choose(
                (value, value, f"{value} sound", f"with {value}", *sounds.SHOUTS[value], *sounds.PLURALS[value])
            )
        )
    w.rng.shuffle(parts)
    separator = w.choose((", ", ", ", ", ", ". ", "; ", " ", " / ", " + "))
    return [separator.join(parts)]


def fields(w: Writer) -> list[str]:
    """A form filled in."""
    names = {"color": w.choose(("color", "colour")), "background": w.choose(("background", "backdrop"))}
    names |= {
        "motion": w.choose(("motion", "movement", "action")),
        "sound": w.choose(("sound", "audio")),
        "place": w.choose(("place", "position")),
    }
    writers = {
        "color": lambda: phrases.color_word(w),
        "shape": lambda: phrases.shape_noun(w),
        "size": lambda: w.choose(words.SIZES[w.take("size")]),
        "motion": lambda: phrases.verb_phrase(w, 1 if w.chance(0.5) else 2),
        "tempo": lambda: w.choose((*words.TEMPO_ADJECTIVES[w.attributes["tempo"]], w.take("tempo"))),
        "place": lambda: w.choose((w.take("place"), phrases.place_phrase(w))),
        "background": lambda: w.choose(words.SURFACES[w.take("background")]),
        "sound": lambda: w.choose(("none", "silent")) if w.take("sound") == "silent" else w.attributes["sound"],
    }
    due = [name for name in writers if w.has(name)]
    w.rng.shuffle(due)
    parts = [
        f"{names.get(name, name)}{mark} {writers[name]()}"
        for name in due
        if w.has(name)
        for mark in (w.choose((":", ":", " =")),)
    ]
    return [w.choose((", ", "; ", ". ", " ")).join(parts)]
