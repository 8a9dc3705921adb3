"""Form fields -> nested values: the shapes that clients in the field send."""

from __future__ import annotations

import pytest

from talkies.errors import InvalidRequest
from talkies.server.intake.body import fold

TWO = [{"type": "image", "uri": "A"}, {"type": "audio", "uri": "B"}]


@pytest.mark.parametrize(
    "names",
    [
        ["conditions[][type]=image", "conditions[][uri]=A", "conditions[][type]=audio", "conditions[][uri]=B"],
        ["conditions[][type]=image", "conditions[][type]=audio", "conditions[][uri]=A", "conditions[][uri]=B"],
        ["conditions[0][type]=image", "conditions[0][uri]=A", "conditions[1][type]=audio", "conditions[1][uri]=B"],
    ],
    ids=["element by element", "column by column, as the OpenAI client", "numbered"],
)
def test_lists_of_objects(names):
    assert fold(tuple(n.split("=")) for n in names) == {"conditions": TWO}


def test_elements_may_have_different_fields_if_they_come_one_by_one():
    pairs = [("conditions[][type]", "image"), ("conditions[][uri]", "A"), ("conditions[][role]", "first")]
    pairs += [("conditions[][type]", "audio"), ("conditions[][uri]", "B")]
    assert fold(pairs) == {"conditions": [TWO[0] | {"role": "first"}, TWO[1]]}


def test_a_column_with_a_hole_is_refused():
    pairs = [("conditions[][type]", t) for t in ("image", "image", "audio")] + [("conditions[][uri]", "A")] * 3
    assert len(fold(pairs)["conditions"]) == 3
    with pytest.raises(InvalidRequest, match="different lengths") as refusal:
        fold([*pairs, ("conditions[][role]", "first")])
    assert refusal.value.param == "conditions"
