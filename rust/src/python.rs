//! What templates expect of Python: str, list and dict methods beyond those of `minijinja-contrib`, the exact
//! whitespace of `str.strip`, and the clock.

use minijinja::value::{from_args, Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `str.isspace` of one character: Unicode's White_Space and the four separators U+001C to U+001F.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Methods that are called on values and that the engine itself does not have.
pub fn call_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let known = match value.kind() {
        ValueKind::String => str_method(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => list_method(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match known {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn str_method(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (set,): (Option<&str>,) = from_args(args)?;
            let drop = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
            let from_left = if method == "rstrip" { text } else { text.trim_start_matches(drop) };
            Value::from(if method == "lstrip" { from_left } else { from_left.trim_end_matches(drop) })
        }
        "split" | "rsplit" => {
            let (rest, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
            let separator = argument(&rest, &kwargs, 0, "sep")?;
            let limit = argument(&rest, &kwargs, 1, "maxsplit")?;
            kwargs.assert_all_used()?;
            let limit = limit.map(i64::try_from).transpose()?.and_then(|count| usize::try_from(count).ok());
            let separator = match &separator {
                None => None,
                Some(value) if value.as_str().is_some_and(|sep| !sep.is_empty()) => value.as_str(),
                Some(_) => return Err(invalid("the separator of split must be a string that is not empty")),
            };
            split(text, separator, limit.unwrap_or(usize::MAX), method == "rsplit")
                .into_iter()
                .map(Value::from)
                .collect()
        }
        "splitlines" => {
            let (rest, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
            let keep = argument(&rest, &kwargs, 0, "keepends")?.is_some_and(|keep| keep.is_true());
            kwargs.assert_all_used()?;
            split_lines(text, keep).into_iter().map(Value::from).collect()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(invalid("the separator of partition must not be empty"));
            }
            let at = if method == "partition" { text.find(separator) } else { text.rfind(separator) };
            let parts = match at {
                Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(what) } else { text.rfind(what) };
            Value::from(text[..at.ok_or_else(|| invalid("substring not found"))?].chars().count())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = width.saturating_sub(text.chars().count());
            let fill = fill.unwrap_or(" ");
            state.consume_fuel((missing.saturating_mul(fill.len()) / 64) as u64)?;
            // Python puts the odd character of `center` left of texts of odd width.
            let left = match method {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = width.saturating_sub(text.chars().count());
            state.consume_fuel((missing / 64) as u64)?;
            let sign = usize::from(text.starts_with(['+', '-']));
            Value::from(format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..]))
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swapped: String = text
                .chars()
                .flat_map(|c| {
                    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect::<Vec<_>>() }
                        .into_iter()
                })
                .collect();
            Value::from(swapped)
        }
        _ => return Ok(None),
    }))
}

/// `str.title`: a letter after a letter is lower case, any other upper case.
fn title(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut after_letter = false;
    for character in text.chars() {
        if after_letter {
            result.extend(character.to_lowercase());
        } else {
            // Of letters that are several in upper case only the first stays so.
            let mut upper = character.to_uppercase();
            result.extend(upper.next());
            result.extend(upper.flat_map(char::to_lowercase));
        }
        after_letter = character.is_lowercase() || character.is_uppercase();
    }
    result
}

/// The argument at `position` or by keyword; none if absent or None.
pub fn argument(args: &[Value], kwargs: &Kwargs, position: usize, name: &str) -> Result<Option<Value>, Error> {
    let value = match args.get(position) {
        Some(value) => Some(value.clone()),
        None if kwargs.has(name) => Some(kwargs.get::<Value>(name)?),
        None => None,
    };
    Ok(value.filter(|value| !value.is_none()))
}

fn split<'a>(text: &'a str, separator: Option<&str>, limit: usize, from_right: bool) -> Vec<&'a str> {
    if let Some(separator) = separator {
        if !from_right {
            return text.splitn(limit.saturating_add(1), separator).collect();
        }
        let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), separator).collect();
        parts.reverse();
        return parts;
    }
    // Whitespace goes before every part is taken; what is left when the limit is reached keeps that on the far side.
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let cut = if parts.len() >= limit {
            None
        } else if from_right {
            rest.rfind(is_space).map(|at| at + rest[at..].chars().next().map_or(1, char::len_utf8))
        } else {
            rest.find(is_space)
        };
        let (part, remainder) = match cut {
            None => (rest, ""),
            Some(at) if from_right => (&rest[at..], &rest[..at]),
            Some(at) => (&rest[..at], &rest[at..]),
        };
        parts.push(part);
        rest = remainder;
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// `str.splitlines`: all of Python's line boundaries, CR LF as one.
fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        lines.push(&rest[..if keep_ends { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *wanted) {
                Some(at) => Ok(Some(Value::from(at))),
                None => Err(invalid("list.index: the value is not in the list")),
            }
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            Err(invalid(format!("list.{method} changes a list, which templates may not do")))
        }
        _ => Ok(None),
    }
}

/// `{{ value|trim }}` with Python's whitespace; any value is taken as its text.
pub fn trim(value: &Value, characters: Option<&str>) -> String {
    let text = value.to_string();
    let drop = |c: char| characters.map_or_else(|| is_space(c), |set| set.contains(c));
    text.trim_matches(drop).to_string()
}

/// `datetime.now().strftime(format)`: local time by the system's own function.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let pattern = std::ffi::CString::new(format).map_err(|_| invalid("strftime_now: the format contains NUL"))?;
    if format.is_empty() {
        return Ok(String::new());
    }
    let mut buffer = vec![0u8; 1024];
    // SAFETY: all pointers are to live, sufficiently large objects; strftime writes at most buffer.len() bytes.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local = std::mem::zeroed();
        libc::localtime_r(&now, &mut local);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), pattern.as_ptr(), &local)
    };
    if length == 0 {
        return Err(invalid("strftime_now: the result is longer than 1023 bytes"));
    }
    buffer.truncate(length);
    String::from_utf8(buffer).map_err(|_| invalid("strftime_now: the result is not UTF-8"))
}
