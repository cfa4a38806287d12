"""Pretrained language models: their tasks, and Deep-Thinking.

A task is a card in `tasks/language/`; in the room `tasks` a reader turns its data into a pool of examples. `prompting`
draws the frozen episodes that every model is asked, writes them down and fits them in; `models` loads a model;
`answering` asks it. How it takes in the demonstrations is a method of `iclbench.deep_thinking`. `evaluate` puts it
together into table rows, cell by cell (`cell`), and `summary` into means.

Letters, as in the backbones: `B` sequences, `T` tokens, `L` tokens of the demonstrations, `V` vocabulary, `H` heads of
keys and values, `C` channels of a head.
"""
