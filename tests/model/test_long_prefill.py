"""What a long prefill takes of memory on a CPU."""

from __future__ import annotations

import subprocess
import sys

FOUR_GB = 4 * 10**9

# One layer of each kind at the end of a 131,072-token prefill of the shipped model, in the engine's chunks,
# beside all that the model keeps: what a process ever held.
PREFILL = """
import torch
from pathlib import Path
from pilotfish.kernels.layer import full_attention, selected_attention
from pilotfish.kernels.batch import Batch
from pilotfish.model import checkpoint
from pilotfish.model.config import M3Config
from pilotfish.model.folder import find_folder
from pilotfish.model.pages import PagePool

torch.set_num_threads(1)
torch.set_grad_enabled(False)
config = M3Config.from_folder(find_folder("nano"))
c, T, N = config.text, 256, 131_072
pool = PagePool(config, "cpu", torch.bfloat16)
pool.take(pool.pages_for(N))
for x in pool.buffers.values():
    x.fill_(0.5)
q, qi = (torch.randn(1, h, T, w).bfloat16() for h, w in
         ((c.num_attention_heads, c.head_dim), (c.index_heads, c.index_dim)))
layer = c.sparse_layers.index(True)
keys, values, index = (pool.buffers[f"{kind}.{layer}"] for kind in ("keys", "values", "index"))
full_attention(q, keys, values, 0.125)
selected_attention(q, keys, values, qi, index, Batch.single(T, N, "cpu"), block=c.block_size,
                   topk=c.topk_blocks, scale=0.125)
# Not ru_maxrss, which begins with what the process that started this one held.
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024)
"""


def test_a_long_prefill_of_the_shipped_model_fits_four_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", PREFILL], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    # While the cache grows it is there one and a half times; weights are 40 MB.
    growth = 300 * 1024**2
    assert int(done.stdout) + growth < FOUR_GB // 2
