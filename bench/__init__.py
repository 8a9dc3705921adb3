"""One script or folder per claim, run as ``python -m bench.NAME``; each writes ``results/<bench>-<device>.json``.

Against a peer, outputs are compared first; what a failed check watches is not reported.

    dit_forward    a forward against its floor and diffusers          one GPU
    memory         streaming, plans and budgets, two ranks            GPUs
    text_encoder   bf16 and fp8, sdpa and fa3                         one GPU
    precision      how far a cheaper precision moves a clip, beside how far another seed does
    meaning        does a clip show and sound like its prompt?        CPU
    e2e_cpu        prompt to MP4 against diffusers                    CPU
    start          a clip, a command, a server, beside a yardstick    CPU
    load           nothing lost, nothing twice, through kill -9       CPU
    scheduling     who waits how long under each policy               CPU
    figures        which file and commit each published figure rests on, and which are older than their code
    charts         draws docs/img from the results; svg is its pen

``gpu.sh`` and ``memory.sh`` run what needs GPUs in order.
"""
