"""From tokens per expert to a table of row blocks of fixed size: what makes dropless experts static work.

Tokens arrive sorted by expert. A kernel for Trainium is traced with static loops, while the numbers of tokens per
expert are known only on the device. So rows are cut into blocks of at most 128 that belong to one expert each; every
expert has at least one block, and their number is bounded by ``rows // 128 + experts`` whatever the counts. The table
is computed by tensor operations alone, without asking the device for a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.limits import PARTITIONS

BLOCK_ROWS = PARTITIONS


@dataclass(frozen=True)
class BlockTable:
    """Which rows each block covers, and for whom."""

    rows: torch.Tensor
    """int32 ``[blocks, 128]``: row numbers; ``num_rows``, which is out of bounds and skipped, where there is none."""
    expert: torch.Tensor
    """int32 ``[blocks, 1]``: the expert of each block; unused blocks at the end name the last one."""
    continues: torch.Tensor
    """float32 ``[blocks, 1]``: 1 where the previous block has the same expert; 0 where the sum of an expert starts."""
    finished: torch.Tensor
    """int32 ``[blocks, 1]``: the expert in its last block, elsewhere the number of experts, which is out of bounds."""


def num_blocks(num_rows: int, num_experts: int) -> int:
    """Blocks that suffice for any distribution of ``num_rows`` over the experts, at least one for each."""
    return num_rows // BLOCK_ROWS + num_experts


def block_table(tokens_per_expert: torch.Tensor, num_rows: int) -> BlockTable:
    """The table for ``num_rows`` sorted rows, of which the first ``tokens_per_expert.sum()`` belong to experts.

    Args:
        tokens_per_expert: integers ``[experts]``, on any device; zeros are allowed.
    """
    counts = tokens_per_expert.to(torch.int32)
    experts, device = counts.shape[0], counts.device
    blocks = torch.arange(num_blocks(num_rows, experts), dtype=torch.int32, device=device)
    last_row = _running_sum(counts)
    last_block = _running_sum((counts + (BLOCK_ROWS - 1)).div(BLOCK_ROWS, rounding_mode="floor").clamp_min(1))
    # Number of experts that ended before a block: its expert, or `experts` for the unused blocks at the end. A sum of
    # comparisons, since not every device sorts or searches.
    owner = (blocks[:, None] >= last_block[None, :]).to(torch.int32).sum(dim=1, dtype=torch.int32)
    used = owner < experts
    expert = owner.clamp_max(experts - 1)
    picked = expert.long()
    starts_at = _before(last_row)[picked] + (blocks - _before(last_block)[picked]) * BLOCK_ROWS
    rows = starts_at[:, None] + torch.arange(BLOCK_ROWS, dtype=torch.int32, device=device)[None, :]
    covered = used[:, None] & (rows < last_row[picked][:, None])
    return BlockTable(
        rows=torch.where(covered, rows, num_rows).to(torch.int32),
        expert=expert[:, None].contiguous(),
        continues=(blocks > _before(last_block)[picked]).to(torch.float32)[:, None],
        finished=torch.where(used & (blocks == last_block[picked] - 1), expert, experts).to(torch.int32)[:, None],
    )


def _running_sum(values: torch.Tensor) -> torch.Tensor:
    return values.cumsum(dim=0, dtype=torch.int32)


def _before(ends: torch.Tensor) -> torch.Tensor:
    """Where each expert starts, from where each ends."""
    return torch.cat((ends.new_zeros(1), ends[:-1]))
