"""Pretrained language models: loading, tokens, batches, caches."""
