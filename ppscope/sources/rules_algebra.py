"""Builds comparisons and choices, deciding at once what the source alone decides."""

from __future__ import annotations

from ppscope.sources.rules_model import FALSE, TRUE, Condition, conjunction, disjunction, literal, negate


def comparison(op: str, left: Condition, right: Condition) -> Condition:
    """A comparison, with a choice on the left taken apart and what is constant already decided."""
    if left.op == "if" and right.op in ("literal", "tuple"):
        test, then, otherwise = left.args
        return disjunction(
            [
                conjunction([test, comparison(op, then, right)]),
                conjunction([negate(test), comparison(op, otherwise, right)]),
            ]
        )
    if left.op == "literal" and right.op == "literal" and op in ("==", "!=", "is", "is not"):
        same = type(left.value) is type(right.value) and left.value == right.value
        return TRUE if same == (op in ("==", "is")) else FALSE
    if left.op == "backend" and right == literal("disabled") and op in ("==", "!=", "is", "is not"):
        off = Condition("off", name=left.name)
        return off if op in ("==", "is") else negate(off)
    return Condition(op, (left, right))


def choice(test: Condition, then: Condition, otherwise: Condition) -> Condition:
    """`then if test else otherwise`, decided where the test already is."""
    if test.op == "true" or (then == otherwise and then.op == otherwise.op):
        return then
    return otherwise if test.op == "false" else Condition("if", (test, then, otherwise))


def truth(condition: Condition) -> Condition:
    """A condition used as a test: constants and choices become guards."""
    if condition.op == "literal":
        return TRUE if condition.value else FALSE
    if condition.op == "if":
        test, then, otherwise = condition.args
        return disjunction([conjunction([test, truth(then)]), conjunction([negate(test), truth(otherwise)])])
    return condition


def first_truthy(parts: list[Condition]) -> Condition:
    """`a or b`, keeping values: the first that is truthy."""
    kept = [part for part in parts[:-1] if not (part.op == "literal" and not part.value)] + [parts[-1]]
    return disjunction(kept)
