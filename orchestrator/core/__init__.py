"""The round machine: pure, standard library only."""
