"""Everything on disk that is not a table: identities of runs, prompt sets and cells."""
