"""Records the calls of a model, replays them one by one, and finds the lines at which gradients stop or change."""
