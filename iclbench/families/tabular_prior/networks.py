"""Tables from random networks: structural causal models and Bayesian neural networks (Hollmann et al. 2023, TabPFN).

A network of L layers maps causes c to

    h_1 = c W_1 + b_1,    h_l = act_l(h_{l-1}) W_l + b_l + e_l  for l = 2, ..., L,

with noise e_l ~ N(0, noise²). Weights are normal with the standard deviation of the network; biases are uniform between
±1/sqrt(fan-in). In half of the networks, every weight matrix consists of k diagonal blocks and zeros, with k uniform
from 1 to ceil(sqrt(smaller side)), and the remaining weights are scaled up by 1/sqrt(their share). Each layer has one
of three activations.

- A structural causal model (`is_causal`) has its columns and its target among the hidden units of layers 2 to L, so
  columns may be causes or effects of the target. In half of the models, the target is in the last layer; in the others,
  it is one of the candidates for columns. In half of the models, these candidates are all units of the layers; in the
  others, they are neighbouring units.
- In a Bayesian neural network, the causes are the columns, and the target is one further unit on top of h_L.

All tables of a batch are computed at once. Networks of similar widths form a group, which is padded to the largest
width with zeros; within a group, networks with more layers come first, so that layer l is one batched product over the
first tables, which have at least l layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.families.sampling import normal
from iclbench.families.tabular_prior.causes import Causes
from iclbench.families.tabular_prior.draws import (
    chance,
    first,
    integers,
    log_uniform,
    log_uniform_integers,
    truncated_normal_integers,
    uniform,
)

LAYERS = (2, 6)
WIDTH = (4, 130)
INIT_STD = (0.01, 10.0)
NOISE = (1e-4, 0.3)
MOST_CAUSES = 12
ACTIVATIONS = ("identity", "tanh", "relu")
_, TANH, RELU = range(3)
# The largest widths of all groups except the last.
_GROUP_WIDTHS = (24, 64)
_TARGET_IN_LAST_LAYER = 0.5
_NEIGHBOURS = 0.5
_BLOCKS = 0.5


@dataclass(frozen=True)
class Networks:
    """Networks of B tables with at most C columns, padded to H units and L layers. The tables are in descending order
    of `layers`.

    Attributes:
        is_causal: whether the table is a structural causal model.
        layers: number of layers of each network.
        noise: standard deviation of the noise of hidden units.
        activation: the index in `ACTIVATIONS` at the input of layers 2 to L, and of the output.
        units: number of hidden units per layer.
        first_weights: weights of layer 1.
        weights: weights of layers 2 to L. Each tensor contains only the first tables, which have this layer.
        biases: biases of layers 1 to L.
        out_weights, out_bias: the output of a Bayesian neural network.
        target: index of the target among the units of layers 2 to L, including padding.
        columns: indices of the columns, counted like `target`.
        causes: the distributions of the causes.
    """

    is_causal: Bool[Tensor, " B"]
    layers: Int[Tensor, " B"]
    noise: Float[Tensor, " B"]
    activation: Int[Tensor, "B L"]
    units: Int[Tensor, " B"]
    first_weights: Float[Tensor, "B K H"]
    weights: tuple[Float[Tensor, "_ H H"], ...]
    biases: Float[Tensor, "B L H"]
    out_weights: Float[Tensor, "B H"]
    out_bias: Float[Tensor, " B"]
    target: Int[Tensor, " B"]
    columns: Int[Tensor, "B C"]
    causes: Causes

    def sample(self, rows: int, generator: torch.Generator) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N"]]:
        """Sample the columns and targets of independent rows."""
        return self.propagate(self.causes.sample(rows, generator), generator)

    def propagate(
        self, causes: Float[Tensor, "B N K"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N"]]:
        """Compute the columns and targets of rows with these causes."""
        tables, rows, width = len(causes), causes.shape[1], self.biases.shape[2]
        spread = (first(self.units, width) * self.noise.unsqueeze(1)).unsqueeze(1)
        selected_units = torch.cat([self.target.unsqueeze(1), self.columns], 1)
        selected_values = causes.new_zeros(tables, rows, selected_units.shape[1])
        output = causes.new_zeros(tables, rows)
        hidden = torch.baddbmm(self.biases[:, :1], causes, self.first_weights)
        for layer, weights in enumerate(self.weights, 2):
            deep = len(weights)
            active = _activate(hidden[:deep], self.activation[:deep, layer - 2])
            hidden = torch.baddbmm(self.biases[:deep, layer - 1 : layer], active, weights)
            hidden.addcmul_(normal(tuple(hidden.shape), generator), spread[:deep])
            unit = selected_units[:deep] - (layer - 2) * width
            is_in_layer = ((unit >= 0) & (unit < width)).unsqueeze(1)
            values = hidden.gather(2, unit.clamp(0, width - 1).unsqueeze(1).expand(-1, rows, -1))
            selected_values[:deep] = torch.where(is_in_layer, values, selected_values[:deep])
            deeper = len(self.weights[layer - 1]) if layer - 1 < len(self.weights) else 0
            if deeper < deep:
                active = _activate(hidden[deeper:], self.activation[deeper:deep, layer - 1])
                output[deeper:deep] = torch.bmm(active, self.out_weights[deeper:deep].unsqueeze(2)).squeeze(2)
        output = output + self.out_bias.unsqueeze(1) + self.noise.unsqueeze(1) * normal((tables, rows), generator)
        is_causal = self.is_causal.view(-1, 1, 1)
        columns = torch.where(is_causal, selected_values[..., 1:], causes[..., : self.columns.shape[1]])
        return columns, torch.where(self.is_causal.unsqueeze(1), selected_values[..., 0], output)


def draw_networks(
    is_causal: Bool[Tensor, " B"], columns: Int[Tensor, " B"], size: int, generator: torch.Generator
) -> list[tuple[Int[Tensor, " G"], Networks]]:
    """Draw networks for tables with these numbers of columns, which are at most `size`.

    Returns:
        Groups of networks, each with the indices of its tables.
    """
    tables = (len(columns),)
    layers = log_uniform_integers(tables, LAYERS, generator)
    units = log_uniform_integers(tables, WIDTH, generator)
    # A causal model has enough units for all columns and the target even if half of its units have no inputs.
    units = torch.where(is_causal, units.maximum(1 + 2 * columns), units)
    causes = torch.where(is_causal, truncated_normal_integers(tables[0], MOST_CAUSES, generator), columns)
    group = torch.bucketize(units, torch.tensor(_GROUP_WIDTHS, device=units.device))
    order = layers.argsort(descending=True, stable=True)
    groups = [order[group[order] == number] for number in range(len(_GROUP_WIDTHS) + 1)]
    return [
        (
            index,
            _draw_group(is_causal[index], columns[index], layers[index], units[index], causes[index], size, generator),
        )
        for index in groups
        if len(index)
    ]


def _draw_group(
    is_causal: Bool[Tensor, " B"],
    columns: Int[Tensor, " B"],
    layers: Int[Tensor, " B"],
    units: Int[Tensor, " B"],
    causes: Int[Tensor, " B"],
    size: int,
    generator: torch.Generator,
) -> Networks:
    tables, width, depth, inputs = len(units), int(units.max()), int(layers[0]), max(size, int(causes.max()))
    std = log_uniform((tables,), INIT_STD, generator)
    noise = log_uniform((tables,), NOISE, generator)
    has_blocks = chance((tables,), _BLOCKS, generator)
    activation = (len(ACTIVATIONS) * uniform((tables, depth), generator)).long()
    first_weights = _weights(causes, units, (inputs, width), std, has_blocks, generator)
    deep = [int((layers >= layer).sum()) for layer in range(2, depth + 1)]
    weights = [_weights(units[:n], units[:n], (width, width), std[:n], has_blocks[:n], generator) for n in deep]
    is_unit = first(units, width)
    fan_in = torch.cat([causes.unsqueeze(1), units.unsqueeze(1).expand(-1, depth)], 1)
    biases = (
        (2 * uniform((tables, depth + 1, width), generator) - 1) / fan_in.sqrt().unsqueeze(2) * is_unit.unsqueeze(1)
    )
    target, chosen_columns = _choose_units(columns, layers, units, width, depth, size, generator)
    return Networks(
        is_causal=is_causal,
        layers=layers,
        noise=noise,
        activation=activation,
        units=units,
        first_weights=first_weights,
        weights=tuple(weights),
        biases=biases[:, :depth],
        out_weights=_weights(units, torch.ones_like(units), (width, 1), std, has_blocks, generator).squeeze(2),
        out_bias=biases[:, depth, 0],
        target=target,
        columns=chosen_columns,
        causes=Causes.draw(tables, inputs, generator),
    )


def _weights(
    fan_in: Int[Tensor, " B"],
    fan_out: Int[Tensor, " B"],
    shape: tuple[int, int],
    std: Float[Tensor, " B"],
    has_blocks: Bool[Tensor, " B"],
    generator: torch.Generator,
) -> Float[Tensor, "B inputs outputs"]:
    """Draw weight matrices of one or more diagonal blocks, padded with zeros to `shape`."""
    most_blocks = fan_in.minimum(fan_out).sqrt().ceil().long()
    blocks = torch.where(has_blocks, 1 + integers(most_blocks, generator), 1)
    height, width = fan_in // blocks, fan_out // blocks
    row_block, column_block = (
        torch.arange(size, device=std.device) // side.unsqueeze(1)
        for size, side in zip(shape, (height, width), strict=True)
    )
    row_block = row_block.masked_fill(row_block >= blocks.unsqueeze(1), -1)
    is_kept = row_block.unsqueeze(2) == column_block.unsqueeze(1)
    scale = std * (fan_in * fan_out / (blocks * height * width)).sqrt()
    return normal((len(std), *shape), generator).mul_(scale.view(-1, 1, 1)).masked_fill_(~is_kept, 0)


def _choose_units(
    columns: Int[Tensor, " B"],
    layers: Int[Tensor, " B"],
    units: Int[Tensor, " B"],
    width: int,
    depth: int,
    size: int,
    generator: torch.Generator,
) -> tuple[Int[Tensor, " B"], Int[Tensor, "B C"]]:
    """Draw different units of layers 2 to L for the target and the columns of a causal model. Return their indices,
    counted with padding. Of the `size` columns, only the first `columns` are used."""
    tables = len(units)
    layer, unit = torch.meshgrid(
        torch.arange(depth - 1, device=units.device), torch.arange(width, device=units.device), indexing="ij"
    )
    layer, unit = layer.flatten(), unit.flatten()
    is_unit = (layer < layers.unsqueeze(1) - 1) & (unit < units.unsqueeze(1))
    number = layer * units.unsqueeze(1) + unit  # without padding
    count = (layers - 1) * units
    has_neighbours = chance((tables,), _NEIGHBOURS, generator)
    start = torch.where(has_neighbours, integers(count - columns, generator), 0)
    length = torch.where(has_neighbours, columns + 1, count)
    is_near = (number >= start.unsqueeze(1)) & (number < (start + length).unsqueeze(1)) & is_unit
    in_last_layer = chance((tables, 1), _TARGET_IN_LAST_LAYER, generator)
    is_candidate = torch.where(in_last_layer, is_unit & (layer == layers.unsqueeze(1) - 2), is_near)
    scores = uniform((tables, len(unit)), generator)
    target = scores.masked_fill(~is_candidate, -1).argmax(1)
    is_column = is_near.scatter(1, target.unsqueeze(1), False)
    # A group may have fewer units than `size`. The columns without a unit are not used.
    scores = torch.nn.functional.pad(scores.masked_fill(~is_column, -1), (0, max(0, size - len(unit))), value=-2)
    return target, scores.topk(size, 1).indices.clamp_max(len(unit) - 1)


def _activate(hidden: Float[Tensor, "B N H"], activation: Int[Tensor, " B"]) -> Float[Tensor, "B N H"]:
    """Apply the activation of each table. tanh is expensive, so it is computed only for the tables that use it."""
    is_tanh = (activation == TANH).nonzero().squeeze(1)
    smallest = torch.where(activation == RELU, 0.0, -torch.inf).view(-1, 1, 1)
    active = torch.maximum(hidden, smallest)
    active[is_tanh] = hidden[is_tanh].tanh_()
    return active
