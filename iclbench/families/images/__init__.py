"""Image families: completion of images from some of their pixels, bursty few-shot classification, and image
datasets."""
