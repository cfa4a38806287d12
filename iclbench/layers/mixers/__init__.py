"""The mixers of sequence models, one file each."""
