# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Kernels for Hopper GPUs in Gluon, Triton's lower-level language, where the overlap is written out.

They serve fp16 and bf16, head dimensions 32, 64 and 128, windows or none; the portable kernels serve the rest.
"""
