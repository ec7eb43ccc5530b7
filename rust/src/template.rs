//! Chat templates: `minijinja` set up as transformers sets up Jinja, with limits.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Value};

use crate::abi::{bad_argument, drop_handle, fence, text, Bytes, Code, Failure, Outcome};
use crate::generation_tags;
use crate::{python, python_json, python_text};

/// Instructions and units of 64 bytes a render may spend: 4,096 messages with tools need under a tenth of it, and an
/// endless loop ends within a second.
const FUEL: u64 = 4_000_000;
/// Nested macro calls count about 10 each: schemas nested 64 deep (the limit of request bodies) must render.
const RECURSION_LIMIT: usize = 2_000;
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Templates longer than this are refused; the largest known one has 20 KB.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Dropping a value that a template nested as deep as its fuel allows recurses once per level, so rendering runs on a
/// stack of this size. Only touched pages cost memory.
const STACK_BYTES: usize = 512 << 20;
const NAME: &str = "chat template";

pub struct Handle {
    environment: Environment<'static>,
}

impl Handle {
    fn compile(source: &str) -> Outcome<Handle> {
        stacker::grow(STACK_BYTES, || Handle::compile_here(source))
    }

    fn compile_here(source: &str) -> Outcome<Handle> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("chat template has {} bytes, the limit is {MAX_SOURCE_BYTES}", source.len());
            return Err(Failure { code: Code::BadData, message });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| describe(&error, Code::BadData))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_unknown_method_callback(python::call_method);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
                let text = python_text::str_text(value);
                state.consume_fuel((text.len() / 64) as u64)?;
                out.write_str(&text).map_err(Error::from)
            }
            _ => escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", python_json::tojson);
        environment.add_filter("trim", |value: &Value, characters: Option<&str>| python::trim(value, characters));
        environment.add_filter("string", |value: &Value| python_text::str_text(value));
        // What Python can iterate, and what has a length and items: texts and maps too.
        environment.add_test("iterable", |value: &Value| {
            use ValueKind::{Iterable, Map, Seq, String, Undefined};
            matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
        });
        environment.add_test("sequence", |value: &Value| {
            use ValueKind::{Map, Seq, String, Undefined};
            matches!(value.kind(), String | Seq | Map | Undefined)
        });
        environment.add_function("strftime_now", python::strftime_now);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, generation_tags::neutralize(&with_unix_newlines(source)).into_owned())
            .map_err(|error| describe(&error, Code::BadData))?;
        Ok(Handle { environment })
    }

    fn render(&self, context: &str) -> Outcome<Vec<u8>> {
        stacker::grow(STACK_BYTES, || self.render_here(context))
    }

    fn render_here(&self, context: &str) -> Outcome<Vec<u8>> {
        let context: serde_json::Value =
            serde_json::from_str(context).map_err(|fault| bad_argument(format!("template context: {fault}")))?;
        if !context.is_object() {
            return Err(bad_argument("template context is not a JSON object"));
        }
        let mut output = Limited(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error, Code::BadData))?;
        template
            .render_captured_to(Value::from(Serde(&context)), &mut output)
            .map_err(|error| describe(&error, Code::BadArgument))?;
        Ok(output.0)
    }
}

/// Jinja reads every kind of newline as LF, in text and in strings.
fn with_unix_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// "line 3: what is wrong": the innermost error that knows a line, and its message alone.
fn describe(error: &Error, otherwise: Code) -> Failure {
    let mut line = error.line();
    let mut detail = detail_of(error);
    let mut code = if error.kind() == ErrorKind::OutOfFuel { Code::Limit } else { otherwise };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(inner) = inner.downcast_ref::<Error>() {
            line = inner.line().or(line);
            detail = detail_of(inner);
            if inner.kind() == ErrorKind::OutOfFuel {
                code = Code::Limit;
            }
        } else {
            detail = inner.to_string();
            if inner.is::<io::Error>() {
                code = Code::Limit;
            }
        }
        source = inner.source();
    }
    if code == Code::Limit && error.kind() == ErrorKind::OutOfFuel {
        detail = format!("the template used up its budget of {FUEL} instructions");
    }
    let message = match line {
        Some(line) if line > 0 => format!("line {line}: {detail}"),
        _ => detail,
    };
    Failure { code, message }
}

fn detail_of(error: &Error) -> String {
    let kind = error.kind();
    match error.detail() {
        // Messages a template raises itself stand alone, as everything the engine calls an invalid operation.
        Some(detail) if kind == ErrorKind::InvalidOperation => detail.to_string(),
        Some(detail) => format!("{kind}: {detail}"),
        None => kind.to_string(),
    }
}

/// Collects output up to the limit.
struct Limited(Vec<u8>);

impl io::Write for &mut Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.0.len() + data.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("the rendered text exceeds the limit of {MAX_OUTPUT_BYTES} bytes")));
        }
        self.0.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_template_new(
    source: *const u8,
    size: usize,
    out: *mut *mut Handle,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let source = unsafe { text(source, size, "chat template") }
            .map_err(|failure| Failure { code: Code::BadData, ..failure })?;
        let handle = Handle::compile(source)?;
        unsafe { out.write(Box::into_raw(Box::new(handle))) };
        Ok(())
    })
}

/// # Safety
/// `handle` is null or came from `outrider_template_new`, and no other call uses it now or later.
#[no_mangle]
pub unsafe extern "C" fn outrider_template_free(handle: *mut Handle) {
    unsafe { drop_handle(handle) }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_template_render(
    handle: *const Handle,
    context: *const u8,
    size: usize,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let context = unsafe { text(context, size, "template context") }?;
        let rendered = unsafe { &*handle }.render(context)?;
        unsafe { out.write(Bytes::from_vec(rendered)) };
        Ok(())
    })
}
