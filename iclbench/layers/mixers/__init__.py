"""What mixes tokens in the layers of a sequence model, one file each."""
