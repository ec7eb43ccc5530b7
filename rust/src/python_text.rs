//! Values as Python writes them: `str`, `repr` and floats.

use minijinja::value::ValueKind;
use minijinja::Value;

/// Deeper values are refused by tojson and cut by str: both recurse.
pub const MAX_DEPTH: usize = 256;

/// `{{ value }}`: `str(value)`, in which containers show their items as `repr` does.
pub fn str_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number => as_float(value).map_or_else(|| value.to_string(), float_text),
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            write_repr(&mut out, value, 0);
            out
        }
        _ => value.to_string(),
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    let items = |out: &mut String, open: &str, close: &str| {
        out.push_str(open);
        let mut count = 0;
        for item in value.try_iter().into_iter().flatten() {
            out.push_str(if count == 0 { "" } else { ", " });
            write_repr(out, &item, depth + 1);
            if value.kind() == ValueKind::Map {
                out.push_str(": ");
                write_repr(out, &value.get_item(&item).unwrap_or_default(), depth + 1);
            }
            count += 1;
        }
        out.push_str(if count == 1 && value.is_tuple() { "," } else { "" });
        out.push_str(close);
    };
    match value.kind() {
        ValueKind::String => write_repr_of_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map => items(out, "{", "}"),
        ValueKind::Seq if value.is_tuple() => items(out, "(", ")"),
        ValueKind::Seq => items(out, "[", "]"),
        _ => out.push_str(&str_text(value)),
    }
}

/// `repr` of a str: single quotes unless only those occur inside; characters that cannot be printed are escaped.
fn write_repr_of_text(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            _ if is_printable(character) => out.push(character),
            _ => out.push_str(&match character as u32 {
                code @ 0..=0xff => format!("\\x{code:02x}"),
                code @ 0..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// `str.isprintable`. The standard library knows the same categories, for its own escapes; the letter before keeps it
/// from escaping combining characters.
fn is_printable(character: char) -> bool {
    character == '"'
        || character == '\''
        || !['a', character].iter().collect::<String>().escape_debug().any(|c| c == '\\')
}

/// A float as `repr` writes it: shortest digits, exponent below 1e-4 and from 1e16 on.
pub fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let mut text = number.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

/// The number as a float if it is one.
pub fn as_float(value: &Value) -> Option<f64> {
    if value.is_number() && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}
