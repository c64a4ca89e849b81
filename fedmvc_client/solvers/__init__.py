"""The local maths in torch. No Flower, no files."""
