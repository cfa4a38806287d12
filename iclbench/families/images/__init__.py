"""Images: completion from some pixels, bursty few-shot classification, and the data sets."""
