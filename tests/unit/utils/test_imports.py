# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import functools
import sys
import traceback

import pytest

from relax.utils.errors import ConfigError
from relax.utils.imports import check_callable, load_callable, load_object


@pytest.fixture
def user_package(tmp_path, monkeypatch):
    folder = tmp_path / "userpkg_imports"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "ok.py").write_text("def f(args, sample, **kwargs):\n    return 1.0\n")
    (folder / "broken.py").write_text("value = 1 / 0\n")
    (folder / "needs.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "userpkg_imports"
    for name in [n for n in sys.modules if n.startswith("userpkg_imports")]:
        del sys.modules[name]


def test_dot_and_colon_paths_load(user_package):
    assert load_object(f"{user_package}.ok.f", flag="--x")(None, None) == 1.0
    assert load_object(f"{user_package}.ok:f", flag="--x")(None, None) == 1.0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("userpkg_imports.nomod.f", "no module 'userpkg_imports.nomod'"),
        ("nopkg_at_all.mod.f", "no module 'nopkg_at_all'"),
        ("userpkg_imports.ok.g", "userpkg_imports.ok has no 'g'; it has ['f']"),
        ("f", "not an import path"),
        ("", "not an import path"),
        (".f", "not an import path"),
        ("userpkg_imports.needs.f", "imports 'a_package_nobody_has', which is not installed"),
        ("userpkg_imports.broken.f", "ZeroDivisionError: division by zero"),
    ],
)
def test_every_failure_names_the_flag_and_what_is_wrong(user_package, path, words):
    with pytest.raises(ConfigError) as caught:
        load_object(path, flag="--custom-rm-path")
    assert "--custom-rm-path" in str(caught.value) and words in str(caught.value)


def test_a_broken_module_keeps_its_own_traceback(user_package):
    with pytest.raises(ConfigError) as caught:
        load_object(f"{user_package}.broken.f", flag="--x")
    assert "value = 1 / 0" in "".join(traceback.format_exception(caught.value))


def test_signature_is_checked_at_load(user_package):
    load_callable(f"{user_package}.ok.f", flag="--x", positional=("args", "sample"))
    with pytest.raises(ConfigError, match=r"--x='userpkg_imports.ok.f' is called as \(args\), but takes"):
        load_callable(f"{user_package}.ok.f", flag="--x", positional=("args",))


def test_partials_and_objects_pass_and_values_do_not():
    check_callable(functools.partial(lambda a, b, c: None, 1), flag="--x", positional=("b", "c"))
    check_callable(max, flag="--x", positional=("a", "b"))
    with pytest.raises(ConfigError, match="is a int, not a function"):
        check_callable(3, flag="--x", positional=("a",))
