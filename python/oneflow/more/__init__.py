"""OneFlow's names in modules that are Holon's."""
