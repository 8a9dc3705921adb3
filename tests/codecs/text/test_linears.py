"""The text encoder with e4m3 linears: what becomes of the weights while they load, and of the states."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from talkies.codecs.text.encoder import NUM_LAYERS, TextEncoder
from talkies.codecs.text.linears import Fp8Linears, TokenLinear
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderImage, pixel_rows, present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.engine.config import embedded_folder
from talkies.errors import ConfigError
from talkies.files.component_folders import WeightFolder
from talkies.kernels.fp8 import E4M3
from talkies.kernels.select import REFERENCE
from talkies.placement.quantize import TEXT_LINEARS, TEXT_PREFIX, QuantizeConfig, quantized_text_names
from tests.codecs.tiny import pictures

CPU = torch.device("cpu")
SMALL = PatchConfig(min_pixels=32 * 32, max_pixels=256 * 256)
PROMPT = "a red ball bounces slowly on a dark background"


def fp8(*exclude, device=CPU):
    names = quantized_text_names(QuantizeConfig(method="fp8", exclude=exclude), NUM_LAYERS)
    return Fp8Linears(names={name.removeprefix(TEXT_PREFIX) for name in names}, ops=REFERENCE, device=device)


def _states(folder, visuals, dtype, linears):
    presentation = present(FolderTokenizer.load(folder / "tokenizer"), PROMPT, visuals, patches=SMALL)
    encoder = TextEncoder.load(folder / "text_encoder", dtype=dtype, fp8=linears)
    states = encoder.encode(presentation, pixel_rows(visuals, patches=SMALL)).states
    assert states.dtype == dtype
    return states.float()


def test_only_the_products_of_the_layers_become_e4m3(tiny_folder):
    model = TextEncoder.load(tiny_folder / "text_encoder", fp8=fp8("text_encoder.layers.7.mlp.*")).model
    e4m3 = {name for name, p in model.named_parameters() if p.dtype == E4M3}
    layers = {f"language_model.layers.{i}.{linear}.weight" for i in range(NUM_LAYERS) for linear in TEXT_LINEARS}
    assert e4m3 == {name for name in layers if ".layers.7.mlp." not in name}
    for name in e4m3:
        scale = model.get_parameter(name + "_scale")
        assert scale.shape == (model.get_parameter(name).shape[0], 1)
        assert scale.dtype == torch.float32
    assert model.language_model.embed_tokens.weight.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.visual.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("visuals", [[], [EncoderImage(pictures(0, 64, 96, 3))]], ids=["text", "picture"])
def test_the_states_are_close_to_the_unquantised_ones(tiny_folder, visuals, dtype):
    """Measured: random weights, 50 layers deep: 8 to 13 %, cosine of a token at least 0.984. The embedded checkpoint,
    2 live layers: 2.4 to 2.7 %, at least 0.9958; with transformers 5.10 and a picture in bfloat16 0.9933."""
    for folder, limit, cosine in ((tiny_folder, 0.16, 0.98), (embedded_folder(), 0.035, 0.992)):
        want, got = (_states(folder, visuals, dtype, linears) for linears in (None, fp8()))
        error = ((got - want).norm() / want.norm()).item()
        assert 1e-3 < error < limit
        assert F.cosine_similarity(got, want, dim=1).min().item() > cosine


def test_a_product_is_that_of_the_dequantised_values(tiny_folder):
    plain = TextEncoder.load(tiny_folder / "text_encoder").model.language_model.layers[3].mlp.up_proj
    ours = TextEncoder.load(tiny_folder / "text_encoder", fp8=fp8()).model.language_model.layers[3].mlp.up_proj
    x_1LK = torch.randn(1, 7, 32)
    rows = REFERENCE.quantize_rows(x_1LK[0])
    want = rows.dequantized() @ (ours.weight.float() * ours.weight_scale).T
    assert ours(x_1LK).shape == plain(x_1LK).shape == (1, 7, 48)
    torch.testing.assert_close(ours(x_1LK)[0], want)
    torch.testing.assert_close(ours.weight.float() * ours.weight_scale, plain.weight, rtol=0.07, atol=1e-3)


def test_layers_that_add_nothing_are_skipped_quantised_or_not():
    """The embedded checkpoint stores them as float8, all zero."""
    folder = embedded_folder() / "text_encoder"
    plain, quantised = TextEncoder.load(folder), TextEncoder.load(folder, fp8=fp8())
    assert plain.num_live_layers == quantised.num_live_layers < NUM_LAYERS
    assert plain.bytes_read == quantised.bytes_read
    layers = quantised.model.language_model.layers
    assert sum(isinstance(m, TokenLinear) for m in layers.modules()) == len(TEXT_LINEARS) * plain.num_live_layers


def test_loading_holds_one_unquantised_linear_besides_what_is_finished(tiny_folder, monkeypatch):
    alive, most = weakref.WeakSet(), []
    real = WeightFolder.read

    def read(self, key):
        most.append(len(alive))
        tensor = real(self, key).clone()
        if any(key.endswith(f"{linear}.weight") for linear in TEXT_LINEARS):
            alive.add(tensor)
        return tensor

    monkeypatch.setattr(WeightFolder, "read", read)
    TextEncoder.load(tiny_folder / "text_encoder", fp8=fp8())
    assert len(most) > 7 * NUM_LAYERS
    assert max(most) == 1


@pytest.mark.parametrize(
    ("linear", "device", "words"),
    [
        (nn.Linear(32, 48, bias=True), CPU, "has a bias"),
        (nn.Linear(40, 48, bias=False), torch.device("cuda"), "a size of 40, no multiple of 16"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused_by_name(linear, device, words):
    layer = nn.ModuleDict({"mlp": nn.ModuleDict({"up_proj": linear})})
    model = SimpleNamespace(language_model=SimpleNamespace(layers=nn.ModuleList([layer])))
    with pytest.raises(ConfigError, match=rf"layers\.0\.mlp\.up_proj.*{words}.*text_quantization=none"):
        fp8(device=device).install(model)


def test_exclusions_name_linears_of_the_text_encoder():
    names = quantized_text_names(QuantizeConfig(method="fp8", exclude=("text_encoder.layers.0.*",)), 3)
    assert len(names) == 2 * len(TEXT_LINEARS)
    assert not any(".layers.0." in name for name in names)
    assert quantized_text_names(QuantizeConfig(), 3) == frozenset()
    with pytest.raises(ConfigError, match=r"no linear is called 'text_encoder\.layers\.50.*text_encoder\.layers\.0"):
        quantized_text_names(QuantizeConfig(method="fp8", exclude=("text_encoder.layers.50.*",)), NUM_LAYERS)
