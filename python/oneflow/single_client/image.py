"""flow.image of the older API is not there: images come to job functions as arrays."""


def __getattr__(name):
    raise AttributeError(
        f"image has no '{name}': images are decoded and resized outside job functions, for example by "
        "Pillow and NumPy, and given as arrays. layers.upsample_2d, pad and slice work on blobs."
    )
