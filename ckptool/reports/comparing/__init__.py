"""How two checkpoints differ (see `ckptool.diff`)."""
