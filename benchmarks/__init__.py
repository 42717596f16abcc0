"""Measurements of jspec and its peers on the same weights and prompts."""
