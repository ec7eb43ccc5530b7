//! `{% generation %} ... {% endgeneration %}`: transformers marks the assistant's text with these tags, and the template
//! engine does not know them. The body is rendered in a scope of its own and nothing else, which is what `with` without
//! assignments does; so only the tag's word is exchanged, and whitespace control and line numbers stay as they were.

use std::borrow::Cow;

/// The template with the words of generation tags exchanged. Comments, raw blocks and strings are left alone.
pub fn neutralize(source: &str) -> Cow<'_, str> {
    let mut result = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = source[at..].find('{') {
        at += offset;
        let rest = &source[at..];
        at += if rest.starts_with("{#") {
            rest.find("#}").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("{{") {
            span_of_tag(rest, "}}")
        } else if rest.starts_with("{%") {
            let word = word_of_tag(rest);
            let length = span_of_tag(rest, "%}");
            match &rest[word.clone()] {
                "raw" => length + span_of_raw(&rest[length..]),
                name @ ("generation" | "endgeneration") if is_bare(&rest[word.end..length]) => {
                    result.push_str(&source[copied..at + word.start]);
                    result.push_str(if name == "generation" { "with" } else { "endwith" });
                    copied = at + word.end;
                    length
                }
                _ => length,
            }
        } else {
            1
        };
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    result.push_str(&source[copied..]);
    Cow::Owned(result)
}

/// Where the first word of a tag that starts with `{%` lies.
fn word_of_tag(tag: &str) -> std::ops::Range<usize> {
    let body = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let start = tag.len() - body.len();
    let length = body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len());
    start..start + length
}

/// Bytes up to and with `close`, which does not count inside strings and brackets; all of `tag` if it never comes.
fn span_of_tag(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut depth = 0usize;
    let mut at = 2;
    while at < bytes.len() {
        if depth == 0 && tag.as_bytes()[at..].starts_with(close.as_bytes()) {
            return at + close.len();
        }
        match bytes[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// Bytes of a raw block after its opening tag, with the `endraw` tag; all of `body` if that never comes.
fn span_of_raw(body: &str) -> usize {
    let mut at = 0;
    while let Some(offset) = body[at..].find("{%") {
        at += offset;
        let tag = &body[at..];
        if &tag[word_of_tag(tag)] == "endraw" {
            return at + span_of_tag(tag, "%}");
        }
        at += 2;
    }
    body.len()
}

/// Whether nothing but whitespace and whitespace control stands between a tag's word and its end.
fn is_bare(rest_of_tag: &str) -> bool {
    rest_of_tag.strip_suffix("%}").is_some_and(|rest| rest.trim_end_matches(['-', '+']).trim().is_empty())
}
