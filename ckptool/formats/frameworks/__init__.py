"""Files of other frameworks: numpy, llama.cpp, Keras, Flax, TensorFlow, ONNX and others, each read as inert data.

No reader calls a function of a library that could run what is in a file. Where a format is simple, a small reader of
our own finds where the bytes of each tensor stand, so that they stay in the file until they are asked for. What a
library in C parses (HDF5) is parsed in a child process with limits on its time and memory.
"""
