"""Templates over facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurun.launch import facts_for
from gpurun.load import PORT_TOKEN
from gpurun.template import FACTS, TemplateError, is_template, render, render_tree, unknown_facts

HOST = {
    "host": {"name": "h", "cpus": 8, "commands": {"llama-server": None}},
    "gpus": [{"index": 0, "name": "A", "memory_total_mib": 1000}, {"index": 1, "name": "B", "memory_total_mib": 2000}],
}
CONTEXT = facts_for(HOST, {"path": "/m", "name": "m"}, {"server.flags.x": 1}, None)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{ host.cpus }}", "8"),
        ("{{ [host.cpus, 4] | min }}", "4"),
        ("{{ host.cpus // 2 }}x", "4x"),
        ("{{ gpus | length }}", "2"),
        ("{{ gpus | map(attribute='memory_total_mib') | min }}", "1000"),
        ("{% for g in gpus %}{{ g.index }},{% endfor %}", "0,1,"),
        ("{{ axes['server.flags.x'] }}", "1"),
        ("{{ port }}", PORT_TOKEN),
        ("{{ model.path }}/{{ model.name }}", "/m/m"),
        ("{{ '{{' }} {% raw %}{% x %}{% endraw %}", "{{ {% x %}"),
        ("{{ {'a': 'ü', 'b': [1]} | tojson }}", '{"a":"ü","b":[1]}'),
        ("{{ host.name }}\n", "h\n"),
    ],
)
def test_rendering(text: str, result: str) -> None:
    assert render(text, CONTEXT) == result


def test_a_given_port_is_a_number() -> None:
    assert render("{{ port + 1 }}", facts_for(HOST, {}, {}, 8000)) == "8001"


@pytest.mark.parametrize(
    "text",
    [
        "{{ nothing }}",
        "{{ host.nothing }}",
        "{{ gpus[7].name }}",
        "{{ gpus[0].nothing }}",
        "{{ host.cpus / 0 }}",
        "{{ host.name + 1 }}",
        "{{ host.cpus",
        "{% if %}",
        "{{ host.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ host.clear() }}",
        "{{ lipsum() }}",
        "{% include '/etc/passwd' %}",
        "{{ x | nofilter }}",
    ],
)
def test_what_cannot_be_filled_in_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        render(text, CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 1 | nofilter }}",
        "{{ 10 ** 5000 }}",
        "{{ '%99999999999999d' % 1 }}",
        "{{ '%099999999d' % 1 }}",
        "{{ 'x'.center(10 ** 8) }}",
        "x" * 131072,
        "{{ 'x' * 10 ** 17 }}",
        "{{ 'x' * 131072 }}",
        "{{ '\\ud800' }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{{ range(1000) | random }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in 'x' * 99999 recursive %}{{ loop('x' * 99999) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(64) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' * 10 ** 9 }}",
    ],
)
def test_hostile_templates_are_the_campaigns_mistake_and_no_bug(text: str) -> None:
    with pytest.raises(TemplateError):
        unknown_facts(text)
        render(text, CONTEXT)


def test_each_text_has_its_own_share_of_loops() -> None:
    text = "{% for i in range(15000) %}{% endfor %}{{ 2 ** 0.5 > 1 }} {{ 3 * 'ab' }} {{ 1.5 * 2 }}"
    assert [render(text, CONTEXT) for _ in range(3)] == ["True ababab 3.0"] * 3


@given(st.text())
def test_text_without_braces_arrives_unchanged(text: str) -> None:
    if not is_template(text):
        assert render(text, CONTEXT) == text


def test_templates_in_lists_and_maps() -> None:
    tree = {"{{ host.cpus }}": ["{{ host.cpus }}", 1, None, {"a": "{{ host.name }}"}]}
    assert render_tree(tree, CONTEXT) == {"{{ host.cpus }}": ["8", 1, None, {"a": "h"}]}


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("{{ host.cpus + gpus|length }}", []),
        ("{{ hst.cpus }}", ["hst"]),
        ("{{ host.cpu }} {{ host['nmae'] }}", ["host.cpu", "host.nmae"]),
        ("{{ model.pth }}", ["model.pth"]),
        ("{% for g in gpus %}{{ g.anything }}{% endfor %}", []),
        ("{% set x = 1 %}{{ x + range(3)|sum }}", []),
        ("{{ engine.dir }}", ["engine"]),
        ("no template: hst.cpus", []),
    ],
)
def test_unknown_facts_are_found_without_a_host(text: str, unknown: list[str]) -> None:
    assert unknown_facts(text) == unknown


def test_the_declared_facts_are_what_the_facts_module_gives() -> None:
    from ansible.module_utils import gpurun_host

    found = gpurun_host.collect("/tmp/.gpurun")
    assert set(FACTS["host"] or ()) <= set(found)
