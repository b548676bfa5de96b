"""What flows into training: samples in an order that is a function of the seed, never of who reads them.

Standard library, numpy and pyarrow; torch where a batch is to be a tensor. No state is kept: any step of any epoch can
be asked for at once, by any number of readers, and is the same.
"""
