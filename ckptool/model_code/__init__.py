"""Import, build and trace the models that a user names in code.

A pass is one run of a model's `forward`; following it shows facts about each parameter (`signature.Facts`). A spec is
an input to be made (`inputs.InputSpec`). A tensor is hollow if all its elements share one in memory: it has sizes, and
no values that matter (`hollow`).
"""
