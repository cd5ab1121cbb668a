"""MiniMax Sparse Attention: selection and attention, each kernel beside its plain-torch twin."""
