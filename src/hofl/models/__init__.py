"""Causal language models cut into blocks: loading, LoRA coordinates, the split."""
