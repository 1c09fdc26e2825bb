"""Hostile texts: answers that attack scorers which parse them as numbers, LaTeX, JSON, patterns or templates."""

from __future__ import annotations

from collections.abc import Iterator

_MANY = 100_000
"""Repetitions close to the longest completion that is scored."""


def hostile_texts(folder: str) -> list[str]:
    """Every text. Those that name a file name one in `folder`, where a test can look for it."""
    return [*_EXPRESSIONS, *_IN_FORMS, *_deep(), *_long(), *_NUMBERS, *_UNICODE, *_JSON, *(t % folder for t in _CODE)]


_EXPRESSIONS = (
    "9**9**9**9", "9^9^9^9", "10**10**10**10", "2**99999999999", "(((((9**9)**9)**9)**9)**9)", "99999999!", "9!!!!!!!!",
    "1/10**10**10", "1e999999999", "-1e-999999999", "0x" + "f" * 10_000, "lambda: 0", "1 if 1 else 1", "[0]*10**11",
    "'%9999999999d' % 1", "'{:>99999999999}'.format(1)", "range(10**100)", "sum(range(10**10))", "exp(exp(exp(99)))",
)  # fmt: skip

_LATEX = (
    "9^{9^{9^{9}}}", "10^{10^{10^{10}}}", "(10^{10})!", r"\binom{10^{9}}{10^{8}}", r"\sum_{i=1}^{10^{10}} i",
    r"\prod_{i=1}^{10^{9}} i", r"\int_0^{1} x^{x^{x^{x}}} dx", r"\sqrt[10^{9}]{10^{10^{10}}}", r"\frac{1}{0}",
    r"\lim_{x\to\infty} x^{x^{x}}", r"\def\a{\a\a}\a", r"\newcommand{\a}{\a\a}\a", r"\input{/etc/passwd}",
    r"x^{99999999}+1=0", r"\log_{1}(2)", r"0.\overline{9}", r"\infty-\infty", "(x+y+z+w)^{999999}",
)  # fmt: skip

_IN_FORMS = tuple(form % text for text in _LATEX for form in ("$%s$", "So the answer is \\boxed{%s}."))


def _deep() -> Iterator[str]:
    """Nested deeply, closed and unclosed."""
    for depth in (500, 20_000):
        for opening, closing in (
            ("(", ")"), ("[", "]"), ("{", "}"), ('{"a":', "}"), (r"\boxed{", "}"), (r"\sqrt{", "}"),
        ):  # fmt: skip
            kept = min(depth, 120_000 // (len(opening) + len(closing)))
            yield opening * kept + "1" + closing * kept
            yield opening * kept
    for opening, closing in ((r"\frac{1}{", "}"), (r"\left(", r"\right)"), (r"x^{", "}"), ("<a>", "</a>"), ("-(", ")")):
        yield opening * 5_000 + "1" + closing * 5_000
        yield rf"\boxed{{{opening * 2_000}1{closing * 2_000}}}"


def _long() -> Iterator[str]:
    """Runs that make matching with backtracking, or quadratic scanning, take for ages."""
    yield from (
        c * _MANY for c in ("a", " ", "\n", "\t", "-", "+", "#", "}", "\\", "%", "$", ",", ".", "0", "1", '"', "=")
    )
    yield from (
        "a" * _MANY + "!", " " * _MANY + "x", "1" * _MANY + "x", "####" * 30_000, "#### " * 20_000, "#### 1\n" * 15_000,
        r"\boxed{" * 18_000, r"\boxed{1}" * 14_000, "1," * 60_000, "1/" * 60_000, "1+" * 60_000 + "1", "(A) " * 30_000,
        "A B C D " * 15_000, "%s" * 60_000, "{}" * 60_000, "1 " * 60_000, "ab" * 60_000, "1e" * 60_000, "1_" * 60_000,
        "-" * 1_000 + "1", "answer is " * 12_000, "<answer>" * 15_000, "</answer>" * 14_000, "<think>" * 18_000,
        "1" * 1_000_000, "x" * 10_000_000, "#### " + "9" * _MANY, "0." + "3" * _MANY, "1/" + "7" * _MANY,
    )  # fmt: skip


_NUMBERS = (
    "nan", "NaN", "inf", "-inf", "Infinity", "-0", "1e400", "1e-400", "0x1p1024", "1_000", "1,2,3,4", "--1", "1..2",
    "1/0", "0/0", "1/-0", "½", "²", "Ⅷ", "٤٢", "４２", "१२", "𝟜𝟚", "四十二", "42\u0000", "\u200b42", "4\u00ad2", "42\ufeff",
)  # fmt: skip

_UNICODE = (
    "\u202e24", "\u2066\u202e" * 10_000, "4" + "\u0301" * 50_000, "\u0345" * 50_000, "\ufdfa" * 30_000, "\ud800", "\udfff\ud800",
    "\x00" * 10_000, "\x00\x01\x02\x1b[2J", "\ufffe\uffff", "\U0010ffff" * 20_000, "👨‍👩‍👧‍👦" * 5_000, "ß" * 50_000, "ŉ" * 50_000,
    "İ" * 50_000, "\u2028\u2029\x85\x0b\x0c" * 10_000, "ǅ" * 50_000, "a\u0300" * 40_000, "한" * 40_000, "\ud83d\ude00",
)  # fmt: skip

_JSON = (
    '{"a":' * 20_000 + "1" + "}" * 20_000, "[" * 60_000 + "]" * 60_000, '{"answer": 1e400}', '{"answer": NaN}', '"\\ud800"',
    '{"answer": ' + "9" * _MANY + "}", '{"a":1,' * 15_000, '{"__class__": {"__mro__": []}}', '{"__proto__": 1}', '"\\u00',
    "{" + ",".join(f'"k{n}":{n}' for n in range(9_000)) + "}", '["' + "\\n" * 50_000 + '"]', '{"$ref": "file:///etc/passwd"}',
    '{"$ref": "#"}', '{"answer": "42", "answer": "43"}', "null", "true", "[]", '""', "{}",
)  # fmt: skip

_CODE = (
    "__import__('os').system('touch %s/made')",
    'open("%s/made", "w")',
    "eval(compile('open(\"%s/made\", \"w\")', '', 'exec'))",
    '!!python/object/apply:os.system ["touch %s/made"]',
    "cos\nsystem\n(S'touch %s/made'\ntR.",
    r"\write18{touch %s/made}",
    r"\immediate\write18{touch %s/made}",
    "{{ self.__init__.__globals__['os'].system('touch %s/made') }}",
    "{0.__class__.__init__.__globals__}%.0s",
    "${jndi:ldap://127.0.0.1/%s}",
    "$(touch %s/made)",
    "`touch %s/made`",
    "; touch %s/made #",
    "=cmd|'/c touch %s/made'!A1",
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file://%s/key">]><a>&b;</a>',
    "(1).__class__.__base__.__subclasses__()%.0s",
    "Symbol('x').__class__.__init__.__globals__['__builtins__']['open']('%s/made','w')",
    'sympify(\'__import__("os").mkdir("%s/made")\')',
)
