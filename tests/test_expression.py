"""The language of names with keywords: what it reads, what it refuses, and where it points."""

from __future__ import annotations

import keyword
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.expression import Call, load_object, options, parse, resolve, text


def refusal(function: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(UnseenError) as caught:
        function(*arguments)
    return str(caught.value)


names = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)
keywords = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text("ab-_'\"\\ \n+#(){}")
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.lists(v, max_size=3).map(tuple), max_leaves=6
)
calls = st.builds(
    Call,
    names.filter(lambda n: not keyword.iskeyword(n)),
    st.dictionaries(keywords.filter(lambda k: not keyword.iskeyword(k)), values, max_size=3),
)


class TestParse:
    def test_the_examples_of_the_documentation(self) -> None:
        assert parse("fedprox(mu=0.1)+ga(step=0.05)") == (
            Call("fedprox", {"mu": 0.1}),
            Call("ga", {"step": 0.05}),
        )
        assert parse("mlp(widths=[64, 64])") == (Call("mlp", {"widths": [64, 64]}),)
        assert parse(" sgd( lr=0.1,momentum = 0.9 ) ") == (
            Call("sgd", {"lr": 0.1, "momentum": 0.9}),
        )
        assert parse("fedavg") == parse("fedavg()") == (Call("fedavg"),)

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("-3", -3),
            ("1e-3", 0.001),
            ("-1.5e-3", -0.0015),
            ("1_000", 1000),
            ("True", True),
            ("None", None),
            ("'a-b + c'", "a-b + c"),
            ('"it\'s-a"', "it's-a"),
            ("'\\'x-y'", "'x-y"),
            ("'''a'b-c'''", "a'b-c"),
            ("[1, -2.0, 'x-y', [None]]", [1, -2.0, "x-y", [None]]),
            ("(64,)", (64,)),
            ("()", ()),
        ],
    )
    def test_values(self, written: str, value: object) -> None:
        (call,) = parse(f"part(option={written})")
        assert call.arguments == {"option": value}
        assert type(call.arguments["option"]) is type(value)

    def test_slashes_are_part_of_a_name(self) -> None:
        assert parse("sites/digit-makers") == (Call("sites/digit-makers"),)
        (call,) = parse("Sites/pm25(task='a/b')")
        assert call == Call("sites/pm25", {"task": "a/b"}) and parse(text((call,))) == (call,)
        for wrong in ("sites/", "/vowel", "sites//vowel", "sites/ vowel", "sites/-vowel"):
            with pytest.raises(UnseenError):
                parse(wrong)

    def test_dashes_underscores_and_case_are_one_name(self) -> None:
        assert parse("MNIST_CNN+fed-sgd+resnet-18(freeze-bn=True)") == (
            Call("mnist-cnn"),
            Call("fed-sgd"),
            Call("resnet-18", {"freeze_bn": True}),
        )
        assert parse("Fed_SGD") == parse("fed-sgd")

    def test_parentheses_around_sums_change_nothing(self) -> None:
        assert [c.name for c in parse("(a+b)+(c+d)")] == ["a", "b", "c", "d"]

    def test_a_call_pickles(self) -> None:
        call = Call("mlp", {"widths": [64, 64]})
        assert pickle.loads(pickle.dumps(call)) == call

    def test_a_call_keeps_its_own_arguments(self) -> None:
        mine = {"mu": 0.1}
        call = Call("fedprox", mine)
        mine["mu"] = 7.0
        assert call.arguments == {"mu": 0.1}


class TestText:
    @given(st.lists(calls, min_size=1, max_size=4).map(tuple))
    def test_text_reads_back_as_the_same_calls(self, parts: tuple[Call, ...]) -> None:
        assert parse(text(parts)) == parts
        # == takes 1, 1.0 and True for the same, and forgets the order of options: repr does not.
        assert repr(parse(text(parts))) == repr(parts)

    @given(st.lists(calls, min_size=1, max_size=3).map(tuple))
    def test_the_canonical_text_is_a_fixed_point(self, parts: tuple[Call, ...]) -> None:
        assert text(parse(text(parts))) == text(parts)

    def test_canonical_form(self) -> None:
        assert text(parse("GA( step = 5e-2,every=2 ) +b_c()")) == "ga(step=0.05, every=2)+b-c"


