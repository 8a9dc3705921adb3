"""The card of the shipped checkpoint is what its script writes, and holds every word of its grammars."""

import json
from pathlib import Path

from talkies.files.card import read_card, unknown_words
from training import prompts
from training.card import KNOWS, first_edition_prompts, write_card
from training.ref2va import reference_prompts

SHIPPED = Path(__file__).parents[2] / "src" / "talkies" / "assets" / "h3-tiny"


def test_the_shipped_card_is_what_the_script_writes(tmp_path):
    path = write_card(tmp_path, first_edition_prompts(3_000), knows=KNOWS)
    assert path.read_text(encoding="utf-8") == (SHIPPED / "card.json").read_text(encoding="utf-8")


def test_no_draw_misses_a_word_of_the_grammars():
    tables = [value for name, value in vars(prompts).items() if name.endswith("_WORDS")]
    phrases = [phrase for table in tables for group in table.values() for phrase in group]
    for module in (prompts, reference_prompts):
        phrases += [p for value in vars(module).values() if isinstance(value, tuple) for p in value]
    assert len(phrases) > 100
    words = read_card(SHIPPED).words
    kinds = set(reference_prompts.KINDS)  # names of kinds are never printed
    assert {p: unknown_words(p, words) for p in phrases if p not in kinds and unknown_words(p, words)} == {}


def test_what_it_says_of_the_models_own_prompts_and_of_others():
    card = read_card(SHIPPED)
    assert card.notes("A RED BALL BOUNCES SLOWLY ON A DARK BACKGROUND WITH A BELL SOUND.") == []
    (note,) = card.notes("a cat plays the piano")
    assert note == f"the checkpoint knows {KNOWS}; it did not understand: cat, plays, piano"
    assert json.loads((SHIPPED / "card.json").read_text(encoding="utf-8"))["locks"] == []
