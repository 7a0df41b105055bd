"""Names that torch 2.4 has elsewhere, or not at all; to be imported before they are asked for.

With it, steps of FSDP2 run as they were in the first half of 2024, recomputing nothing or whole
layers: torch 2.4 has no policy that keeps single ops.
"""

from __future__ import annotations

import torch.distributed.fsdp as public_fsdp
import torch.utils.checkpoint as checkpoint

if not hasattr(public_fsdp, "fully_shard"):
    from torch.distributed import _tensor as early_tensor
    from torch.distributed import tensor
    from torch.distributed._composable import fsdp as early_fsdp

    public_fsdp.fully_shard = early_fsdp.fully_shard
    public_fsdp.MixedPrecisionPolicy = early_fsdp.MixedPrecisionPolicy
    if not hasattr(tensor, "Replicate"):
        tensor.Replicate, tensor.Shard = early_tensor.Replicate, early_tensor.Shard

if not hasattr(checkpoint, "CheckpointPolicy"):
    checkpoint.CheckpointPolicy = checkpoint.create_selective_checkpoint_contexts = None
