//! What all functions of the C ABI share: codes, owned bytes, and the fence against panics.

use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

/// Why a call failed; the numbers are those of `outrider_text_code` in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    BadData = 1,
    BadArgument = 2,
    Limit = 3,
    Panic = 4,
}

#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

pub fn bad_data(message: impl ToString) -> Failure {
    Failure { code: Code::BadData, message: message.to_string() }
}

pub fn bad_argument(message: impl ToString) -> Failure {
    Failure { code: Code::BadArgument, message: message.to_string() }
}

/// Bytes given to the caller, who returns them to `outrider_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

impl Bytes {
    pub fn from_vec(bytes: Vec<u8>) -> Bytes {
        let size = bytes.len();
        Bytes { data: Box::into_raw(bytes.into_boxed_slice()).cast(), size }
    }
}

/// Token ids given to the caller, who returns them to `outrider_ids_free`.
#[repr(C)]
pub struct Ids {
    data: *mut i32,
    size: usize,
}

impl Ids {
    pub fn from_vec(ids: Vec<i32>) -> Ids {
        let size = ids.len();
        Ids { data: Box::into_raw(ids.into_boxed_slice()).cast(), size }
    }
}

thread_local! {
    // Inside the fence a panic is an error value, not a message on stderr.
    static FENCED: Cell<u32> = const { Cell::new(0) };
}

fn install_quiet_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if FENCED.try_with(Cell::get).unwrap_or(0) == 0 {
                previous(info);
            }
        }));
    });
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string())
}

/// Runs `work`; panics become `Code::Panic`. On failure writes the message to `error` (if not null); returns the code.
pub fn fence(error: *mut Bytes, work: impl FnOnce() -> Outcome<()>) -> i32 {
    install_quiet_hook();
    FENCED.with(|depth| depth.set(depth.get() + 1));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    FENCED.with(|depth| depth.set(depth.get() - 1));
    let failure = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let message = format!("internal fault in the text library: {}", panic_message(payload.as_ref()));
            Failure { code: Code::Panic, message }
        }
    };
    if !error.is_null() {
        // SAFETY: the header requires a pointer to writable storage or null.
        unsafe { error.write(Bytes::from_vec(failure.message.into_bytes())) };
    }
    failure.code as i32
}

/// Drops a handle; a panic in a destructor must not cross the ABI either.
///
/// # Safety
/// `handle` is null or came from `Box::into_raw` of the same type and is not used afterwards.
pub unsafe fn drop_handle<T>(handle: *mut T) {
    if !handle.is_null() {
        fence(std::ptr::null_mut(), || {
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}

/// # Safety
/// `data` points to `size` readable bytes, or `size` is 0.
pub unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(data, size) }
    }
}

/// The bytes as text; says where the first invalid byte is.
///
/// # Safety
/// As for `bytes`.
pub unsafe fn text<'a>(data: *const u8, size: usize, what: &str) -> Outcome<&'a str> {
    std::str::from_utf8(unsafe { bytes(data, size) })
        .map_err(|fault| bad_argument(format!("{what} is not UTF-8: invalid byte at offset {}", fault.valid_up_to())))
}

/// # Safety
/// `bytes` came from this library and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn outrider_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.size)) });
    }
}

/// # Safety
/// `ids` came from this library and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn outrider_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)) });
    }
}

#[no_mangle]
pub extern "C" fn outrider_text_live_bytes() -> usize {
    crate::heap::live_bytes()
}

/// Panics behind the fence, so that a test can see what a caller gets.
///
/// # Safety
/// `error` is null or writable.
#[no_mangle]
pub unsafe extern "C" fn outrider_text_test_panic(error: *mut Bytes) -> i32 {
    fence(error, || panic!("asked for by a test"))
}
