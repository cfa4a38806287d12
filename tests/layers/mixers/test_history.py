"""A causal module as a mixer: continuations, masks and queries match one pass over each separate sequence."""

import pytest
import torch
from torch import Tensor, nn

from iclbench.backbones.sequence_model import SequenceSettings, UniformModel
from iclbench.contracts.contract import failures
from iclbench.contracts.examples import episodes_of, example_shape
from iclbench.layers.mixers.history import HistoryMixer
from iclbench.layers.mixers.mixer import Sizes


class LSTM(HistoryMixer):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.lstm = nn.LSTM(sizes.width, sizes.width, batch_first=True)

    def mix(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class MeanOfAll(HistoryMixer):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.scale = nn.Parameter(torch.ones(()))

    def mix(self, x: Tensor) -> Tensor:
        return self.scale * x.mean(1, keepdim=True).expand_as(x)


class Causal(UniformModel[SequenceSettings]):
    Settings = SequenceSettings
    mixer = f"{__name__}:LSTM"


class Acausal(UniformModel[SequenceSettings]):
    Settings = SequenceSettings
    mixer = f"{__name__}:MeanOfAll"


@pytest.fixture
def mixer() -> LSTM:
    torch.manual_seed(0)
    return LSTM(Sizes(6)).double()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, 6, dtype=torch.float64)


def test_chunks_equal_one_pass(mixer: LSTM) -> None:
    x = tokens(3, 9)
    state, outputs = mixer.start(3), []
    for chunk in x.split([2, 4, 3], 1):
        chunk_outputs, state = mixer(chunk, state)
        outputs.append(chunk_outputs)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer.lstm(x)[0])
    torch.testing.assert_close(mixer.full_pass(x), mixer.lstm(x)[0])


def test_masked_tokens_are_not_read(mixer: LSTM) -> None:
    x, lengths = tokens(4, 5), (5, 3, 0, 3)
    mask = torch.arange(5) >= 5 - torch.tensor(lengths)[:, None]
    outputs, state = mixer(x.where(mask.unsqueeze(2), torch.nan), mixer.start(4), mask)
    next_tokens = tokens(4, 2)
    continued, _ = mixer(next_tokens, state)
    for row, length in enumerate(lengths):
        expected = mixer.lstm(torch.cat([x[row, 5 - length :], next_tokens[row]]).unsqueeze(0))[0][0]
        torch.testing.assert_close(outputs[row, 5 - length :], expected[:length])
        torch.testing.assert_close(continued[row], expected[length:])


def test_a_query_is_read_as_the_next_token_after_the_preceding_pairs(mixer: LSTM) -> None:
    past, pairs, queries = tokens(2, 4), tokens(2, 6), tokens(2, 3)
    _, state = mixer(past, mixer.start(2))
    outputs, answers, after = mixer.fork(pairs, queries, state)
    torch.testing.assert_close(outputs, mixer.lstm(torch.cat([past, pairs], 1))[0][:, 4:])
    for n in range(3):
        expected = mixer.lstm(torch.cat([past, pairs[:, : 2 * n], queries[:, n : n + 1]], 1))[0][:, -1]
        torch.testing.assert_close(answers[:, n], expected)
    peeked = mixer.peek(queries, after)
    for n in range(3):
        expected = mixer.lstm(torch.cat([past, pairs, queries[:, n : n + 1]], 1))[0][:, -1]
        torch.testing.assert_close(peeked[:, n], expected)


def test_gradients_flow_into_the_module(mixer: LSTM) -> None:
    mask = torch.tensor([[True, True], [False, True]])
    mixer(tokens(2, 2), mixer.start(2), mask)[0].square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in mixer.lstm.parameters())


@pytest.mark.parametrize(("model", "fails"), [(Causal, False), (Acausal, True)])
def test_a_module_that_reads_later_tokens_violates_a_contract(
    model: type[UniformModel[SequenceSettings]], fails: bool
) -> None:
    torch.manual_seed(0)
    shape = example_shape("point")
    predictor = model(SequenceSettings(layers=2, width=8), shape)
    assert ("later_points_change_nothing" in failures(predictor, episodes_of(shape))) == fails
