"""What a training needs apart from other ranks: models, the optimizer, checkpoints, fewer bytes of
a gradient.
"""
