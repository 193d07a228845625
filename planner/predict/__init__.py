"""What a topology is worth: paths, loads, times of collectives and iterations, price and power."""
