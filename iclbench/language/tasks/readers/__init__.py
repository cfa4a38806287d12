"""One file per source of examples: each makes a pool from a card's parameters and the user's own copy of the data."""
