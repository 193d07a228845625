"""Look at the world: the ladder of checks, power meters, test traffic, the doctor. Moves no light, changes no route."""
