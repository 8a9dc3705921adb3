"""Start lines that are published for MiniMax-H3, as they stand there but for the name of the program.

Recipes of vLLM-Omni (recipes/MiniMaxAI), SGLang's cookbook, the model card, and reports of users.
"""

from __future__ import annotations

TILES = "--vae-parallel-mode tile --vae-use-tiling"
H3 = "MiniMaxAI/MiniMax-H3"
LAYERS = """--diffusion-offload-config '{"mode":"layer","components":["dit","text_encoder"]}'"""
RANK_LOCAL = (
    """--diffusion-offload-config '{"mode":"layer","components":["dit","text_encoder","vae"],"""
    """"layer_options":{"dit":{"weight_transfer":"rank-local"%s}}}'"""
)
OMNI = f"{H3} --omni --trust-remote-code"
GB10 = (
    "/path/to/MiniMax-H3/%s --omni --trust-remote-code --init-timeout 3600 --num-gpus 1 --tensor-parallel-size 1 "
    f"--text-encoder-tp-size 1 --usp 1 --ring 1 --vae-patch-parallel-size 1 {TILES} --quantization fp8 "
    "--enforce-eager --diffusion-attention-backend CUDNN_ATTN"
)
SGLANG = f"--model-path {H3} --model-variant"

# (where it is published, the line)
VLLM_OMNI = {
    "README, quick start": f"{H3} --omni --port 8091",
    "H3, one GPU by layers": f"{OMNI} --host 0.0.0.0 --port 8091 --task-type fl2va --num-gpus 1 {LAYERS} "
    "--enforce-eager --diffusion-attention-backend FLASH_ATTN",
    "H3, one GPU by modules": f"{OMNI} --num-gpus 1 --enable-cpu-offload --diffusion-attention-backend FLASH_ATTN",
    "H3, two GPUs of 24 or 32 GB": f"{OMNI} --host 0.0.0.0 --port 8091 --task-type fl2va --num-gpus 2 "
    f"--tensor-parallel-size 2 --usp 1 --ring 1 --text-encoder-tp-size 2 --vae-patch-parallel-size 2 {TILES} "
    "--enable-distributed-layerwise-offload --dlo-no-use-allgather --dlo-resident-layers 20 --enforce-eager "
    "--diffusion-attention-backend CUDNN_ATTN",
    "H3, four GPUs": f"{OMNI} --num-gpus 4 --usp 4 --ring 1 --vae-patch-parallel-size 4 {TILES}",
    "H3, four GPUs and the encoder on four": f"{OMNI} --num-gpus 4 --usp 4 --ring 1 --text-encoder-tp-size 4 "
    f"--vae-patch-parallel-size 4 {TILES}",
    "H3, between steps": f"{OMNI} --step-execution --max-num-seqs 4 --diffusion-attention-backend FLASH_ATTN",
    "H3, fp8": f"{OMNI} --task-type fl2va --quantization fp8 --vae-use-tiling",
    "H3, fp8 of the DiT": OMNI + """ --diffusion-quantization-config '{"transformer":{"method":"fp8"}}'""",
    "H3, FastH3": f"{OMNI} --task-type fl2va --lora-path ./fasth3/vsa-datafree/adapter_model.safetensors --usp 4 "
    "--diffusion-attention-backend FASTVIDEO_VSA",
    "H3, attention of two roles": OMNI
    + """ --diffusion-attention-config '{"default": {"backend": "TRTLLM_ATTN"}}' --num-gpus 1""",
    "H3, VAEs in host memory": f"{H3} --omni --enable-cpu-offload --vae-cpu-offload",
    "H3 4090 and 5090, one GPU": f"{OMNI} --task-type fl2va {RANK_LOCAL % ''} --vae-use-tiling --enforce-eager "
    "--diffusion-attention-backend CUDNN_ATTN",
    "H3 4090, four GPUs": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --num-gpus 4 --tensor-parallel-size 2 "
    f"--text-encoder-tp-size 4 --usp 2 --ring 1 --vae-patch-parallel-size 4 {TILES} "
    + RANK_LOCAL % ',"resident_layers":12'
    + " --enforce-eager --diffusion-attention-backend CUDNN_ATTN",
    "H3 A100, modules": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --host 0.0.0.0 --port 8000 --num-gpus 4 "
    f"--tensor-parallel-size 4 --text-encoder-tp-size 4 --usp 1 --ring 1 --vae-patch-parallel-size 4 {TILES} "
    "--enable-cpu-offload --enforce-eager --diffusion-attention-backend CUDNN_ATTN",
    "H3 A100, replicas": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --num-gpus 4 --tensor-parallel-size 1 "
    "--text-encoder-tp-size 1 --data-parallel-size 4 --vae-patch-parallel-size 1 --usp 1 --ring 1 "
    f"{TILES} --enable-distributed-layerwise-offload --dlo-no-use-allgather --dlo-resident-layers 0 --enforce-eager",
    "H3 GB10, FL2VA": GB10 % "FL2VA",
    "H3 GB10, Ref2VA": GB10 % "Ref2VA",
    "H3 RTX PRO 5000, two GPUs": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --num-gpus 2 "
    "--tensor-parallel-size 1 --usp 2 --ring 1 --text-encoder-tp-size 2 --vae-patch-parallel-size 2 "
    f"{TILES} --diffusion-attention-backend CUDNN_ATTN --enable-distributed-layerwise-offload "
    "--dlo-no-use-allgather --dlo-resident-layers 20 --enforce-eager",
    "H3 RTX PRO 6000, two GPUs": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --num-gpus 2 "
    "--tensor-parallel-size 2 --usp 1 --ring 1 --text-encoder-tp-size 2 --vae-patch-parallel-size 2 "
    f"{TILES} --diffusion-attention-backend CUDNN_ATTN",
    "H3 H20-3e, eight GPUs": "/path/to/MiniMax-H3/FL2VA --omni --host 0.0.0.0 --port 8091 --trust-remote-code "
    "--num-gpus 8 --tensor-parallel-size 2 --usp 4 --ring 1 --text-encoder-tp-size 8 --vae-patch-parallel-size 8 "
    f"{TILES} --diffusion-attention-backend FLASH_ATTN",
    "H3 H20-3e, fp8": "/path/to/MiniMax-H3/FL2VA --omni --trust-remote-code --num-gpus 8 --tensor-parallel-size 1 "
    f"--usp 8 --ring 1 --text-encoder-tp-size 8 --vae-patch-parallel-size 8 {TILES} "
    "--diffusion-attention-backend FLASH_ATTN --quantization fp8 --init-timeout 3600",
    "four L40S (issue 5700)": "/path/to/MiniMax-H3/FL2VA --omni --host 127.0.0.1 --port 8000 --trust-remote-code "
    "--num-gpus 4 --tensor-parallel-size 4 --text-encoder-tp-size 4 --enable-cpu-offload --cpu-offload-gb 50 "
    "--offload-group-size 1 --offload-num-in-group 1 --offload-prefetch-step 1 --enforce-eager "
    "--diffusion-attention-backend CUDNN_ATTN",
    "one 4090 in fp8 (a user's)": f"{OMNI} --num-gpus 1 --enable-cpu-offload --quantization fp8 --task-type fl2va "
    "--enforce-eager --diffusion-attention-backend FLASH_ATTN --vae-use-tiling --port 8091",
    "profiled, with patience (a user's)": f"{OMNI} --stage-init-timeout 1800 --init-timeout 3600 --log-stats "
    "--enable-diffusion-pipeline-profiler --uvicorn-log-level warning --disable-uvicorn-access-log "
    "--served-model-name h3 MiniMax-H3",
}
SGLANG_DIFFUSION = {
    "model card, FL2VA": f"--model-path {H3} --num-gpus 4 --ulysses-degree 4 --performance-mode speed --host 0.0.0.0 "
    "--port 30010 --model-variant fl2va",
    "cookbook, four H100": f"{SGLANG} fl2va --num-gpus 4 --tp-size 2 --ulysses-degree 2 --performance-mode speed "
    "--port 30010",
    "cookbook, TP4": f"{SGLANG} fl2va --num-gpus 4 --tp-size 4 --ulysses-degree 1 --performance-mode speed "
    "--port 30010",
    "cookbook, FSDP": f"{SGLANG} fl2va --num-gpus 4 --ulysses-degree 4 --performance-mode speed "
    "--use-fsdp-inference true --port 30010",
    "cookbook, two RTX 5090": f"{SGLANG} fl2va --num-gpus 2 --tp-size 2 --ulysses-degree 1 --performance-mode memory "
    "--layerwise-offload-components dit,text_encoder,vae --dit-offload-prefetch-size 1 "
    "--dit-layerwise-resident-layers 20 --enable-torch-compile false --port 30010",
    "cookbook, quality": f"{SGLANG} fl2va --num-gpus 4 --tp-size 1 --sp-degree 4 --ulysses-degree 4 --ring-degree 1 "
    "--performance-mode speed --use-fsdp-inference false --enable-torch-compile false --port 30010",
    "sequence parallelism, two machines": f"{SGLANG} ref2va --num-gpus 16 --nnodes 2 --node-rank 0 "
    "--dist-init-addr 10.0.0.1:23456 --sp-degree 16 --ulysses-degree 8 --ring-degree 2 --encoder-parallel replicate "
    "--port 30010",
    "two H200 (a user's)": f"{SGLANG} fl2va --served-model-name {H3} --num-gpus 2 --ulysses-degree 2 "
    "--encoder-parallel auto --performance-mode speed --enable-torch-compile false --host 0.0.0.0 --port 30000",
    "one GPU (a user's)": f"{SGLANG} fl2va --model-type diffusion --num-gpus 1 --performance-mode memory "
    "--text-encoder-cpu-offload --vae-tiling --pin-cpu-memory --port 30010",
    "components in files of their own": f"{SGLANG} fl2va --component-weights-paths.transformer dit.safetensors "
    "--component-weights-paths.text_encoder text.safetensors",
    "sparse attention": f"--model-path {H3} --attention-backend video_sparse_attn_h3 "
    "--component-attention-backends text_encoder=fa --attention-backend-config '{\"sparsity\": 0.9}'",
    "without a warm-up (a user's)": f"{SGLANG} fl2va --num-gpus 4 --tp-size 4 --ulysses-degree 1 "
    "--encoder-parallel auto --performance-mode memory --layerwise-offload-components dit,text_encoder "
    "--dit-offload-prefetch-size 1 --dit-layerwise-resident-layers 4 --enable-torch-compile false "
    "--warmup-mode off --host 127.0.0.1 --port 30010",
}
