"""Attacks on run folders. A trial of an attack is given by one whole number, and can be repeated by it."""
