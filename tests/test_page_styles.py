"""The page's styles: all sizes, spacing and colours are variables of styles/tokens.css."""

import re
from collections.abc import Iterator

import pytest

from tests.test_page_source import PAGE, page_files

TOKENS = PAGE / "styles" / "tokens.css"
SIZES = ("small", "text", "title", "display")
SPACES = tuple(f"s{i}" for i in range(1, 8))
ROUNDS = ("round-s", "round", "round-l")

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DECLARATION = re.compile(r"([\w-]+)\s*:\s*([^;{}]+)[;}]")
COLOUR = re.compile(
    r"#[0-9a-fA-F]{3,8}\b|\b(?:rgba?|hsla?|hwb|lab|lch|oklab|oklch)\(|\b(?:white|black|red|green|blue|gr[ae]y)\b"
)
SPACED = re.compile(r"(?:margin|padding)(?:-\w+)*|(?:row-|column-)?gap")
# Shares of the window and of the container are layout; a length of one pixel is as wide as a border.
LENGTH = re.compile(r"(?<![\w-])(?!-?1px)-?[\d.]+(?:px|r?em|ch|ex|pt|r?lh)\b")
NUMBER = re.compile(r"(?<![\w-])[\d.]+(?:px|r?em|%|pt|[dsl]?v[wh])(?=[\s/;]|$)")


def wrong_in(prop: str, value: str) -> str | None:
    """Return the reason why a declaration breaks the rules of the design, or None."""
    if prop.startswith("--"):
        return None if not COLOUR.search(value) else "a colour outside of tokens.css"
    if COLOUR.search(value):
        return "a raw colour"
    if prop == "font-size" and not re.fullmatch(rf"var\(--(?:{'|'.join(SIZES)})\)|inherit|0", value):
        return f"a font size that is none of {', '.join(SIZES)}"
    if prop == "font" and value != "inherit" and NUMBER.search(value.partition("/")[0]) and value != ROOT_FONT:
        return f"a font size that is none of {', '.join(SIZES)}"
    if SPACED.fullmatch(prop) and LENGTH.search(value):
        return f"a length that is none of {', '.join(SPACES)}"
    if prop == "border-radius" and LENGTH.search(value.replace("999px", "")):
        return f"a radius that is none of {', '.join(ROUNDS)}"
    return None


ROOT_FONT = "93.75%/1.5 var(--sans)"
"""The font of the root: a share of the browser's own size, so that its setting counts."""


def declarations(text: str) -> Iterator[tuple[str, str]]:
    """Yield (property, value) of each declaration."""
    for prop, value in DECLARATION.findall(COMMENT.sub("", text).replace("{", "{;")):
        yield prop, " ".join(value.split())


def test_styles_use_the_variables_of_the_design() -> None:
    wrong = [
        f"{path.relative_to(PAGE)}: {prop}: {value}: {reason}"
        for path in page_files(".css")
        if path != TOKENS
        for prop, value in declarations(path.read_text(encoding="utf-8"))
        if (reason := wrong_in(prop, value))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("prop", "value"),
    [
        ("font-size", "13px"),
        ("font-size", ".9em"),
        ("font", "600 1.1rem/1.3 var(--mono)"),
        ("margin", "0 .4rem"),
        ("padding", "calc(2px + var(--s1))"),
        ("row-gap", "5px"),
        ("border-radius", "7px"),
        ("color", "#333"),
        ("background", "rgb(0 0 0 / 20%)"),
        ("--ground", "#fff"),
        ("outline-color", "red"),
    ],
)
def test_a_raw_value_is_refused(prop: str, value: str) -> None:
    assert wrong_in(prop, value)


def test_the_design_has_four_sizes_and_seven_spaces_that_grow() -> None:
    named = dict(declarations(TOKENS.read_text(encoding="utf-8")))
    for names in (SIZES, SPACES, ROUNDS):
        lengths = [float(named[f"--{name}"].removesuffix("rem").removesuffix("px")) for name in names]
        assert lengths == sorted(set(lengths))


def test_both_themes_have_the_same_colours() -> None:
    _, light, dark = COMMENT.sub("", TOKENS.read_text(encoding="utf-8")).rsplit(":root", 2)
    shared = {"--glow", "--flame", "--shade"}
    assert {prop for prop, _ in declarations(light)} - shared == {prop for prop, _ in declarations(dark)} - {"--shade"}


STYLED = re.compile(r"\b(fontSize|(?:margin|padding)\w*|gap|borderRadius)\s*:\s*[\"'`]?[\d.]+(?!\w*\s*\*)")
SCRIPT_COLOUR = re.compile(r"""["'`](?:#[0-9a-fA-F]{3,8}["'`]|(?:rgba?|hsla?)\(\s*[\d.])""")
# The initial black of a canvas; black or white, the one with more contrast; the white of a texture, tinted later.
PLAIN_COLOURS = {"core/svg.js", "core/colour.js", "views/motion/painters.js"}


def test_scripts_take_colours_and_spacing_from_the_design() -> None:
    wrong = []
    for path in page_files(".js"):
        name = path.relative_to(PAGE).as_posix()
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith(("//", "*", "/*")):
                continue
            found = [] if name in PLAIN_COLOURS else SCRIPT_COLOUR.findall(line)
            if "style" in line:
                found += STYLED.findall(line)
            wrong += [f"{name}:{i}: {text}" for text in found]
    assert not wrong


# Class names that the scripts put together, or take from a library.
MADE_CLASSES = re.compile(r"(?:is|to|of|level|dash|shows|math)-[\w-]+")


def test_every_class_of_a_style_is_in_a_script() -> None:
    words = set(
        re.findall(r"[\w-]+", " ".join(path.read_text(encoding="utf-8") for path in page_files(".js", ".html")))
    )
    unused = []
    for path in page_files(".css"):
        for selector in re.findall(r"([^{}]+)\{", COMMENT.sub("", path.read_text(encoding="utf-8"))):
            names = set(re.findall(r"\.([a-z][\w-]*)", selector))
            unused += [f"{path.name}: .{name}" for name in names - words if not MADE_CLASSES.fullmatch(name)]
    assert not unused
