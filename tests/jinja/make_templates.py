#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/jinja/templates.jsonl: small templates, one a feature, with what Jinja2 gives in the environment of
transformers (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, its tojson), frozen at
2024-07-26 12:34:56. Needs Jinja2 3.1.6."""
import datetime
import json
import pathlib
import random

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "s": "Hello, Wörld", "t": "  a b  c ", "n": 7, "f": 2.5, "yes": True, "no": False, "nothing": None,
    "l": [3, 1, 2], "names": ["bob", "Al", "carl", "al"], "e": [], "emoji": "日本語😀x",
    "d": {"b": 1, "a": [1, 2.0, None, True], "items": "an item", "Z": "it's"},
    "rows": [{"k": "x", "v": 1, "in": {"deep": 5}}, {"k": "y", "v": 2}, {"k": "x", "v": 3}],
    "quotes": "a'b\"c\\d\n\t\u0001\u00e9\u200b<&>",
}
TEMPLATES = r"""
a {% if yes %}  b
  {% endif %}  c
  {# gone #}  x
{%- if yes -%}  y  {%- endif -%}  z
   {%+ if yes %} kept {% endif +%} 
x{{- s -}}   y
{% raw %}{{ no }}{% if %}{% endraw %}!
{%- raw -%}  {{ no }}  {%- endraw -%}  !
{{ '}}' }}{{ "{%" }}{{ {'a': {'b': 1}} }}
{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in e %}never{% else %}empty{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.length }}{{ x }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}
{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}
{% for c in s %}{{ c }}.{% endfor %}{% for x in missing %}{% endfor %}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + 1 %}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = (1,) %}{{ c }}{% set z = 1, 2 %}{{ z }}
{% set x %}in {{ s }}{% endset %}{{ x|upper }}{% set y | upper | replace('A', 'b') %}a{% endset %}{{ y }}
{% if no %}1{% elif nothing %}2{% elif e %}3{% else %}4{% endif %}
{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}|{{ m(1, 3, 4, 5, z=6) }}|{{ m(b=1, a=0) }}
{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m('x')|upper }}{{ m.name }}
{% macro f() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ f() }}
{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m('q') %}{{ y }}{{ s }}{% endcall %}
{% macro fact(n) %}{% if n < 2 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}
{% filter upper|replace('L', '1') %}{{ s }}{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% generation %}said{% endgeneration %}
{% print s, n %}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1e16 }} {{ 1.0e-5 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1e100 }} {{ 100000.0 }} {{ 123456789012345680.0 }} {{ 0.0001 }}
{{ 'a' + 'b' }}{{ 'a' * 3 }}{{ [1] + [2] }}{{ [1] * 2 }}{{ (1, 2) + (3,) }}{{ 1 ~ 'x' ~ none ~ 2.0 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }} {{ none == none }} {{ {'a': 1} == {'a': 1.0} }}
{{ 1 in l }} {{ 9 not in l }} {{ 'b' in d }} {{ 'llo' in s }} {{ not yes }} {{ not 1 in l }}
{{ yes and 'x' }} {{ no or 'y' }} {{ '' or e or 'z' }} {{ 0 and 1 }} {{ 'a' if yes }} {{ 'a' if no }} {{ 'a' if no else 'b' if no else 'c' }}
{{ [1, 'a', none, true, 1.5, (1,), (), {'k': 'v'}] }} {{ {} }} {{ quotes }} {{ [quotes] }} {{ ["it's"] }} {{ ['\x7f', '\u2028', '\xa0', '\xad'] }}
{{ 'a' 'b' "c" }} {{ 'a\tb\\c\x41\u00e9\101\q' }}
{{ l[0] }}{{ l[-1] }}{{ l[5] }}{{ l[1:] }}{{ l[:2] }}{{ l[::-1] }}{{ l[-2:] }}{{ l[:-1] }}{{ l[::2] }}{{ l[5:] }}{{ l[2:0:-1] }}{{ l[:] }}
{{ emoji[0] }}{{ emoji[-2] }}{{ emoji[1:3] }}{{ emoji[::-1] }}{{ emoji|length }}{{ emoji[10:] }}{{ emoji[-100:2] }}{{ emoji[::2] }}
{{ d.b }}{{ d['b'] }}{{ d.items is callable }}{{ d['items'] }}{{ d.missing }}{{ d.a.0 }}{{ d.get('x') }}{{ d.get('x', 5) }}{{ d.get('b') }}
{{ d.keys()|list }}{{ d.values()|list }}{{ d.items() }}{{ d.keys() }}{{ d|items|list }}
{{ missing }}{{ missing is defined }}{{ missing|default('x') }}{{ ''|default('y', true) }}{{ none|d('z') }}{{ missing or 'o' }}{{ missing == missing2 }}{{ missing|length }}{{ missing|list }}
{{ missing.x }}
{{ missing + 1 }}
{{ nothing.x.y }}
{{ missing() }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [] + 'a' }}
{{ 1 < 'a' }}
{{ nothing|length }}
{% for x in nothing %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% set s.x = 1 %}
{{ [].append(1) }}
{{ d.pop('b') }}
{{ raise_exception('Because ' + s) }}
{{ {[1]: 2} }}
{{ missing|tojson }}
{{ (l|map('string'))|tojson }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ quotes|tojson }} {{ [quotes, emoji]|tojson(ensure_ascii=true) }}
{{ d|tojson(separators=(',', ':'), sort_keys=true) }} {{ [1, [], {}, ()]|tojson(indent=1) }} {{ [1]|tojson(indent='--') }} {{ {1: 2, none: 3, true: 4, 1.5: 2}|tojson }}
{{ (1e400)|tojson }} {{ [1.0, 1e-7, -0.0, 1e22]|tojson }}
{{ t|trim }}|{{ t.strip() }}|{{ t.lstrip() }}|{{ t.rstrip() }}|{{ 'xxaxx'|trim('x') }}|{{ 'xyaxy'.strip('yx') }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}
{{ t.split() }}{{ t.split(' ') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a  b c '.split(none, 1) }}{{ ' a b  c '.rsplit(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a,b'.split(',', maxsplit=0) }}
{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('x') }}{{ 'abc'.rpartition('x') }}{{ 'a\nb\r\nc'.splitlines() }}
{{ s.upper() }}{{ s.lower() }}{{ s|capitalize }}{{ 'hello wORLD it\'s'|title }}{{ 'hello wORLD it\'s'.title() }}{{ 'ß'.upper() }}{{ 'ÀÉÿ'.lower() }}{{ 'привет'|upper }}{{ 'ΑΒΓ'.lower() }}{{ 'aBC dE'.capitalize() }}
{{ s.startswith('Hell') }}{{ s.endswith(('x', 'ld')) }}{{ s.startswith('x') }}{{ s.find('W') }}{{ s.rfind('l') }}{{ s.find('zz') }}{{ s.count('l') }}{{ s.index('ö') }}
{{ s.replace('l', 'L') }}{{ s.replace('l', 'L', 1) }}{{ s|replace('l', '') }}{{ 'ab'.replace('', '-') }}{{ s.removeprefix('Hel') }}{{ s.removesuffix('ld') }}
{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ ' '.isspace() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}{{ ''.isdigit() }}{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3) }}
{{ '-'.join(['a', 'b']) }}{{ '{} {1}'.format if no }}{{ '{}-{}'.format('a', 1) }}{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{x:>5}|{y:.2f}|{z:05d}|{w:^7}|{{}}'.format(x='a', y=1.239, z=42, w='mid') }}
{{ '%s-%d-%5.2f-%x-%r-%%' % ('a', 5, 1.234, 255, 'q') }}{{ '%(a)s' % {'a': 1} }}{{ '%s' % s }}{{ '%05d|%-5s|%+d' % (42, 'a', 3) }}{{ '%s %s'|format('a', 2) }}
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ l|length }}{{ l|first }}{{ l|last }}{{ l|sort }}{{ l|sort(reverse=true) }}{{ names|sort }}{{ names|sort(case_sensitive=true) }}{{ names|unique|list }}{{ l|min }}{{ l|max }}{{ l|sum }}{{ l|reverse|list }}{{ 'abc'|reverse }}{{ e|first }}
{{ rows|map(attribute='k')|join(',') }}{{ rows|map(attribute='in.deep', default=0)|list }}{{ rows|selectattr('k', 'equalto', 'x')|map(attribute='v')|list }}{{ rows|rejectattr('k', 'eq', 'x')|list }}{{ rows|selectattr('in')|list|length }}{{ rows|selectattr('in', 'defined')|list|length }}{{ rows|sort(attribute='v', reverse=true)|map(attribute='v')|list }}{{ rows|sum(attribute='v') }}{{ rows|join('-', attribute='k') }}
{{ l|select('odd')|list }}{{ l|reject('gt', 1)|list }}{{ names|map('upper')|list }}{{ names|map('replace', 'a', 'b')|join }}{{ [0, 1, '', none]|select|list }}{{ nothing|map('upper')|list }}{{ nothing|selectattr('x')|list }}
{{ d|dictsort }}{{ {'b': 1, 'A': 3}|dictsort(by='value', reverse=true) }}{{ {'b': 1, 'A': 3}|dictsort(true) }}{{ [1, 2, 3, 4, 5]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 'x')|list }}
{{ '42'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ '4.7'|int }}{{ 4.7|int }}{{ 'ff'|int(0, 16) }}{{ '2.5'|float }}{{ 'x'|float }}{{ ' 7 '|int }}{{ none|int }}{{ true|int }}
{{ 2.5|round }}{{ 3.14159|round(2) }}{{ 2.1|round(0, 'ceil') }}{{ 2.9|round(method='floor') }}{{ -3|abs }}{{ 5|round }}{{ 1.5|string }}{{ 'a b c'|wordcount }}{{ 'ab'|center(6) }}|
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(1, blank=true) }}|{{ 'a\nb'|indent('>>') }}
{{ rows.0.v }}{{ [[1, [2, 3]]].0.1.0 }}{{ d.a.1 }}{{ 1.5 }}{{ 0.5e1 }}{{ 00 }}{{ 1_0.2_5 }}
{{ 01 }}
{{ d.a.0e1 }}
{{ lipsum is defined }}{{ lipsum is callable }}{{ cycler is defined }}{{ nothere is defined }}
{{ [none, none]|sort }}{{ [{}, {}]|sort }}{{ [[2, none], [1, none]]|sort }}{{ rows|sort(attribute='k')|map(attribute='v')|list }}
{{ [none, 1]|sort }}
{{ [none, none]|min }}
{{ {'a': none, 'b': none}|dictsort(by='value') }}
{{ 'straße ŉ ﬁnﬂ İI ıi ǅ'.upper() }} {{ 'STRASSE ẞ İ ΑΣ ΣΑΣ. ΑΣ’Α Σ'.lower() }} {{ 'ßa ǆb ﬁc ΑΣ ʼnO\'n'.title() }} {{ 'ǆABΣ'.capitalize() }} {{ 'ßx-ﬁ y z ǆ(ΑΣ'|title }} {{ 'ﬁX'|capitalize }}
{{ 'Ⓐⓐ'.upper() }}{{ 'ꭰᏸ'.upper() }}{{ 'Ა'.lower() }}{{ 'ა'.title() }}{{ '𐐨ᾈᾳ'.upper() }}{{ 'ΐ'.upper()|length }} {{ 'ǅ'.isupper() }}{{ 'ªB'.isupper() }}{{ 'ª'.islower() }}{{ 'Ab Cd'.istitle() }}{{ 'AB'.istitle() }}{{ '1'.istitle() }}
{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isdigit() }}{{ '½'.isnumeric() }}{{ '一'.isnumeric() }}{{ '٣'.isdecimal() }}{{ ''.isspace() }}{{ 'a²'.isalnum() }}
{{ '%.3d|%5.1f|%-6s|%+d|% d|%#x|%#o|%05d|%-05d|%5.2s|%c|%c|%i|%u|%e|%G|%g' % (7, 2.25, 'ab', 3, 4, 255, 8, -42, 42, 'xyz', 'q', 233, 2.9, true, 12345.678, 1e-10, 100000.0) }}
{{ '%*d|%.*f|%-*s|%(a)s|%%' % (5, 42, 2, 3.14159, 4, 'x') if no else '%*d|%.*f|%-*s|' % (5, 42, 2, 3.14159, 4, 'x') }}{{ '%(a)s-%(b)05.1f' % {'a': [1], 'b': 2} }}{{ '%a %r %ld' % ('é', 'é', 5) }}{{ '%s' % [1, 2] }}{{ 'x' % [1] }}
{{ '%d' % 'a' }}
{{ '%x' % 1.5 }}
{{ '%y' % 1 }}
{{ '{:,} {:_} {:010,} {:+} {: } {:#x} {:#b} {:b} {:o} {:c} {:>8} {:<8}| {:^8}| {:*^9} {:=+8} {:08.2f} {:.3} {:e} {:%} {:.1%} {:g} {:n}'.format(1234567, 1234567, 1234, 5, 5, 255, 5, 5, 8, 233, 'a', 'b', 'c', 'd', 42, -3.14159, 2.71828, 12345.678, 0.25, 0.125, 1e20, 42) }}
{{ '{0.v}{0[k]}{a[1]}{b!r:>6}{b!s}{c!a}{d:{e}}{d:>{w}.{p}f}{{}}'.format(rows[0], a=[1, 2], b='x', c='é', d=2.5, e='6.1f', w=8, p=2) }}{{ '{:5}|{:.2}|{}|{:d}'.format('abc', 'abc', none, true) }}{{ '{:.0f}{:.10g}{:5.1e}'.format(2.5, 1/3, 0.00012) }}
{{ '{} {0}'.format(1, 2) }}
{{ '{:d}'.format('a') }}
{{ '{:5}'.format(none) }}
{{ '{:,s}'.format('a') }}
{{ '{:.2d}'.format(3) }}
{{ '{0.x.y}'.format({'x': 1}) }}
{{ '%s %d'|format('a', 2) }}{{ '%(x)s'|format(x=5) }}{{ '%.2f'|format(2.005) }}
{{ '%s'|format('a', x=2) }}
{{ '<b>'|e }}{{ '<b>'|safe }}{{ ('<b>'|safe) + '<i>' }}{{ '<b>'|safe ~ '<i>' }}{{ ('<b>'|e)|e }}{{ '<a>' + ('x'|safe) }}
{{ s is string }}{{ n is number }}{{ n is integer }}{{ f is float }}{{ yes is boolean }}{{ yes is number }}{{ d is mapping }}{{ l is sequence }}{{ d is sequence }}{{ s is iterable }}{{ n is iterable }}{{ nothing is none }}{{ yes is true }}{{ 1 is true }}{{ no is false }}{{ missing is undefined }}{{ range is callable }}{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 1 is in l }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 2 is gt 1 }}{{ 'a' is lower }}{{ 'A' is upper }}{{ n is not none }}{{ not s is string }}{{ n is sameas n }}{{ 'upper' is filter }}{{ missing is sequence }}{{ missing is iterable }}
{{ range(3)|list }}{{ range(1, 7, 2)|list }}{{ range(5, 0, -2)|list }}{{ range(3) }}{{ range(4)[1] }}{{ dict(a=1, b=2) }}{{ dict([('a', 1)], b=3) }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}{{ j() }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%B %d, %Y') }} {{ strftime_now('%A %a %H:%M:%S %I %p %j %y %U %W %w %u %%') }}
{{ [1, 2]|join(', ') }}{{ (1, 'a')|join }}{{ d|length }}{{ d|list }}{{ d|join('+') }}{{ s|list }}{{ e|join('x') }}{{ [none, true]|join(' ') }}
{{ {'a': 1, 'a': 2} }}{{ {1: 'a', 1.0: 'b', true: 'c'} }}{{ {'x': 1}.x }}{{ {(1, 2): 3}[(1, 2)] }}
{{ namespace(a=1) }}
{{ s|nofilter }}
{% if no %}{{ s|nofilter }}{% endif %}ok
{% if yes %}{{ 1|from_json }}{% endif %}
{{ [x for x in l] }}
{{ 1 if }}
{% for x in l %}
  {{ x }}
  {% if x == 1 %}
  one
  {% endif %}
{% endfor %}
{{ 'é' < 'z' }}{{ 'a' ~ missing ~ 'b' }}{{ (missing,) }}{{ l.index(1) }}{{ l.count(2) }}{{ l.copy() }}{{ n.x }}
{{ loop }}{{ caller is defined }}{{ self is defined and false }}
{% for g in rows|groupby('k') %}{{ g.grouper }}{{ g.list|length }}{{ g[0] }}{{ g[1]|map(attribute='v')|list }};{% endfor %}{% for k, items in rows|groupby(attribute='k') %}{{ k }}{{ items|length }}{% endfor %}{{ (rows|groupby('k'))[0].list[1].v }}
{{ rows|groupby('in.deep', default=0)|map('first')|list }}{{ [{'n': 'b'}, {'n': 'A'}, {'n': 'B'}]|groupby('n')|map(attribute='grouper')|list }}{{ [{'n': 'b'}, {'n': 'A'}, {'n': 'B'}]|groupby('n', case_sensitive=true)|map(attribute='0')|list }}{{ [(1, 'a'), (0, 'b'), (1, 'c')]|groupby(0) }}{{ e|groupby('x') }}
{{ rows|groupby('in.deep') }}
{% set g = (rows|groupby('k'))|first %}{{ g is string }}{{ g is iterable }}{{ g|length }}{{ g.missing is undefined }}{{ g == ('x', g.list) }}{{ g|tojson }}{{ g.index('x') }}
{{ [1, 2, 3, 4, 5]|slice(3)|list }}{{ [1, 2, 3, 4, 5]|slice(3, 'z')|list }}{{ [1, 2]|slice(3)|list }}{{ range(7)|slice(2)|map('sum')|list }}{{ 'abcd'|slice(2)|list }}{{ e|slice(2, 0)|list }}{{ [1]|slice(0)|length if no }}
{{ [1, 2]|slice(0)|list }}
{{ [1, 2, 3]|batch(2, none)|list }}{{ [1]|batch(3, fill_with=0)|list }}{{ range(5)|batch(linecount=4)|list }}{{ e|batch(2)|list }}{{ 'abc'|batch(2, '-')|list }}
{{ rows|sort(attribute='k,v')|map(attribute='v')|list }}{{ rows|sort(attribute='k,v', reverse=true)|map(attribute='v')|list }}{{ [{'a': 'B', 'b': 1}, {'a': 'b', 'b': 0}]|sort(attribute='a,b')|map(attribute='b')|list }}{{ [{'a': 'B', 'b': 1}, {'a': 'b', 'b': 0}]|sort(false, true, 'a,b')|map(attribute='b')|list }}{{ [[2, 'x'], [1, 'y'], [1, 'x']]|sort(attribute='0,1') }}{{ [[2, 'x'], [1, 'y']]|sort(attribute=1) }}
{{ rows|map(attribute='in.deep', default='?')|join(',') }}{{ rows|map(attribute='nope', default=0)|list }}{{ rows|map(attribute='v')|sum }}{{ rows|map('attr', 'k')|list }}{{ [1.25, 2.5]|map('round', 1)|list }}{{ ['a', 'b']|map('default', 'x')|list }}{{ [[3, 1], [2]]|map('sort')|list }}{{ [[3, 1], [2]]|map('sum', start=1)|list }}{{ l|map('string')|map('center', 3)|join('|') }}
{{ rows|map(attribute='k', upper=true)|list }}
{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}|{{ 'foobarbazquxfoobar'|truncate(9) }}|{{ 'foo bar baz qux x'|truncate(length=6, end='~', leeway=0) }}|{{ emoji|truncate(3, true, '', 0) }}|{{ ''|truncate }}|{{ ('ab ' * 100)|truncate|length }}|{{ 'abc def'|truncate(3, leeway=0) }}
{{ 'abc'|truncate(2) }}
{{ 'abcdef'|truncate(5, leeway=-1) }}
{{ 'The quick brown fox jumps over the lazy dog'|wordwrap(12) }}|{{ 'abcdefghij klm'|wordwrap(4) }}|{{ 'abcdefghij klm'|wordwrap(4, false) }}|{{ 'a b c d'|wordwrap(3, wrapstring='/') }}|{{ 'one\n\ntwo  three   four\n'|wordwrap(7) }}|{{ '  lead and trail  '|wordwrap(8) }}|{{ ''|wordwrap }}|{{ t|wordwrap(3) }}
{{ 'well-known self-made x-ray e-mail co-op--and more---so'|wordwrap(8) }}|{{ 'well-known-thing'|wordwrap(6) }}|{{ 'well-known self-made'|wordwrap(6, break_on_hyphens=false) }}|{{ 'long-hyphenated-word'|wordwrap(3) }}|{{ 'a--b c--d 1-2-3 x--y'|wordwrap(4) }}|{{ '--option -f --long=x'|wordwrap(5) }}|{{ 'é-à ïö-ü日本 日本語日本語'|wordwrap(3) }}|{{ 'non-1 abc-d1 ab-cd.'|wordwrap(4) }}|{{ 'a\tb c'|wordwrap(3) }}
{{ 'a b'|wordwrap(0) }}
{{ 0|filesizeformat }}|{{ 1|filesizeformat }}|{{ 999|filesizeformat }}|{{ 1000|filesizeformat }}|{{ 1500000|filesizeformat }}|{{ 1024|filesizeformat(true) }}|{{ 1048576|filesizeformat(binary=true) }}|{{ '300'|filesizeformat }}|{{ 2.7e12|filesizeformat }}|{{ 1e30|filesizeformat }}|{{ 12345678|filesizeformat(true) }}|{{ (-5)|filesizeformat }}
{{ 'x'|filesizeformat }}
{{ '<b>'|forceescape }}{{ ('<b>'|safe)|forceescape }}{{ ('<b>'|e)|forceescape }}{{ ('<b>'|e)|escape }}{{ '"\'&'|e }}{{ ('<b>'|safe) is escaped }}{{ '<b>' is escaped }}{{ 5|e }}{{ none|e }}{{ [('<'|e)] }}
{{ 'a b/c?d=é&~-_.'|urlencode }}|{{ {'a b': 'x/y', 'c': 1, 'é': none}|urlencode }}|{{ [('k', 'v w'), ('z', 2.5)]|urlencode }}|{{ 5|urlencode }}|{{ true|urlencode }}|{{ emoji|urlencode }}
{{ [1]|urlencode }}
<x{{ {'class': 'a b', 'id': 5, 'none': none, 'undef': missing, 'q': '"<'}|xmlattr }}>{{ {'a': 1}|xmlattr(false) }}{{ {}|xmlattr }}{{ {'a': '<'|safe}|xmlattr(autospace=false) }}
{{ {'a b': 1}|xmlattr }}
{{ d|attr('b') is undefined }}{{ d|attr('items') is callable }}{{ (d|attr('keys'))()|list }}{{ s|attr('upper') is callable }}{{ s|attr('nope') is undefined }}{{ namespace(q=7)|attr('q') }}
{{ ''|attr('__class__') is defined }}
{{ 'odd' is test }}{{ 'nonsense' is test }}{{ 'upper' is filter }}{{ 'nonsense' is filter }}{{ 'test' is test }}{{ 'escaped' is test }}{{ 'groupby' is filter }}{{ 'tojson' is filter }}
{{ 3 is lt 4 }}{{ 3 is le(3) }}{{ 3 is ge 4 }}{{ 3 is gt(2) }}{{ 3 is equalto 3.0 }}{{ 3 is ne 4 }}{{ 3 is lessthan 4 }}{{ 3 is greaterthan 4 }}{{ l|select('>', 1)|list }}{{ l|select('<=', 2)|list }}{{ l|reject('==', 1)|list }}{{ l|select('!=', 1)|list }}{{ l|select('in', [1, 2])|list }}{{ l|select('divisibleby', 3)|list }}{{ l|select('<', 2)|list }}{{ l|select('>=', 2)|list }}
{{ 7 is divisibleby 7 }}{{ 7.5 is odd }}{{ 4.0 is even }}{{ true is odd }}{{ 6 is divisibleby(4) }}{{ 7 is divisibleby 3.5 }}{{ true is integer }}{{ true is number }}{{ 1.0 is integer }}{{ 1.0 is float }}{{ 'aB' is lower }}{{ '' is upper }}{{ 5 is lower }}{{ s is sameas s }}{{ none is sameas none }}{{ true is sameas true }}{{ 1 is sameas true }}{{ l is sameas l }}{{ 'a' is in 'abc' }}{{ 'b' is in d }}{{ 5 is not in l }}
{{ 'a' is odd }}
{{ 4 is divisibleby 0 }}
{{ [] is divisibleby 2 }}
{{ 1 is in 5 }}
{{ joiner is callable }}{{ cycler is callable }}{{ namespace is callable }}{{ none is callable }}{{ s is callable }}{{ (1, 2) is sequence }}{{ range(2) is sequence }}{{ d.keys() is sequence }}{{ d.keys() is iterable }}{{ namespace() is mapping }}{{ l|map('string') is iterable }}{{ l|map('string') is sequence }}
{% set c = cycler('a', 'b', 'c') %}{{ c.current }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set _ = c.reset() %}{{ c.current }}{{ c.next() }}{{ c.items }}{{ c.pos }}
{% set j = joiner() %}{{ j() }}x{{ j() }}y{{ j() }}z{% set k = joiner(sep=' / ') %}{{ k() }}1{{ k() }}2{{ k.sep }}{{ k.used }}
{{ cycler() }}
{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{{ loop.cycle('o', 'e') }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for x in l %}{% for y in l %}{{ loop.depth }}{% if loop.last %}{% continue %}{% endif %}{{ y }}{% endfor %};{% endfor %}
{% for n in [{'v': 1, 'c': [{'v': 2, 'c': [{'v': 3, 'c': []}]}, {'v': 4, 'c': []}]}] recursive %}{{ loop.depth0 }}:{{ n.v }}{{ '(' ~ loop(n.c) ~ ')' if n.c }}{{ loop.index }}{{ loop.last }} {% endfor %}
{% for x in l recursive %}{{ loop() }}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% for x in l %}{{ loop.cycle() }}{% endfor %}
{% for x in l %}{{ loop }}{{ loop|length }}{% endfor %}
{% for x in [1, 2, 3, 4]|select('even') %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ x }}{% endfor %}
{{ 42.55|round(1) }}{{ 42.55|round(1, 'floor') }}{{ 42|round }}{{ 1234|round(-2) }}{{ 1234.5|round(-2) }}{{ 1234.5|round(-2, 'floor') }}{{ 0.5|round }}{{ 1.5|round }}{{ -2.5|round }}{{ 2.675|round(2) }}{{ true|round }}{{ 1250|round(-2) }}{{ 1350|round(-2) }}{{ 7|round(1, 'ceil') }}
{{ 'x'|round }}
{{ 1|round(method='up') }}
{{ -3.5|abs }}{{ true|abs }}{{ [1.5, 2]|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ [(1, 2), (3, 4)]|sum(attribute=1) }}{{ e|sum }}{{ e|sum(start=5) }}{{ e|max is undefined }}{{ names|max }}{{ names|min(case_sensitive=true) }}{{ rows|max(attribute='v') }}{{ rows|min(attribute='in.deep') if no }}{{ 'hello'|max }}{{ 'hello'|min }}{{ d|max }}
{{ 'abc'|abs }}
{{ ['a', 1]|max }}
{{ ['a']|sum }}
{{ e|max }}{{ e|first }}{{ e|last }}{{ e|min }}
{{ 'a_b c-d é1 '|wordcount }}{{ ''|wordcount }}{{ '日本語 x'|wordcount }}{{ 'a\u200bb…c«d»'|wordcount }}{{ 'abc'|center(8) }}|{{ 'abc'|center(6) }}|{{ 'ab'|center(5) }}|{{ 'abc'|center(2) }}|{{ 5|center(4) }}|{{ 'é'|center(width=4) }}|
{{ d|reverse|list }}{{ (1, 2)|reverse|list }}{{ range(3)|reverse|list }}{{ 'héé'|reverse }}{{ 5|string|reverse }}{{ e|reverse|list }}{{ d.keys()|reverse|list }}{{ d.items()|reverse|list|length }}
{{ 5|reverse }}
{{ 5|list }}
{{ {'b': {'x': 2}, 'a': {'x': 1}}|dictsort(by='value')|length if no }}{{ {'b': 2, 'A': 1}|dictsort(by='value') }}{{ {'b': 2, 'A': 1, 'C': 3}|dictsort(reverse=true) }}{{ {2: 'x', 1: 'y'}|dictsort }}
{{ d|dictsort(by='nope') }}
{{ names|unique(true)|list }}{{ rows|unique(attribute='k')|map(attribute='v')|list }}{{ [1, 1.0, true, '1']|unique|list }}{{ 'aAbB'|unique|join }}
{{ l|random if no }}{{ [l, l]|first|last }}{{ d|first }}{{ s|first }}{{ s|last }}{{ range(3)|last }}{{ d.values()|first }}{{ d|last }}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{{ lipsum() if no }}{{ 'a'.center(4) }}|{{ 'abcb'.rindex('b') }}{{ '12'.isdecimal() }}{{ '½'.isnumeric() }}{{ 'ab'.isascii() }}{{ 'abcabc'.find('c', 3) }}{{ 'abcabc'.count('b', 2) }}{{ 'abc'.startswith('b', 1) }}{{ 'abc'.ljust(5, '*') }}{{ 'abc'.rjust(5, '*') }}{{ 'abc'.center(6, '*') }}{{ 'a,b'.split(sep=',') }}{{ 'a\nb'.splitlines(true) }}{{ 'a\x85b\u2028c\x1dd\n\ne\r'.splitlines() }}{{ 'aé日'.find('日', -1) }}{{ 'abc'.find('', 4) }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('a', 0, 0) }}{{ 'abc'.rfind('b', none, 2) }}{{ 'abab'.endswith('ab', 1, -1) }}{{ 'abc'.startswith('', 4) }}{{ 'aaa'.count('', 1) }}{{ 'abc'.center(7) }}|{{ '٣½'.isnumeric() }}{{ 'é'.isascii() }}{{ ''.isascii() }}
{{ s|default('x', boolean=true) }}{{ 0|default('x', true) }}{{ missing.x|default('q') if no }}{{ missing|d }}{{ none|default('n') }}{{ none|default('n', true) }}{{ (missing|default(none)) is none }}
{{ '%s and %s'|format('a', 'b') }}{{ '%(x)s'|format(x=5) }}{{ '%s'|format(1) }}{{ 'plain'|format }}
{{ '%s'|format('a', 'b') }}
{{ [1, 2, 3]|join(', ', attribute='x') if no }}{{ rows|join(', ', attribute='in.deep') }}{{ rows|join(attribute='v', d='+') }}{{ ['<', '<'|safe]|join('&') }}
{{ d|items|map('first')|list }}{{ missing|items|list }}{{ d|length }}{{ d|count }}{{ s|count }}{{ (1, 2)|count }}
{{ [3]|items|list }}
{{ s|title }}{{ 'foo-bar (baz) [x] {y} <z> it\'s'|title }}{{ 'ünïcode wörd'|title }}{{ 'ABC_def'|title }}{{ none|upper }}{{ 5|lower }}{{ none|trim }}{{ 'x y'|replace('x', none) }}{{ 5|replace(5, 6) }}{{ 'aaa'|replace('a', 'b', count=2) }}
{{ 'a\nb\n'|indent }}|{{ '\n\na'|indent(2) }}|{{ 'a\r\nb'|indent(1) }}|{{ 'a\nb'|indent(width=3, first=true, blank=false) }}|{{ ''|indent(2, true) }}|{{ '\n'|indent(2, true, true) }}|
{{ 'yes'|int }}{{ '0x1f'|int(base=16) }}{{ '0b11'|int(0, 2) }}{{ '0o17'|int(base=8) }}{{ '-5'|int }}{{ '1e3'|int }}{{ '12.9'|int }}{{ ''|int(-1) }}{{ [1]|int(3) }}{{ '1_000'|int }}{{ 'inf'|float }}{{ 'nan'|float }}{{ '-.5'|float }}{{ '1e5'|float }}{{ []|float(1.5) }}{{ true|float }}{{ 'z'|int(0, 36) }}
""".strip("\n")


def environment():
    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller):
            return caller()

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2024, 7, 26, 12, 34, 56).strftime
    return env


def templates():
    """A line each; a few lines of white-space rules and loops are also joined to templates of several lines."""
    lines = TEMPLATES.split("\n")
    yield from lines
    yield "\n".join(lines[:6]) + "\n"
    for i in range(0, 12, 3):
        yield "\r\n".join(lines[i:i + 4]) + "\n\n"
    i = lines.index("{% for x in l %}")
    yield "\n".join(lines[i:i + 6])
    yield "  {% for x in l %}\n    {{- x }}\n  {% endfor %}\n\n  {# c #}\n x"
    yield "{% if yes %}\n\n a {% endif -%}\n\n b {{ s }}\n"
    yield "\n\n{%- if yes %}x{% endif %}\n"
    yield from wrapped_texts()


def wrapped_texts():
    """Texts at random, wrapped and cut at random: where Python breaks words and dashes."""
    draw = random.Random(5)
    for _ in range(12):
        pieces = []
        for _ in range(10):
            text = "".join(draw.choice("abcdé日-- \t  _1.,'-x") for _ in range(draw.randrange(40)))
            width, options = draw.randrange(1, 12), draw.choice(["", ", false", ", true, '/'", ", false, '+', false"])
            pieces.append("{{ %r|wordwrap(%d%s) }}" % (text, width, options))
            pieces.append("{{ %r|truncate(%d, %s, '~', %d) }}" % (text, width, draw.choice(["true", "false"]), draw.randrange(3)))
        yield "|".join(pieces)


def main():
    env = environment()
    with open(pathlib.Path(__file__).with_name("templates.jsonl"), "w", encoding="utf-8") as out:
        for source in templates():
            row = {"template": source}
            try:
                row["expected"] = env.from_string(source).render(**CONTEXT)
            except Exception as e:
                row["error"], row["message"] = type(e).__name__, str(e)
            row["context"] = json.dumps(CONTEXT)  # as text: it tells 2.0 from 2
            out.write(json.dumps(row) + "\n")


main()
