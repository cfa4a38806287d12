"""Evaluation of pretrained language models on in-context tasks, with Deep-Thinking.

A task is a card in `tasks/language/`. The readers in `tasks` read its data into a pool of examples. `prompting` draws
the frozen episodes, writes them as prompts and checks that they fit into the model. `models` loads a model, and
`answering` computes its answers. The methods by which a model processes demonstrations are in `iclbench.deep_thinking`.
`evaluate` computes the table rows, cell by cell (`cell`), and `summary` computes their means over demonstration seeds.

Letters of tensor shapes: `B` sequences, `T` tokens, `L` tokens of the demonstrations, `V` entries of the vocabulary,
`H` heads of keys and values, `C` channels of a head.
"""
