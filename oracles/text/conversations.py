"""Conversations every chat template is rendered with; `kwargs` are further template variables."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather <b>of</b> a \"city\" & its region; caf\u00e9, \u5317\u4eac",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. Z\u00fcrich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "items": {"type": "array", "items": {"type": "number"}},
                "days": {"type": ["integer", "null"], "default": 1, "minimum": 0.5},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


CALLS = [
    {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich", "unit": "celsius", "days": 2}}},
    {"type": "function", "function": {"name": "now", "arguments": {}}},
]

CONVERSATIONS = [
    ("one user turn", {"messages": [user("Hello!")]}),
    ("system and user", {"messages": [system("You are terse."), user("Hi.")]}),
    ("several turns", {"messages": [system("Be kind."), user("1+1?"), assistant("2"), user("2+2?"), assistant("4"), user("Thanks")]}),
    ("ends with the assistant", {"messages": [user("Say A"), assistant("A")]}),
    ("whitespace and newlines", {"messages": [system("  padded \n"), user("\n\n text \t\n"), assistant("  yes\n\n"), user(" ok ")]}),
    ("characters that HTML and JSON escape", {"messages": [user("<a href=\"x\">'&amp;'</a> \\ / \u2028 \u007f {{ x }} {% raw %}")]}),
    ("unicode", {"messages": [system("\u4f60\u597d"), user("caf\u00e9 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u0627\u0628\u062c \u0301")]}),
    ("empty contents", {"messages": [system(""), user(""), assistant(""), user("")]}),
    ("tools offered", {"messages": [user("Weather?")], "tools": [WEATHER, CLOCK]}),
    ("tools offered beside a system text", {"messages": [system("Use tools."), user("Weather?")], "tools": [WEATHER]}),
    ("tools called", {"messages": [user("Weather?"), assistant("", tool_calls=CALLS), {"role": "tool", "name": "get_weather", "content": "{\"t\": 21.5}"},
                                   {"role": "tool", "name": "now", "content": "12:00"}, assistant("21.5 degrees."), user("And tomorrow?")], "tools": [WEATHER, CLOCK]}),
    ("tools called without content", {"messages": [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": CALLS[:1]},
                                                   {"role": "tool", "content": "rain"}], "tools": [WEATHER]}),
    ("tool arguments as text", {"messages": [user("Weather?"), assistant("", tool_calls=[{"type": "function", "function": {"name": "now", "arguments": "{\"a\": 1}"}}])]}),
    ("thinking off", {"messages": [user("Hi")], "enable_thinking": False}),
    ("thinking on", {"messages": [user("Hi")], "enable_thinking": True}),
    ("reasoning kept and dropped", {"messages": [user("Q1"), assistant("A1", reasoning_content="because"), user("Q2"), assistant("<think>\nhm\n</think>\n\nA2"), user("Q3")]}),
    ("reasoning under another name", {"messages": [user("Q1"), assistant("A1", reasoning="since")]}),
    ("content as parts", {"messages": [user([{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}])]}),
    ("two user turns in a row", {"messages": [user("a"), user("b")]}),
    ("assistant first", {"messages": [assistant("Hello, how can I help?"), user("b")]}),
    ("unknown role", {"messages": [user("a"), {"role": "critic", "content": "c"}]}),
    ("many turns", {"messages": [m for i in range(20) for m in (user(f"question {i}"), assistant(f"answer {i}"))]}),
]
