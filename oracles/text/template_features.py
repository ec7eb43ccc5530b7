"""Small templates, one per feature that chat templates use, each with its context. The expected texts come from
transformers' own Jinja environment. Context keys beside `messages` are free."""

M = [{"role": "user", "content": "Hi <&> \"'"}, {"role": "assistant", "content": "Yo"}]
DATA = {"s": "text", "n": None, "t": True, "f": False, "i": 7, "x": 1.5, "l": [1, "two", None, [3.0]], "d": {"a": 1, "b": [True], "\u00e9": "\u2028<>&'\""}}

FEATURES = [
    ("print scalars", "{{ s }}|{{ n }}|{{ t }}|{{ f }}|{{ i }}|{{ x }}|{{ missing }}|", DATA),
    ("print floats", "{{ 1.0 }} {{ 0.1 }} {{ 1e16 }} {{ 123456789012345.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 2.5e20 }} {{ -0.0 }}", {}),
    ("print containers", "{{ l }} {{ d }}", {"l": [1, "two", None, True, [3]], "d": {"a": "it's", "b": [False]}}),
    ("concatenate", "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'a' + 'b' }} {{ [1] + [2] }}", {}),
    ("arithmetic", "{{ 7 // 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 8 / 2 }} {{ 7 % 4 }} {{ 3 * 'ab' }}", {}),
    ("compare and boolean", "{{ 1 < 2 <= 2 }} {{ 'a' in 'abc' }} {{ 'x' not in ['y'] }} {{ not t and f or s }} {{ 1 == 1.0 }} {{ 'b' in d }}", DATA),
    ("inline if", "{{ 'y' if t else 'n' }}{{ 'z' if f }}{{ s if s is defined and s != '' else 'none' }}", DATA),
    ("tests", "{{ s is string }} {{ i is number }} {{ l is sequence }} {{ l is iterable }} {{ d is mapping }} {{ n is none }} {{ q is defined }} {{ q is undefined }} {{ t is true }} {{ f is false }} {{ t is boolean }} {{ i is integer }} {{ x is float }} {{ i is odd }} {{ i is divisibleby 7 }} {{ s is eq 'text' }} {{ s is in ['text'] }} {{ d is sequence }} {{ s is iterable }}", DATA),
    ("tojson", "{{ d|tojson }} {{ l|tojson }} {{ n|tojson }} {{ x|tojson }} {{ s|tojson }}", DATA),
    ("tojson indent", "{{ d|tojson(indent=2) }}\n{{ d|tojson(indent=4) }}\n{{ []|tojson(indent=2) }}{{ {}|tojson(indent=2) }}{{ [[]]|tojson(indent=1) }}", DATA),
    ("tojson options", "{{ d|tojson(ensure_ascii=True) }} {{ d|tojson(separators=(',', ':')) }} {{ {'b':1,'a':2}|tojson(sort_keys=True) }} {{ d|tojson(false, 2) }} {{ u|tojson(ensure_ascii=true) }}", {"u": "\U0001f600\u007f\u0080", **DATA}),
    ("tojson escapes", "{{ s|tojson }}", {"s": "\"\\/\b\f\n\r\t\u0000\u001f\u007f\u00a0\u2028<script>&'"}),
    ("tojson floats", "{{ [1.0, 0.1, 1e16, 1e22, 1e-7, 123456.789, 5e-324, 1.7976931348623157e308]|tojson }}", {}),
    ("loop variables", "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}", {}),
    ("loop else, filter, break, continue", "{% for i in [] %}x{% else %}empty{% endfor %}{% for i in range(9) if i is odd %}{% if i == 3 %}{% continue %}{% endif %}{% if i > 6 %}{% break %}{% endif %}{{ i }}{% endfor %}", {}),
    ("loop cycle and unpacking", "{% for k, v in d.items() %}{{ loop.cycle('a', 'b') }}{{ k }}={{ v }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", {"d": {"x": 1, "y": 2}}),
    ("recursive loop", "{% for n in tree recursive %}{{ n.v }}({{ loop(n.c) }}){{ loop.depth }}{% endfor %}", {"tree": [{"v": 1, "c": [{"v": 2, "c": []}]}, {"v": 3, "c": []}]}),
    ("namespace", "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if m.role == 'assistant' %}{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.found }}{{ ns.n }}", {}),
    ("scope of set", "{% set a = 1 %}{% for i in [1, 2] %}{% set a = i + 10 %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 5 %}{% endif %}{{ a }}{% with b = 3 %}{{ b }}{% set a = 9 %}{% endwith %}{{ a }}{{ b }}", {}),
    ("set block", "{% set x %}  block {{ i }} {% endset %}[{{ x }}]{% set y | trim | upper %} abc {% endset %}[{{ y }}]", DATA),
    ("slices", "{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ [1,2,3,4][1:] }} {{ [1,2,3,4][::2] }} {{ [1,2,3][-1] }} {{ messages[:1] | length }} {{ messages[1:][0].role }} {{ messages[::-1][0]['role'] }} {{ 'abc'[5:] }}", {}),
    ("string methods", "{{ ' a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',') }}|{{ 'a b  c'.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'abc'.upper() }}|{{ 'ABC'.lower() }}|{{ 'a-b'.replace('-', '+') }}|{{ 'hello world'.title() }}|{{ 'hello'.capitalize() }}|{{ 'abcb'.find('b') }}|{{ 'abcb'.rfind('b') }}|{{ 'abcb'.count('b') }}|{{ '-'.join(['a', 'b']) }}|{{ 'a\nb\r\nc'.splitlines() }}", {}),
    ("more string methods", "{{ '</think>x'.lstrip('</think>') }}|{{ 'a</s>'.rstrip('</s>') }}|{{ 'prefix-x'.removeprefix('prefix-') }}|{{ 'x.json'.removesuffix('.json') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'a b c'.rsplit(' ', 1) }}|{{ '7'.zfill(3) }}|{{ '-7'.zfill(4) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'ab'.center(5, '*') }}|{{ 'abc'.index('c') }}|{{ '12'.isdigit() }}|{{ 'ab'.isalpha() }}|{{ ' '.isspace() }}|{{ 'A'.isupper() }}|{{ '%s-%d'|format('a', 3) }}|{{ '{} {x}'.format('a', x='b') }}|{{ 'aBc'.swapcase() }}|{{ 'a  b '.split(None, 1) }}|{{ 'x'.split('y') }}", {}),
    ("strip of Python", "[{{ s.strip() }}][{{ s|trim }}][{{ s.split() }}]", {"s": "\u001c\u2003 a\u0085b \u200b\u001f\u3000"}),
    ("split on marker", "{{ s.split('</think>')[-1].lstrip('\n') }}|{{ s.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}", {"s": "<think>\nhm\n</think>\n\nAnswer"}),
    ("dict methods", "{{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 'dflt') }} {{ d.keys()|list }} {{ d.values()|list }} {% for k, v in d.items() %}{{ k }}:{{ v }},{% endfor %}{{ d|length }} {{ d|dictsort }} {{ d|items|list }}", {"d": {"b": 2, "a": 1}}),
    ("dict with keys named like methods", "{{ d['items'] }} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d.get('get') }}", {"d": {"items": "I", "get": "G", "keys": "K"}}),
    ("filters", "{{ l|join(', ') }} {{ l|first }} {{ l|last }} {{ l|length }} {{ 'x'|default('d') }} {{ q|default('d') }} {{ ''|default('d', true) }} {{ 'abc'|upper|lower|capitalize|title }} {{ ' a '|trim }} {{ l|reverse|list }} {{ [3,1,2]|sort }} {{ [1,1,2]|unique|list }} {{ 3.7|int }} {{ '5'|int + 1 }} {{ 3.14159|round(2) }} {{ -3|abs }} {{ [1,2]|sum }} {{ [1,2]|max }} {{ 'a b'|replace(' ', '_') }} {{ 'x'|string }} {{ 5|float }} {{ l|string }}", {"l": ["a", "b"]}),
    ("select and map", "{{ messages|map(attribute='role')|join(',') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ [1,2,3]|select('odd')|list }} {{ [1,2,3]|reject('odd')|list }} {{ ['a']|map('upper')|list }} {{ messages|selectattr('content')|list|length }} {{ messages|selectattr('tool_calls', 'defined')|list|length }} {{ messages|groupby('role')|length }}", {}),
    ("indent and escapes", "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\nb'|indent(width=1, first=True) }}|{{ '<a>'|e }}|{{ 'a\tb\\n\u00e9\x41' }}|{{ \"it's\" }}", {}),
    ("macros", "{% macro greet(name, mark='!') %}Hello {{ name }}{{ mark }}{% endmacro %}{{ greet('A') }}{{ greet('B', mark='?') }}{{ greet(name='C') }}{% macro nest(n) %}{{ n }}{% if n > 0 %}{{ nest(n - 1) }}{% endif %}{% endmacro %}{{ nest(5) }}", {}),
    ("call blocks", "{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}inner{% endcall %}{% macro row() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) row() %}{{ a + b }}{% endcall %}", {}),
    ("filter blocks and raw", "{% filter upper %}abc{{ s }}{% endfilter %}{% raw %}{{ not }} {% this %}{% endraw %}{# comment #}|", DATA),
    ("whitespace control", "a\n{% if true %}\n  b\n{% endif %}\nc\n   {%- if true -%}   d   {%- endif -%}   e\n  {{- 'f' -}}  g\n\t{% set z = 1 %}\nh {%+ if true %}i{% endif %}\n{# c #}\nj\n   {#- d -#}   k", {}),
    ("trailing newline", "text\n", {}),
    ("two trailing newlines", "text\n\n", {}),
    ("crlf source", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc", {}),
    ("newline after a variable stays", "{{ s }}\n{{ s }}\n\n{% if t %}\n{{ i }}\n{% endif %}\n", DATA),
    ("generation tags", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}", {}),
    ("generation tags with whitespace control", "x  {%- generation -%}  y  {%- endgeneration -%}  z\n  {% generation %}\n  w\n  {% endgeneration %}\nv {%- generation %}  u {% endgeneration -%}  t\n{%+ generation %}s{% endgeneration +%}\nr", {}),
    ("generation tags and scope", "{% set a = 1 %}{% set ns = namespace(b=1) %}{% generation %}{% set a = 2 %}{% set ns.b = 2 %}{{ a }}{% endgeneration %}{{ a }}{{ ns.b }}{% for i in [1, 2] %}{% generation %}{{ loop.index }}{{ i }}{% endgeneration %}{% endfor %}", {}),
    ("generation tags in other places", "{# {% generation %} #}{% raw %}{% generation %}{% endraw %}{{ '{% generation %}' }}{% set x = \"{% endgeneration %}\" %}{{ x }}{{ {'a': {'b': '}}'}}['a']['b'] }}{% set generation = 5 %}{{ generation }}{% if generation %}y{% endif %}", {}),
    ("context overrides", "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}", {"bos_token": "<s>", "eos_token": "</s>"}),
    ("iterate over text and maps", "{% for c in 'ab' %}{{ c }}.{% endfor %}{% for k in d %}{{ k }},{% endfor %}", {"d": {"x": 1, "y": 2}}),
    ("assignments of several names", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = (1, 2) %}{{ c[1] }}{{ (1, 2) }}{{ (1,) }}", {}),
    ("undefined", "{{ q.a is defined if q is defined else 'no' }}{{ m.role }}{{ messages[0].missing }}{{ messages[0]['missing'] is defined }}{% if q %}x{% else %}y{% endif %}{% for z in q %}w{% endfor %}", {"m": {"role": "r"}}),
    ("date", "{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}|{% if strftime_now is defined %}{% set d = strftime_now('%Y-%m-%d') %}{{ d }}{% endif %}", {}),
    ("reads messages", "{% for m in messages %}{{ m }}{{ m['content'] }}{{ m.content }}{{ m.get('role') }}{% endfor %}{{ messages | tojson }}", {}),
    ("unicode", "{{ s|length }} {{ s[0] }} {{ s|upper }} {{ s.title() }} {{ s[::-1] }} \u00e9\u4f60", {"s": "\u00e9\u00df\U0001f600x"}),
    ("json schema to types", "{%- macro type_of(p) -%}{%- if p.type == 'array' -%}{{ type_of(p['items']) }}[]{%- elif p.enum is defined -%}{{ '\"' + p.enum|join('\"|\"') + '\"' }}{%- elif p.type is string -%}{{ p.type }}{%- else -%}{{ p.type|join(' | ') }}{%- endif -%}{%- endmacro -%}{%- for name, p in tools[0].function.parameters.properties.items() %}\n// {{ p.description or '' }}\n{{ name }}{{ '?' if name not in tools[0].function.parameters.required }}: {{ type_of(p) }}{{ ', // default: ' ~ p.default if p.default is defined }}\n{%- endfor -%}", "tools"),
    ("repr of texts", "{{ l }}", {"l": ["it's", "\"both\" '", "a\\b\n\r\t\u0001\u007f", "\u00ad\u200b\u0301\ue000\u2028\u3000", "\U0001f600\U000e0001 \u4f60", {"k'": [1.0, 1e20]}]}),
    ("print tuples and items", "{{ (1, 'a', none) }}{{ d.items()|list }}{{ ('x',)|list }}{{ [(1, [2, (3,)])] }}{{ l|string }}", {"d": {"a": 1}, "l": [1.5, "q"]}),
    ("carriage returns in strings", "{{ 'a\r\nb\rc'|length }}\r{{ s }}\r\n", {"s": "a\r\nb"}),
    ("title", "{{ 'they\u2019re bill\'s x-y 3rd \u00dfa'.title() }}|{{ 'hello wORLD-foo (bar'|title }}|{{ '\u01c6a'.capitalize() }}", {}),
    ("sorting and comparing mixed text", "{{ ['b', 'A', 'a', 'B']|sort }} {{ ['b', 'A']|sort(reverse=true) }} {{ [{'n': 2}, {'n': 1}]|sort(attribute='n')|map(attribute='n')|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }}", {}),
    ("integers and truth", "{{ true + 1 }} {{ '3' * 2 }} {{ 10 ** 20 }} {{ 7 // 2.0 }} {{ 5 % -3 }} {{ 2 ** -1 }} {{ 1 / 3 }} {{ 3 and 4 }} {{ 0 or '' }} {{ not [] }} {{ [] or 'e' }} {{ '' is defined }} {{ none == false }} {{ 0 == false }}", {}),
    ("loops over filtered and sliced", "{% for m in messages[1:] if m.role != 'system' %}{{ loop.index0 }}{{ loop.last }}{% endfor %}{% for m in messages|reverse %}{{ m.role }}{% endfor %}{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{{ loop is defined }}", {}),
    ("nested attributes and defaults", "{{ (messages|last).content }}{{ messages[-1].get('name', 'x') }}{{ messages[0]['content'][:1] }}{{ (messages|selectattr('role', 'eq', 'assistant')|first).content }}{{ messages|map(attribute='name', default='z')|join }}{{ q|default({})|length }}{{ (q or {}).get('a') }}", {}),
    ("strings over lines", "{{ 'a' 'b' }}{{ \"x\ny\" }}{{ 'tab\\tnew\\nline \\u00e9 \\\\' }}{{ 'a'\n ~ 'b' }}{%- set\n x = [\n 1,\n 2,\n] %}{{ x }}", {}),
    ("comments and dashes", "a {#- c -#} b\n{#\nmulti\n#}\nc{# d #}\n  {# e #}\nf", {}),
    ("split everywhere", "{{ s.split() }}{{ s.split(None, 1) }}{{ s.split(none, 2) }}{{ s.rsplit(None, 1) }}{{ s.rsplit() }}{{ s.split(maxsplit=0) }}{{ s.split(' ') }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'abc'.split('b', -1) }}{{ 'a||b'.split('||', maxsplit=1) }}{{ 'a\n\nb\r\nc\u2028d\x0be\n'.splitlines() }}{{ 'a\nb'.splitlines(true) }}", {"s": "  a  b \tc  "}),
    ("sequence test", "{{ q is sequence }}{{ 'x' is sequence }}{{ 5 is sequence }}{{ none is iterable }}{{ q is iterable }}{{ {} is sequence }}{{ () is sequence }}{{ 1 is mapping }}", {}),
    ("empty and whitespace only", " \n {%- if false %}x{% endif -%} \n ", {}),
    # These fail in transformers too.
    ("raise", "line one\n{{ raise_exception('Only user and assistant roles!') }}", {}),
    ("attribute of undefined", "{{ q.a.b }}", {}),
    ("undefined call", "{{ q('x') }}", {}),
    ("add text and number", "{{ 'a' + 1 }}", {}),
    ("unknown filter", "{{ s|nofilter }}", DATA),
    ("unclosed block", "a\nb\n{% if x %}\nc", {}),
    ("unknown tag", "{% frobnicate %}", {}),
    ("bad expression", "{{ a b }}", {}),
    ("list append", "{% set l = [] %}{{ l.append(1) }}", {}),
    ("unbalanced generation", "{% generation %}x", {}),
]


def contexts():
    from conversations import WEATHER

    for name, source, context in FEATURES:
        if context == "tools":
            context = {"tools": [WEATHER]}
        yield name, source, {"messages": M, **context}
