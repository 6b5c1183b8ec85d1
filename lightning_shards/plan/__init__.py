"""The arithmetic of epochs: steps, sizes, order. Pure functions of numbers, numpy only."""
