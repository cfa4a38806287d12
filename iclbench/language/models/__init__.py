"""Pretrained language models: loading, tokenising, batches and caches."""
