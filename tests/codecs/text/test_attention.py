"""How the decoder layers attend: no mask on the default path, the same result as with one, and fa3 in its place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talkies.attention import flash3
from talkies.codecs.text.attention import TEXT_ATTENTION, use_attention
from talkies.codecs.text.encoder import NUM_LAYERS, TextEncoder
from talkies.codecs.text.linears import Fp8Linears
from talkies.codecs.text.patches import PatchConfig
from talkies.codecs.text.presentation import EncoderImage, EncoderVideo, pixel_rows, present
from talkies.codecs.text.tokens import FolderTokenizer
from talkies.engine.config import EngineConfig, resolve
from talkies.errors import ConfigError
from talkies.kernels import select
from talkies.placement.quantize import TEXT_PREFIX, text_linear_names
from tests.attention.fake_flash3 import FakeFlash3
from tests.codecs.tiny import pictures

SMALL = PatchConfig(min_pixels=32 * 32, max_pixels=256 * 256)
VISUALS = [EncoderImage(pictures(0, 64, 96, 3)), EncoderVideo(pictures(1, 30, 64, 64, 3), has_soundtrack=True)]


def _request(folder, num_characters=700):
    tokenizer = FolderTokenizer.load(folder / "tokenizer")
    return present(tokenizer, "a robot " * (num_characters // 8), VISUALS, patches=SMALL), pixel_rows(
        VISUALS, patches=SMALL
    )


def test_a_long_prompt_with_references_makes_no_mask(tiny_folder, monkeypatch):
    real, decoder, vision = F.scaled_dot_product_attention, [], []
    presentation, rows = _request(tiny_folder)
    num_tokens = len(presentation)

    def watched(q, k, v, attn_mask=None, is_causal=False, **options):
        (decoder if q.shape[2] == num_tokens else vision).append((attn_mask, is_causal))
        return real(q, k, v, attn_mask=attn_mask, is_causal=is_causal, **options)

    def masked(q, k, v, attn_mask=None, is_causal=False, **options):
        causal = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else attn_mask
        return real(q, k, v, attn_mask=causal, **options)

    encoder = TextEncoder.load(tiny_folder / "text_encoder")
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    got = encoder.encode(presentation, rows).states
    assert num_tokens > 700
    assert decoder == [(None, True)] * NUM_LAYERS
    assert vision
    assert set(vision) == {(None, False)}
    monkeypatch.setattr(F, "scaled_dot_product_attention", masked)
    torch.testing.assert_close(encoder.encode(presentation, rows).states, got, rtol=1e-4, atol=1e-5)


def test_fa3_takes_the_decoder_layers_and_no_other(tiny_folder, monkeypatch):
    """On a stand-in for the package: causal, grouped keys, transformers' scale."""
    fake = FakeFlash3()
    monkeypatch.setattr(flash3, "load", lambda: fake)
    folder = tiny_folder / "text_encoder"
    presentation, rows = _request(tiny_folder)
    want = TextEncoder.load(folder, dtype=torch.bfloat16).encode(presentation, rows).states.float()
    encoder = TextEncoder.load(folder, dtype=torch.bfloat16, attention="fa3")
    got = encoder.encode(presentation, rows).states.float()
    assert fake.calls == [("dense", torch.bfloat16, len(presentation), len(presentation))] * NUM_LAYERS
    assert ((got - want).norm() / want.norm()).item() < 0.02


def test_an_attention_that_cannot_run_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"text_attention=fa3 cannot run here: it needs a CUDA device.*sdpa"):
        resolve(EngineConfig(device="cpu", text_attention="fa3"))
    with pytest.raises(ConfigError, match=r"text_attention='cudnn' is unknown.*sdpa or fa3"):
        resolve(EngineConfig(device="cpu", text_attention="cudnn"))
    assert resolve(EngineConfig(device="cpu", text_attention="TORCH_SDPA")).text_attention == "sdpa"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [1, 63, 1009])
@pytest.mark.parametrize("quantised", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("name", TEXT_ATTENTION)
def test_on_a_gpu_against_float32(name, quantised, num_tokens):
    """Two layers with the released heads (64 of 128 channels, 8 of keys), random weights; no mask may exist."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    if name == "fa3":
        pytest.importorskip("fa3_fwd_interface")
    device = torch.device("cuda")
    text = {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 2,
        "vocab_size": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
        },
    }
    vision = {"depth": 1, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 1024}
    vision |= {"deepstack_visual_indexes": [0]}
    torch.manual_seed(num_tokens)
    config = Qwen3VLConfig.from_dict({"text_config": text, "vision_config": vision})
    exact = Qwen3VLModel(config).to(device).eval()
    ids = torch.randint(5, 2000, (1, num_tokens), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad():
        want = exact(**inputs, use_cache=False).last_hidden_state[0]
        model = Qwen3VLModel(config)
        model.load_state_dict(exact.state_dict())
        model = model.to(device).eval()
        for parameter in model.parameters():  # rotary frequencies are buffers and stay float32
            parameter.data = parameter.data.to(torch.bfloat16)
        if quantised:
            names = {n.removeprefix(TEXT_PREFIX) for n in text_linear_names(2)}
            linears = Fp8Linears(names=names, ops=select.create("triton"), device=device)
            weights = {key: p.detach() for key, p in model.named_parameters()}
            linears.install(model)
            for key, weight in weights.items():
                for made, tensor in (linears.place(key, weight, torch.bfloat16) or {}).items():
                    owner = model.get_submodule(made.rpartition(".")[0])
                    owner._parameters[made.rpartition(".")[2]] = torch.nn.Parameter(tensor, requires_grad=False)
        use_attention(model, name)
        real, masks = F.scaled_dot_product_attention, []
        F.scaled_dot_product_attention = lambda *a, **o: masks.append(o.get("attn_mask")) or real(*a, **o)
        try:
            got = model(**inputs, use_cache=False).last_hidden_state[0].float()
        finally:
            F.scaled_dot_product_attention = real
    assert masks == ([None] * 2 if name == "sdpa" else [])
    assert ((got - want).norm() / want.norm()).item() < (0.12 if quantised else 0.02)
