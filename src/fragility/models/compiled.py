"""Compiled code: which names from outside a function reads, and which of them it changes.

Two functions of equal code compute different things over different globals, so a model's identity needs them. A name
that the function itself changes (a counter, a cache) says how often it was called, not what it computes.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType

READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"})
GLOBAL_READS = READS - {"LOAD_DEREF", "LOAD_CLASSDEREF"}
ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
REBINDS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
# Methods by which the built-in containers change.
MUTATORS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove"})
# Instructions that leave the top of the stack as it is.
NEUTRAL = frozenset({"NOP", "RESUME", "EXTENDED_ARG", "CACHE", "KW_NAMES", "MAKE_CELL", "COPY_FREE_VARS", "NOT_TAKEN"})
NEUTRAL_PREFIXES = ("STORE_", "DELETE_", "POP_", "JUMP_", "RETURN_")


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def global_reads(code: CodeType) -> list[tuple[str, ...]]:
    """Return the globals read, each with the attributes read from it at once: ``np.log1p`` is ("np", "log1p")."""
    found = dict.fromkeys(_own_global_reads(code))
    for inner in inner_codes(code):
        found.update(dict.fromkeys(global_reads(inner)))
    return list(found)


def _own_global_reads(code: CodeType) -> Iterator[tuple[str, ...]]:
    instructions = list(dis.get_instructions(code))
    own = {step.argval for step in instructions if step.opname == "STORE_NAME"}  # a class body's own names
    for i, step in enumerate(instructions):
        if step.opname not in GLOBAL_READS or step.argval in own:
            continue
        chain = [str(step.argval)]
        for after in instructions[i + 1 :]:
            if after.opname not in ATTRIBUTE_READS:
                break
            chain.append(str(after.argval))
        yield tuple(chain)


def changed_names(code: CodeType) -> frozenset[str]:
    """Return the names from outside that the code binds anew or writes into."""
    changed = set(_own_changes(code))
    for inner in inner_codes(code):
        changed |= changed_names(inner) - set(code.co_cellvars)
    return frozenset(changed)


def _own_changes(code: CodeType) -> Iterator[str]:
    instructions = list(dis.get_instructions(code))
    outside = set(code.co_freevars)
    for step in instructions:
        own = step.opname.endswith("_DEREF") and step.argval not in outside
        if step.opname in REBINDS and not own:
            yield str(step.argval)
    for step, after in pairwise(instructions):
        if _reads_outside(step, outside) and after.opname in ATTRIBUTE_READS and after.argval in MUTATORS:
            yield str(step.argval)
    yield from _written_into(instructions, outside)


def _reads_outside(step: dis.Instruction, outside: set[str]) -> bool:
    return step.opname in READS and (step.opname in GLOBAL_READS or step.argval in outside)


def _written_into(instructions: list[dis.Instruction], outside: set[str]) -> Iterator[str]:
    """Follow the names on the stack, in the order of the code, to the stores into an item or attribute of one."""
    stack: list[str | None] = []
    at_target: dict[int, list[str | None]] = {}  # offset of a branch -> the stack it starts with
    for step in instructions:
        stack = at_target.get(step.offset, stack)
        owner = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_ATTR": 1, "DELETE_ATTR": 1}.get(step.opname)
        if owner is not None and len(stack) >= owner:
            name = stack[-owner]
            if name is not None:
                yield name
        _advance(stack, step, outside)
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            at_target.setdefault(step.argval, list(stack))


def _advance(stack: list[str | None], step: dis.Instruction, outside: set[str]) -> None:
    effect = dis.stack_effect(step.opcode, step.arg, jump=False)
    place = step.arg or 0
    if step.opname == "COPY":
        stack.append(stack[-place] if place <= len(stack) else None)
    elif step.opname == "SWAP":
        if place <= len(stack):
            stack[-1], stack[-place] = stack[-place], stack[-1]
    elif effect == 1 and _reads_outside(step, outside):
        stack.append(str(step.argval))
    else:
        if effect < 0:
            del stack[effect:]
        stack.extend([None] * effect)
        if stack and step.opname not in NEUTRAL and not step.opname.startswith(NEUTRAL_PREFIXES):
            stack[-1] = None  # the instruction took its operands and put its result there
