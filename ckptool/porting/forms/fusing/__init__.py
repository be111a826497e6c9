"""Take fused projections apart: queries, keys and values, or gate and up, in one matrix, in whatever order they are."""
