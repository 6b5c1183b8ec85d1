"""Mixtures: several data sets in one order, each round composed exactly."""
