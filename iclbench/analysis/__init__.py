"""Result tables to scores, intervals, ranks and significant differences. Imports neither torch nor figures."""
