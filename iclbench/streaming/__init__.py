"""Streaming: learning from points and answering queries, line by line."""
