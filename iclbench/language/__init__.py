"""Pretrained language models: their tasks, and Deep-Thinking.

A task is a card in `tasks/language/`; a reader turns its data into a pool of examples (`pools`), `prompts` draws the
frozen episodes that every model is asked, `text` writes them down. `models` loads a model, `scoring` asks it, `methods`
says how it takes in the demonstrations, `deep_thinking` is one way. `evaluate` puts it together into table rows.

Letters, as in the backbones: `B` sequences, `T` tokens, `L` tokens of the demonstrations, `V` vocabulary, `H` heads of
keys and values, `C` channels of a head.
"""
