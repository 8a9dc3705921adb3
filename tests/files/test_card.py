"""What a checkpoint says of itself: words that it knows, in whatever spelling a prompt has them."""

import json

import pytest

from talkies.errors import CheckpointError
from talkies.files.card import Card, card_words, read_card, unknown_words, words_of

CARD = Card(knows="a ball", words=frozenset({"a", "ball", "balls", "light", "blue", "isn't", "1", "picture", "élan"}))


@pytest.mark.parametrize(
    ("prompt", "unknown"),
    [
        ("A BALL.", []),
        ("a light-blue ball, (balls)!", []),
        ("the ball", ["the"]),
        ("a ball's ball isn\u2019t a ball", []),
        ("a cat's ball", ["cat's"]),
        ("boxes", ["boxes"]),  # a plural that the card does not spell is another word
        ("a ball, 1 ball, 12 balls and 1.5", ["12", "and", "5"]),
        ("<Picture 1>: a ball <audio 2>", []),
        ("a_cat cat, Cat CAT", ["cat"]),
        ("ÉLAN e\u0301lan", []),
        ("a 猫在弹钢琴 ball кот", ["猫在弹钢琴", "кот"]),
        ("…!?", []),
    ],
)
def test_words_that_are_not_in_the_card(prompt, unknown):
    assert unknown_words(prompt, CARD.words) == unknown


def test_a_warning_is_one_sentence_with_a_limit():
    assert CARD.notes("a ball") == []
    assert CARD.notes("a cat, a piano") == ["the checkpoint knows a ball; it did not understand: cat, piano"]
    (note,) = CARD.notes(" ".join(f"w{i}x" for i in range(11)) + " " + "猫" * 500)
    assert note.endswith("w6x, w7x and 4 more")
    (note,) = CARD.notes("猫" * 500)
    assert note.endswith("猫" * 23 + "…")
    assert Card(words=frozenset({"a"})).notes("b") == ["the checkpoint knows 1 words; it did not understand: b"]


def test_without_a_card_nothing_is_said(tmp_path):
    assert read_card(tmp_path) == Card()
    assert Card().notes("a cat plays the piano") == []
    assert Card(knows="everything", locks=frozenset({"footage"})).notes("a cat") == []


def test_a_card_is_read_as_it_is_written(tmp_path):
    words = card_words(["A red ball.", "the red box, isn't"])
    assert words == ["a", "ball", "box", "isn't", "red", "the"]
    card = {"knows": "balls", "words": words, "locks": ["soundtrack"]}
    (tmp_path / "card.json").write_text(json.dumps(card), encoding="utf-8")
    assert read_card(tmp_path) == Card(knows="balls", words=frozenset(words), locks=frozenset({"soundtrack"}))
    assert words_of("Red RED") == ["red", "red"]


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ({"word": []}, "unknown keys word"),
        ({"words": "ball"}, "words is not a list of texts"),
        ({"words": [1]}, "words is not a list of texts"),
        ({"knows": 3}, "knows is 3, not a text"),
        ({"locks": ["footage", "smell"]}, "locks has smell"),
        ([], "holds list"),
    ],
)
def test_a_wrong_card_is_refused(tmp_path, card, says):
    (tmp_path / "card.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.raises(CheckpointError, match=says):
        read_card(tmp_path)
