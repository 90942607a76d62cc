"""Text of others on its way to a terminal, which obeys some of the signs that it is sent."""


def printable(text: object) -> str:
    """A text, or what else has one, on one line, with every sign that is not seen as itself written out.

    Escapes that colour, move, rename or hide, ends of lines, and marks that turn the direction of what follows.

    >>> print(printable("one\\ntwo \\x1b[2J \\u202e eins"))
    one\\ntwo \\x1b[2J \\u202e eins
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(text))
