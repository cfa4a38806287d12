"""A simple NumPy implementation of Transformer neural processes.

It computes one episode, dataset and head at a time, without padding. It reads the weights of a model by name and
shares no code with the model. The order of operations follows the papers.
"""

import numpy as np
from torch import nn


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.detach().numpy() for name, t in model.state_dict().items()}


def perceptron(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    indices = sorted({int(key.removeprefix(f"{name}.").split(".")[0]) for key in w if key.startswith(f"{name}.")})
    for i in indices:
        x = x @ w[f"{name}.{i}.weight"].T + w[f"{name}.{i}.bias"]
        if i != indices[-1]:
            x = np.maximum(x, 0)
    return x


def layer_norm(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def layer(w: dict[str, np.ndarray], name: str, q: np.ndarray, kv: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of `q` after attention to the rows of `kv`. If `kv` is empty, the rows do not change."""
    if len(kv) == 0:
        return q
    width = q.shape[1]
    head_width = width // heads
    normed_q, normed_kv = layer_norm(w, f"{name}.norm", q), layer_norm(w, f"{name}.norm", kv)
    key_matrix, value_matrix = np.split(w[f"{name}.kv.weight"], 2)
    mixed = []
    for h in range(heads):
        columns = slice(h * head_width, (h + 1) * head_width)
        scores = (
            normed_q @ w[f"{name}.q.weight"][columns].T @ (normed_kv @ key_matrix[columns].T).T / np.sqrt(head_width)
        )
        weights = np.exp(scores - scores.max(1, keepdims=True))
        mixed.append(weights / weights.sum(1, keepdims=True) @ (normed_kv @ value_matrix[columns].T))
    q = q + np.concatenate(mixed, 1) @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]
    return q + perceptron(w, f"{name}.feed_forward", layer_norm(w, f"{name}.norm_inner", q))


def embed(w: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, missing: float) -> np.ndarray:
    return perceptron(w, "embedding", np.concatenate([x, y, np.full((len(x), 1), missing)], 1))


def raw_outputs(
    model: nn.Module,
    context: tuple[np.ndarray, np.ndarray],
    x_target: np.ndarray,
    related: list[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Return the raw outputs `(Q, raw)` of a `TNP`, `PTTNP` or `ICICLTNP` at the targets of one episode."""
    w, settings = arrays(model), model.settings
    class_name = type(model).__name__

    def attend(name: str, q: np.ndarray, kv: np.ndarray) -> np.ndarray:
        return layer(w, f"{name}.{i}", q, kv, settings.heads)

    # Tokens of the context (zc), the targets (zt) and the related datasets (zj); pseudo-tokens of the context (u) and
    # of the related datasets (uj).
    zc = embed(w, *context, 0.0)
    zt = embed(w, x_target, np.zeros((len(x_target), context[1].shape[1])), 1.0)
    zj = [embed(w, *points, 0.0) for points in related]
    u = w.get("pseudo_tokens")
    uj = [w["related_pseudo_tokens"] for _ in related] if class_name == "ICICLTNP" else []
    for i in range(settings.layers):
        if class_name == "TNP":
            zc = attend("context", zc, zc)
            zt = attend("targets", zt, zc)
        elif class_name == "PTTNP" and settings.style == "ist":
            u = attend("from_data", u, zc)
            zt = attend("targets", zt, u)
            if i < settings.layers - 1:
                zc = attend("back_to_data", zc, u)
        elif class_name == "PTTNP" or settings.coupling == "direct":
            u = attend("from_data", u, zc)
            u = attend("among", u, u)
            uj = [attend("from_data", vectors, z) for vectors, z in zip(uj, zj, strict=False)]
            uj = [attend("among", vectors, vectors) for vectors in uj]
            zt = attend("targets", zt, np.concatenate([u, *uj]))
        else:
            uj = [attend("from_data", vectors, z) for vectors, z in zip(uj, zj, strict=True)]
            u = attend("from_data", u, zc)
            uj = [attend("from_context", vectors, u) for vectors in uj]
            uj = [attend("among", vectors, vectors) for vectors in uj]
            u = attend("among", u, u)
            u = attend("from_related", u, np.concatenate(uj) if uj else np.zeros((0, u.shape[1])))
            zt = attend("targets", zt, u)
    return perceptron(w, "decoder", zt)
