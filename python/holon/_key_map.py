"""KeyMap: names and layouts of one program's state dict as those of another's, and back."""

from . import _C


def _names(names):
    return [names] if isinstance(names, str) else list(names)


class KeyMap:
    """A table of rules: which names of a state dict become which, and what happens to the tensors.

    A rule is (to, from) or (to, from, options), with a name or a list of names on either side. In a name {i} is a
    number, the same in all names of the rule, and {name*} is any text. options is a dict of
      kind: "same"; "transpose" (of axis and other, 0 and 1); "join", which makes one of the tensors `from` along axis;
        "split", the reverse; "stack", which makes one of the tensors of all numbers that `to` has not, along a new
        axis; "unstack", the reverse;
      axis, other: of these, 0 and 1;
      parts: of "join" and "split", the sizes along axis up to a factor. Without them they are equal.

    Errors (ValueError): names that a rule of its kind cannot have.
    """

    def __init__(self, rules):
        self._map = _C.KeyMap([self._rule(*rule) for rule in rules])

    @staticmethod
    def _rule(to, source, options=None):
        options = dict(options or {})
        rule = (
            _names(to),
            _names(source),
            options.pop("kind", "same"),
            options.pop("axis", 0),
            options.pop("other", 1),
            list(options.pop("parts", [])),
        )
        if options:
            raise ValueError(
                f"KeyMap: a rule has no option {next(iter(options))!r}; it has kind, axis, other and parts."
            )
        return rule

    def apply(self, state):
        """Returns the state dict under the other names. Collective for global tensors.

        Errors (ValueError), naming the tensor: no rule, or more than one, has its name; a tensor that a rule needs with
        it is missing; two results of one name; sizes that the rule does not fit.
        """
        return self._map.apply(dict(state))

    def inverse(self):
        """Returns the map that leads back."""
        back = KeyMap([])
        back._map = self._map.inverse()
        return back