class TestMalformed:
    @given(st.text() | st.text("abf-_+()[]=,.'\"1e* \n\\"))
    @settings(max_examples=300)
    def test_any_text_is_read_or_refused_politely(self, source: str) -> None:
        try:
            parts = parse(source)
        except UnseenError:
            return
        assert parse(text(parts)) == parts

    @pytest.mark.parametrize(
        ("source", "place"),
        [
            ("fedprox(0.1)", 8),
            ("fedprox(mu=)", 11),
            ("fedprox(mu=0.1", 7),
            ("fedavg+", 7),
            ("fedavg+3", 7),
            ("fedprox(mu=0.1, mu=0.2)", 16),
            ("ppdg(order=fixed)", 11),
            ("part(s='é', t=oops)", 14),
            ("fed-avg(a-b=x-y)", 12),
            ("fedavg - ga", 0),
            ("f(**options)", 4),
            ("f(a={1: 2})", 4),
            ("f(a=1j)", 4),
            ("f(a=1e999)", 4),
            ("f(a=b'x')", 4),
            ("f(a=f'{1}')", 4),
            ("f(a=...)", 4),
            ("f(a='C:\\data')", 4),
            ("f(a=1+2)", 4),
            ("f(a=[1, [2, x]])", 12),
            ("f(a=1)(b=2)", 0),
            ("module.name", 0),
            ("f(a=open('x'))", 4),
            ("[f for f in (1,)]", 0),
        ],
    )
    def test_the_caret_stands_under_the_mistake(self, source: str, place: int) -> None:
        message = refusal(parse, source)
        lines = message.splitlines()
        assert lines[1] == "    " + source
        assert lines[2] == "    " + " " * place + "^"
        assert f"column {place + 1}:" in lines[0]
        assert lines[3] == "Write, for example, fedprox(mu=0.1)+ga(step=0.05)."

    def test_the_line_in_question_of_several(self) -> None:
        lines = refusal(parse, "f(\n  a=1,\n  b=oops)").splitlines()
        assert "line 3, column 5" in lines[0]
        assert lines[1:3] == ["      b=oops)", "        ^"]

    def test_nothing_at_all(self) -> None:
        assert "found nothing" in refusal(parse, "  ")

    def test_a_positional_argument_is_shown_the_keyword_form(self) -> None:
        assert "fedprox(option=0.1)" in refusal(parse, "fedprox(0.1)")

    def test_a_bare_word_is_shown_in_quotes(self) -> None:
        assert "'a-word'" in refusal(parse, "part(option=a-word)")
        assert "write True" in refusal(parse, "part(option=true)")

    @pytest.mark.parametrize("source", ["a" + "+a" * 100_000, "f(a=" + "[" * 10_000, "\x00"])
    def test_absurd_input(self, source: str) -> None:
        assert "cannot read the expression" in refusal(parse, source)

    @pytest.mark.parametrize("name", ["", "lambda", "2fast", "a--b", "a-", "-a", "é", "a b", "a.b"])
    def test_impossible_names(self, name: str) -> None:
        assert repr(name) in refusal(Call, name)

    @pytest.mark.parametrize("option", ["", "in", "a-b", "é", "1a"])
    def test_impossible_options(self, option: str) -> None:
        assert repr(option) in refusal(Call, "part", {option: 1})

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}, 1j, b"", [object()]])
    def test_impossible_values(self, value: object) -> None:
        assert "'option'" in refusal(Call, "part", {"option": value})


@dataclass(frozen=True)
class Prox:
    """A part with one option that must be set and one that may be."""

    mu: float
    base: str = "raw"


def net(shape: tuple[int, ...], outputs: int, *, widths: tuple[int, ...] = (64,)) -> object:
    return shape, outputs, widths


def bare() -> str:
    return "bare"


TABLE: dict[str, Callable[..., object]] = {"fed_prox": Prox, "Net": net, "bare": bare}


