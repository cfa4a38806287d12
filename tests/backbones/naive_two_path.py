"""A simple NumPy implementation of two-path neural processes.

It computes one episode, sample and head at a time, without padding. It reads the weights of a model by name and
shares no code with the model. The order of operations follows the papers.
"""

import numpy as np
from scipy.special import expit, softmax
from torch import nn

from tests.backbones.naive_np import arrays, layer_norm, perceptron

Points = tuple[np.ndarray, np.ndarray]


class NaiveModel:
    """A NumPy implementation with the weights of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.w, self.width = arrays(model), model.settings.width
        self.heads = getattr(model.settings, "heads", None)

    def attention(self, name: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the rows of `q` after attention to the rows of `k` and `v`. Without keys, attention returns 0."""
        w = self.w
        q, k, v = (t @ w[f"{name}.{key}.weight"].T for key, t in (("q", q), ("k", k), ("v", v)))
        mixed = np.zeros_like(q)
        for columns in np.split(np.arange(self.width), self.heads) if len(k) else ():
            scores = q[:, columns] @ k[:, columns].T / np.sqrt(self.width)
            mixed[:, columns] = softmax(scores, 1) @ v[:, columns]
        h = layer_norm(w, f"{name}.norm", q + mixed)
        out = np.maximum(h @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"], 0)
        return layer_norm(w, f"{name}.norm_out", h + out)

    def pool(self, name: str, rows: np.ndarray) -> np.ndarray:
        vectors = perceptron(self.w, f"{name}.pre", rows)
        if self.heads:
            vectors = np.maximum(vectors, 0)
            vectors = self.attention(f"{name}.among", vectors, vectors, vectors)
        mean = vectors.mean(0) if len(rows) else np.zeros(self.width)
        return perceptron(self.w, f"{name}.post", mean)

    def first_encoder(self, context: Points, x: np.ndarray) -> np.ndarray:
        """Return the output of the first encoder at each target."""
        name, rows = "encoders.first", np.concatenate(context, 1)
        if not self.heads:
            return np.tile(self.pool(name, rows), (len(x), 1))
        values = perceptron(self.w, f"{name}.values", rows)
        values = self.attention(f"{name}.among", values, values, values)
        q, k = (perceptron(self.w, f"{name}.places", inputs) for inputs in (x, context[0]))
        return self.attention(f"{name}.attention", q, k, values)

    def second_encoder(self, context: Points) -> np.ndarray:
        return self.pool("encoders.second", np.concatenate(context, 1))

    def latent(self, context: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of the latent variable z."""
        mean, spread = np.split(self.second_encoder(context), 2)
        return mean, 0.1 + 0.9 * expit(spread)

    def decode(
        self, first: np.ndarray, second: np.ndarray, x: np.ndarray, hidden_offset: np.ndarray | float = 0
    ) -> np.ndarray:
        w, rows = self.w, np.concatenate([first, np.tile(second, (len(x), 1)), x], 1)
        h = rows @ w["decoder.0.weight"].T + w["decoder.0.bias"] + hidden_offset
        indices = sorted({int(key.split(".")[1]) for key in w if key.startswith("decoder.")})
        for i in indices[1:]:
            h = np.maximum(h, 0) @ w[f"decoder.{i}.weight"].T + w[f"decoder.{i}.bias"]
        return h

    def raw_outputs(self, context: Points, x: np.ndarray, hidden_offset: np.ndarray | float = 0) -> np.ndarray:
        """Return the raw outputs `(Q, raw)` at the targets."""
        return self.decode(self.first_encoder(context, x), self.second_encoder(context), x, hidden_offset)

    def raw_outputs_of_sample(self, context: Points, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return the raw outputs for a sample of the latent variable."""
        return self.decode(self.first_encoder(context, x), z, x)

    def raw_outputs_of_bootstrap(self, context: Points, bootstrap: Points, x: np.ndarray) -> np.ndarray:
        """Return the raw outputs for a context and one bootstrap of this context."""
        encoded = np.concatenate(
            [self.first_encoder(bootstrap, x), np.tile(self.second_encoder(bootstrap), (len(x), 1))], 1
        )
        return self.raw_outputs(context, x, encoded @ self.w["from_bootstrap.weight"].T)

    def bootstrap(self, context: Points, pairs: np.ndarray, residuals: np.ndarray, spread: bool) -> Points:
        """Return the context with resampled residuals. The residuals are standardised if `spread`."""
        x, y = context
        if not len(x):
            return context
        raw = self.raw_outputs((x[pairs], y[pairs]), x)
        mean, std = (raw[:, : y.shape[1]], np.sqrt(np.logaddexp(0, raw[:, y.shape[1] :]))) if spread else (raw, 1.0)
        sample = ((y - mean) / std)[residuals]
        return x, mean + std * (sample - sample.mean(0))
