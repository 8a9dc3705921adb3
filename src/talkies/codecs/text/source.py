"""The stored tensors of a Qwen3-VL checkpoint under the names of the model that we build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from talkies.files.component_folders import WeightFolder, check_names, check_shape

# Stock keys start with "model."; early exports lack the prefix. Ours are the stock model's without it.
_PREFIX = "model."
_LAYER = "language_model.layers."


class TextSource:
    """``num_layers`` of the ``stored_layers`` are built; ``where`` names the folder in errors."""

    def __init__(self, weights: WeightFolder, num_layers: int, stored_layers: int, where: str) -> None:
        self._weights = weights
        self._num_layers = num_layers
        self._stored_layers = stored_layers
        self._where = where
        self._stored_as = {key.removeprefix(_PREFIX): key for key in weights.keys}

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Names and shapes of everything needed; what is stored beyond it must be a part known to be unread.

        Raises ``CheckpointError``.
        """
        found = {key for key in self._stored_as if not self._is_unread(key)}
        check_names(found, expected, self._where)
        for key, shape in expected.items():
            check_shape(key, self._weights.shape(self._stored_as[key]), shape, self._where)

    def _is_unread(self, key: str) -> bool:
        if key in ("lm_head.weight", "language_model.norm.weight"):
            return True
        number = key.removeprefix(_LAYER).split(".", 1)[0] if key.startswith(_LAYER) else ""
        return number.isdigit() and self._num_layers <= int(number) < self._stored_layers

    def is_identity(self, layer: int) -> bool:
        """Whether both output matrices of a layer are zero: it then adds exactly nothing."""
        return not any(
            _any_nonzero(self._weights.peek(self._stored_as[f"{_LAYER}{layer}.{name}.weight"]))
            for name in ("self_attn.o_proj", "mlp.down_proj")
        )

    def in_order(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of ``names``, read ahead."""
        stored = self._weights.in_order([self._stored_as[name] for name in names])
        for name, (_, tensor) in zip(names, stored, strict=True):
            yield name, tensor


def _any_nonzero(tensor: Tensor) -> bool:
    """Looks at the first row before the whole: a trained matrix answers at once."""
    return bool(tensor[0].any()) or bool(tensor.any())
