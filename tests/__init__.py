"""The tests: folders mirror src/falaj; conformance, stories, shape and servers stand beside them."""
