"""The lines of a TOML file's entries, which Python's parser does not keep, for error messages."""

import re

Place = tuple[str | int, ...]  # keys and indices that lead to an entry


def line_numbers(text: str) -> dict[Place, int]:
    """Return the line of every key and table header, by the keys that lead to it."""
    found: dict[Place, int] = {}
    section: Place = ()
    arrays: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            section = _keys(header[2])
            if header[1] == "[[":
                arrays[section] = arrays.get(section, -1) + 1
                section = (*section, arrays[section])
            for i in range(1, len(section) + 1):
                found.setdefault(section[:i], number)
        elif entry := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line):
            keys = _keys(entry[1])
            for i in range(1, len(keys) + 1):
                found.setdefault((*section, *keys[:i]), number)
    return found


def _keys(dotted: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted))