def find(source: str, given: tuple[object, ...] = ()) -> object:
    return resolve("part", parse(source)[0], TABLE, given)


class TestResolve:
    def test_finds_by_name_whatever_its_dashes_and_case(self) -> None:
        assert find("fed-prox(mu=0.1)") == find("FED_PROX(mu=0.1)") == Prox(0.1)
        assert find("bare") == "bare"

    def test_given_arguments_come_first_and_are_no_options(self) -> None:
        assert find("net(widths=(3,))", ((1, 28, 28), 10)) == ((1, 28, 28), 10, (3,))
        message = refusal(find, "net(outputs=3)", ((1, 28, 28), 10))
        assert "no option 'outputs'" in message
        assert "widths=(64,)" in message

    def test_options_of_functions_and_classes(self) -> None:
        assert list(options(net)) == ["widths"]
        assert list(options(Prox)) == ["mu", "base"]
        assert list(options(Prox, skip=1)) == ["base"]

    def test_unknown_name(self) -> None:
        message = refusal(find, "fed-porx")
        assert "unknown part 'fed-porx'" in message
        assert "'fed_prox'" in message
        assert "Known: Net, bare, fed_prox" in message

    def test_unknown_option_lists_the_options_with_defaults(self) -> None:
        message = refusal(find, "fed-prox(mu=1, bass='raw')")
        assert message == (
            "part 'fed-prox' has no option 'bass'; did you mean 'base'? "
            "Its options: mu, base='raw'."
        )
        assert "It has no options." in refusal(find, "bare(x=1)")

    def test_a_required_option_is_named(self) -> None:
        message = refusal(find, "fed-prox(base='raw')")
        assert "needs mu" in message
        assert "fed-prox(mu=...)" in message

    def test_errors_of_the_part_itself_pass_unchanged(self) -> None:
        def fails(*, x: int = 0) -> None:
            raise TypeError("inside")

        with pytest.raises(TypeError, match="inside"):
            resolve("part", Call("fails"), {"fails": fails})


class TestLoadObject:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        (tmp_path / "my_models_here.py").write_text("class SmallNet:\n    pass\n")
        (tmp_path / "my_broken_here.py").write_text("import a_module_that_nobody_has\n")
        (tmp_path / "my_typo_here.py").write_text("1 +\n")
        (tmp_path / "my_package_here").mkdir()
        nets = tmp_path / "my_package_here" / "nets.py"
        nets.write_text("from my_models_here import SmallNet\n")
        before = set(sys.modules)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        yield tmp_path
        for name in set(sys.modules) - before:
            del sys.modules[name]

    def test_from_the_current_directory(self, folder: Path) -> None:
        found = load_object("my_models_here:SmallNet")
        assert isinstance(found, type)
        assert found.__name__ == "SmallNet"
        assert load_object("my_package_here.nets:SmallNet") is found

    def test_from_an_installed_package(self) -> None:
        assert load_object("random:Random") is random.Random

    def test_unknown_module(self, folder: Path) -> None:
        message = refusal(load_object, "my_modles_here:SmallNet")
        assert "no module 'my_modles_here'" in message
        assert str(folder) in message
        assert "no module 'my_package_here.net'" in refusal(load_object, "my_package_here.net:X")

    def test_unknown_name_has_the_nearest(self, folder: Path) -> None:
        assert "did you mean 'SmallNet'?" in refusal(load_object, "my_models_here:SmalNet")

    def test_a_module_that_fails_is_told_from_one_that_is_missing(self, folder: Path) -> None:
        message = refusal(load_object, "my_broken_here:Net")
        assert "importing 'my_broken_here' failed" in message
        assert "a_module_that_nobody_has" in message
        assert "SyntaxError" in refusal(load_object, "my_typo_here:Net")

    @pytest.mark.parametrize(
        "path", ["", "module", ":Net", "module:", "a:b:c", "my_models.py:Net", "./x:Net", "a..b:c"]
    )
    def test_malformed(self, path: str) -> None:
        message = refusal(load_object, path)
        assert "my_models:SmallNet" in message
        assert repr(path) in message
