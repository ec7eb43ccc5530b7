"""Text the two tiny tokenizers are trained on; written for this project."""

LINES = [
    "The engine reads a prompt, one token after another, and answers with the next one.",
    "A token is a piece of text: a word, a part of a word, a space, a byte.",
    "Every request owns its rows; no neighbour may change a single bit of them.",
    "Memory is planned before it is used, and a plan that does not fit is refused with numbers.",
    "It's what we'd want: they're fast, he'll wait, I've seen, you don't know, I'm here.",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(add(i, i * 2))\n",
    "int main(void) {\n\tint x = 42;\n\treturn x - 42;\n}\n",
    "{\"name\": \"value\", \"list\": [1, 2, 3], \"nested\": {\"a\": null, \"b\": true}}",
    "Das schnelle Programm l\u00e4uft \u00fcber alle Zeilen. Gr\u00f6\u00dfe und Stra\u00dfe. \u00c4pfel, \u00d6l, \u00dcbung.",
    "Le caf\u00e9 est pr\u00eat; l'\u00e9t\u00e9 na\u00eff, o\u00f9 \u00e7a? \u00c0 bient\u00f4t!",
    "El ni\u00f1o comi\u00f3 a las 12:30 el d\u00eda 24 de mayo. \u00bfQu\u00e9 tal?",
    "\u0411\u044b\u0441\u0442\u0440\u0430\u044f \u043f\u0440\u043e\u0433\u0440\u0430\u043c\u043c\u0430 \u0447\u0438\u0442\u0430\u0435\u0442 \u0442\u0435\u043a\u0441\u0442 \u0438 \u043f\u0438\u0448\u0435\u0442 \u043e\u0442\u0432\u0435\u0442.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u3002\u4eca\u5929\u5f88\u597d\u3002", "\u4eca\u65e5\u306f\u826f\u3044\u5929\u6c17\u3067\u3059\u306d\u3002",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 \u0641\u064a \u0627\u0644\u0628\u0631\u0646\u0627\u0645\u062c", "\u05e9\u05dc\u05d5\u05dd \u05dc\u05db\u05d5\u05dc\u05dd",
    "1 22 333 4444 55555 3.14 2.718 1,000 2024-06-07", "a  b   c    d     e      f        g                h",
    "\U0001f600 \U0001f44d \u2764\ufe0f", "https://example.org/path?query=1&other=2#part", "x = y ** 2 + z // 3 - (a % b) != c <= d && e || f;",
    "aaa aaaa aaaaa hahaha hahahaha lalala banana bananas", "\n\n\n", "tokens token tokenize tokenizer tokenizers tokenization",
]


def corpus():
    return LINES * 4
