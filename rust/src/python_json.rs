//! The filter `tojson` as transformers defines it: Python's `json.dumps`.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, State, Value};

use crate::python::{argument, invalid};
use crate::python_text::{as_float, float_text, MAX_DEPTH};

struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson` of transformers: `json.dumps(x, ensure_ascii=False, indent, separators, sort_keys)`.
pub fn tojson(state: &State, value: &Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = argument(&rest, &kwargs, 0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(&rest, &kwargs, 1, "indent")? {
        None => None,
        Some(value) if value.as_str().is_some() => value.as_str().map(str::to_string),
        Some(value) => Some(" ".repeat(i64::try_from(value)?.clamp(0, 64) as usize)),
    };
    let separators = argument(&rest, &kwargs, 2, "separators")?;
    let sort_keys = argument(&rest, &kwargs, 3, "sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
        Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
    };
    let style = JsonStyle { ensure_ascii, indent, item_separator, key_separator, sort_keys };
    let mut out = String::new();
    write_json(state, &mut out, value, &style, 0)?;
    state.consume_fuel((out.len() / 64) as u64)?;
    Ok(Value::from(out))
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    item.as_str().map(str::to_string).ok_or_else(|| invalid("separators of tojson must be two strings"))
}

fn write_json(state: &State, out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("tojson: the value is nested more than {MAX_DEPTH} deep")));
    }
    state.consume_fuel(1)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number_json(value)),
        ValueKind::String => write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                pairs.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_json_items(out, ('{', '}'), pairs.len(), style, depth, |out, index| {
                write_json_string(out, &pairs[index].0, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_json(state, out, &pairs[index].1, style, depth + 1)
            })?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_json_items(out, ('[', ']'), items.len(), style, depth, |out, index| {
                write_json(state, out, &items[index], style, depth + 1)
            })?;
        }
        kind => return Err(invalid(format!("tojson: a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

fn write_json_items(
    out: &mut String,
    brackets: (char, char),
    count: usize,
    style: &JsonStyle,
    depth: usize,
    mut write_item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(brackets.0);
    for index in 0..count {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write_item(out, index)?;
    }
    if count > 0 {
        new_line(out, depth);
    }
    out.push(brackets.1);
    Ok(())
}

fn number_json(value: &Value) -> String {
    match as_float(value) {
        Some(number) if number.is_nan() => "NaN".to_string(),
        Some(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
        Some(number) => float_text(number),
        None => value.to_string(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Number => Ok(number_json(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::None => Ok("null".to_string()),
        kind => Err(invalid(format!("tojson: a key of type {kind} is not allowed"))),
    }
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
            other if ensure_ascii && other > '~' => {
                let mut units = [0u16; 2];
                other.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
