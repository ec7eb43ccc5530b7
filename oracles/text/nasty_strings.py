"""The 200 strings on which our tokenizers must agree with the Python packages."""

import random


def fixed():
    return [
        "", " ", "  ", "\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "a", " a", "a ", " a ", "Hello, world!",
        "The quick brown fox jumps over the lazy dog.", "don't won't I'll they've DON'T I'LL THEY'VE it's IT'S",
        "it\u2019s they\u2019ve", "'s 't 're 've 'm 'll 'd", "''''''", "a'b'c", "'S'T'RE", "\u017f'\u017f I'\u017f",
        "0", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000.00", "1e-10", "0x1F", "\u0663\u0664\u0665",
        "\u0967\u0968\u0969", "\u00b2\u00b3\u00b9", "\u2155\u2163\u2460", "\U0001d7d8\U0001d7d9", "1\u20e32\u20e3",
        "x=1;y=2", "for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def f(x):\n\treturn x ** 2  # square\n",
        "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n", "<html>\n  <body class=\"x\">&amp;&lt;</body>\n</html>",
        "{\"a\": [1, 2, {\"b\": null}], \"c\": true}", "SELECT * FROM t WHERE x <> 'y' -- c", "https://example.org/a?b=c&d=%20#e",
        "user@example.org", "C:\\Users\\name\\file.txt", "\\n\\t\\\\", "$\\frac{a}{b}$", "a/b//c///d", "!!!???...---___***",
        "()[]{}<>", "@#$%^&*", "``` \n```", "~~~~~", "=====", "-- --- ----", "...", "\u2026", "\u2013\u2014\u2015",
        "\u201cquoted\u201d \u2018single\u2019", "\u00abguillemets\u00bb", "\u20ac\u00a3\u00a5\u20bf", "\u00e9\u00e8\u00ea", "e\u0301e\u0300e\u0302",
        "\u1e9b\u0323", "\u212b \u00c5 A\u030a", "\u0958 \u0915\u093c", "\ufb01 \ufb02 \u0132", "\uac00\ub098\ub2e4", "\u1100\u1161\u1102\u1161",
        "\u0344 \u0308\u0301", "q\u0307\u0323 q\u0323\u0307", "Z\u0351\u036b\u0343\u036aA\u0310\u0313L\u0351GO\u0321", "\u0301\u0302\u0303 alone",
        "na\u00efve fa\u00e7ade", "Stra\u00dfe STRASSE \u1e9e", "\u0130stanbul \u0131", "\u01c4\u01c5\u01c6", "\u0391\u03b1 \u03a3\u03c3\u03c2",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
        "\u30ab\u30bf\u30ab\u30ca \uff76\uff80\uff76\uff85", "\uc548\ub155\ud558\uc138\uc694", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
        "\u202eright to left\u202c", "\u200fmixed\u200e \u0627\u0628\u062c abc", "\u0627\u0644\u0633\u0644\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0652\u0643\u064f\u0645",
        "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u0532\u0561\u0580\u0565\u0582", "\u12a0\u121b\u122d\u129b", "\u1019\u103c\u1014\u103a\u1019\u102c",
        "\U00010330\U00010331", "\U00012000\U00012001", "\U00020000\U0002a6d6", "\U000e0001\U000e0041", "\U0010fffd", "\ufffd", "\ufffe\uffff", "\ufeffBOM",
        "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
        "\U0001f44d\U0001f3fd", "\u2764\ufe0f\u2764", "\U0001fae0 \U0001fab7", "\u00a9\u00ae\u2122", "\u2603\u2600\u2602", "\u2190\u2192\u21d2", "\u2211\u222b\u221a\u2260\u2264",
        "\U0001d49c\U0001d4b7", "\u200b", "a\u200bb", "a\u200cb\u200dc", "\u2060", "a\u00adb", "\u180e", "x\u0000y", "\u0000", "\u0001\u0002\u0003", "\u001b[31mred\u001b[0m",
        "\u0007\u0008\u000b\u000c", "\u007f", "\u0085next", "\u2028line\u2029para", "\u001c\u001d\u001e\u001f", "a\u00a0b", "a\u2003b\u2009c\u202fd", "\u3000\u3000x",
        " " * 3, " " * 4, " " * 7, " " * 16, " " * 33, " " * 100, "\n" * 5, "\n\n\n\n text", "\t" * 6, " \n \n ", "  \n\t \r\n ", "a\n\nb\n\n\nc", "a \n b", "text   \n   more",
        "line\r\nline\rline\nline", "  leading", "trailing  ", "\n leading newline", "a" * 50, "ab" * 40, "aaa aaa aaa", "A" * 33, "hahahahahahaha", "x" * 300,
        "9" * 64, "\u00e9" * 40, "\u597d" * 60, "\U0001f600" * 30, "\u0301" * 20, "a\u0301" * 30, "<0x41>", "<0x0A><0xE2>", "\u2581", "\u2581a \u2581b", "\u2581\u2581\u2581", "\u0120a", "\u010a",
        "<s>", "</s>", "<s>text</s> after", "<unk>", "<pad>", "<bos>hi<eos>", "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "a<|endoftext|>b", " <|im_end|> ",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<start_of_turn>user\nhi<end_of_turn>", "<think>\nhm\n</think>\n\n", "<tool_call>\n{}\n</tool_call>",
        "<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>x", "<|start|>user<|message|>hi<|end|>", "[INST] hi [/INST]", "<<SYS>>", "<|im_start", "|im_end|>",
        "<|reserved_special_token_5|>", "<unused12>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<image_soft_token>", "IM_START", "< s >", "<S>", "<s", "s>",
    ]


def mixed(count):
    """Seeded mixtures of the ranges that split patterns and normalizers care about."""
    rng = random.Random(20240607)
    ranges = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A),
              (0x900, 0x97F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2150, 0x218F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
              (0xFF00, 0xFFEF), (0x1F300, 0x1F64F), (0x1D400, 0x1D7FF)]
    strings = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(3, 14)):
            low, high = rng.choice(ranges)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
            parts.append(rng.choice(["", " ", "  ", "\n", "\r\n", "\t", "'s", "1", "12", "1234"]))
        strings.append("".join(parts))
    return strings


def nasty_strings():
    strings = fixed()
    unique = list(dict.fromkeys(strings))
    return unique + mixed(max(12, 212 - len(unique)))
