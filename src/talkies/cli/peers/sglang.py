"""Flags of ``sglang serve`` for diffusion that have no option of their own here."""

from __future__ import annotations

from collections.abc import Mapping

from talkies.cli.peers.kinds import (
    NO,
    NO_CACHE,
    NO_COMPILE,
    NO_LORA,
    ONE_DEVICE,
    YES,
    PeerFlag,
    boolean,
    noted,
    refused,
)

PLANNED = "the planner takes the fastest placement that fits; --offload none keeps all on the device"
CHECKPOINT = "a checkpoint is served as it is"
ONE_MACHINE = "all devices are of one machine"
FOLDS = "the text encoder works whole on the first device"

SGLANG: Mapping[str, PeerFlag] = {
    "--model-type": PeerFlag("every model here makes picture and sound", ("auto", "diffusion")),
    "--model-id": noted("the checkpoint says what it is"),
    "--backend": PeerFlag("there is one engine", ("auto", "sglang")),
    "--pipeline-class-name": PeerFlag("there is one pipeline", ("MiniMaxH3Pipeline",)),
    "--performance-mode": PeerFlag(PLANNED, ("auto", "speed")),  # memory is taken, see offload.py
    "--dp-size": PeerFlag("one server drives one engine", ("1",)),
    "--sp-attention-mode": PeerFlag("--ulysses-degree and --ring-degree say how rows are shared", ("ulysses",)),
    "--enable-cfg-parallel": boolean("the model is guidance-distilled", holds=False),
    "--cfg-parallel-degree": PeerFlag("the model is guidance-distilled", ("1",)),
    "--use-fsdp-inference": boolean(ONE_DEVICE, holds=False),
    "--hsdp-shard-dim": PeerFlag(ONE_DEVICE, ("1",)),
    "--encoder-parallel": PeerFlag(FOLDS, ("auto",), noted=("fold", "replicate", "dp")),
    "--nnodes": PeerFlag(ONE_MACHINE, ("1",)),
    "--node-rank": PeerFlag(ONE_MACHINE, ("0",)),
    "--dist-init-addr": refused(ONE_MACHINE),
    "--master-port": noted("ranks find each other without a port of yours"),
    "--scheduler-port": noted("the scheduler is a part of the server"),
    "--dit-offload-prefetch-size": PeerFlag(
        "one block is on its way while one computes", ("1", "0", "0.0")
    ),  # 0 is a peer's word for one layer
    "--pin-cpu-memory": PeerFlag("weights that stream lie in pinned memory", ("", *YES), "maybe"),
    "--image-encoder-cpu-offload": PeerFlag("there is no image encoder", ("", *YES, *NO), "maybe"),
    "--vae-tiling": boolean("the video VAE always works in tiles", holds=True),
    "--vae-slicing": boolean("the video VAE works in tiles", holds=False),
    "--vae-precision": PeerFlag("the video decoder has the released precision", ("auto",)),
    "--dit-precision": refused("use --dtype"),
    "--vae-path": refused(CHECKPOINT),
    "--transformer-path": refused(CHECKPOINT),
    "--transformer-weights-path": refused(CHECKPOINT),
    "--component-paths": refused(CHECKPOINT),
    "--component-weights-paths": refused(CHECKPOINT),
    "--attention-backend-config": refused("a backend has no settings: use --attention"),
    "--component-attention-backends": refused("use --attention and --text-attention"),
    "--enable-torch-compile": boolean(NO_COMPILE, holds=False),
    "--enable-cuda-graph": refused("use --cuda-graphs auto or off", "maybe"),
    "--disable-autocast": boolean("nothing is cast on its way", holds=True),
    "--enable-teacache": boolean(NO_CACHE, holds=False),
    "--cache-dit-config": refused(NO_CACHE),
    "--lora-nickname": refused(NO_LORA),
    "--lora-weight-name": refused(NO_LORA),
    "--lora-alpha": refused(NO_LORA),
    "--lora-merge-mode": refused(NO_LORA),
    "--warmup": PeerFlag("a start always ends with a clip", ("", *YES), "maybe"),
    "--warmup-mode": noted("a start always ends with a clip, in which kernels are compiled"),
    "--warmup-resolutions": noted("the warm-up makes the shortest and the default clip", "several"),
    "--output-path": refused("use --data-dir"),
    "--input-save-path": refused("use --data-dir"),
    "--enable-trace": boolean("stage times are in /metrics and in each job", holds=False),
    "--enable-metrics": boolean("metrics are on; --disable-log-stats turns them off", holds=True),
    "--mem-fraction-static": refused("it is a share; use --vram-budget, an amount such as 70GiB"),
}
