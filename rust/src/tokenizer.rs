//! The tokenizer handle: `tokenizers::Tokenizer` plus what its API lacks (per-call treatment of spelled-out special
//! tokens, parts for streaming, checked ids).

use std::ptr;

use tokenizers::tokenizer::{AddedVocabulary, Model, OffsetType, PreTokenizer, Tokenizer};

use crate::abi::{bad_argument, bad_data, bytes, drop_handle, fence, text, Bytes, Ids, Outcome};
use crate::decoder::{Family, Part};
use crate::heap;

/// Ids must stay far below what an int32 and a table per id can hold; no vocabulary comes near.
const MAX_IDS: usize = 1 << 24;

pub struct Handle {
    inner: Tokenizer,
    /// The same added tokens, told to leave special ones in the text alone.
    plain: AddedVocabulary,
    family: Family,
    size: usize,
    heap_bytes: usize,
}

impl Handle {
    fn load(json: &[u8]) -> Outcome<Handle> {
        let (loaded, heap_bytes) = heap::measured(|| Handle::parse(json));
        loaded.map(|handle| Handle { heap_bytes, ..handle })
    }

    fn parse(json: &[u8]) -> Outcome<Handle> {
        let mut inner = Tokenizer::from_bytes(json).map_err(bad_data)?;
        // Files carry the settings of their last training run; limits here are the engine's business.
        inner.with_truncation(None).map_err(bad_data)?;
        inner.with_padding(None);
        if let tokenizers::ModelWrapper::BPE(model) = inner.get_model() {
            if model.dropout.is_some_and(|dropout| dropout > 0.0) {
                return Err(bad_data("model.dropout is set: encoding would be random; it must be null"));
            }
        }
        let size = inner.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1);
        if size > MAX_IDS {
            return Err(bad_data(format!("largest token id is {}, the limit is {}", size - 1, MAX_IDS - 1)));
        }
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let family = Family::of(inner.get_decoder());
        Ok(Handle { inner, plain, family, size, heap_bytes: 0 })
    }

    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Outcome<Vec<i32>> {
        let encoding = if parse_special {
            self.inner.encode_fast(text, add_special).map_err(bad_argument)?
        } else {
            let mut split = self.plain.extract_and_normalize(self.inner.get_normalizer(), text);
            if let Some(step) = self.inner.get_pre_tokenizer() {
                step.pre_tokenize(&mut split).map_err(bad_argument)?;
            }
            split
                .tokenize(|piece| self.inner.get_model().tokenize(piece.get()))
                .and_then(|()| split.into_encoding(None, 0, OffsetType::None))
                .and_then(|encoding| self.inner.post_process(encoding, None, add_special))
                .map_err(bad_argument)?
        };
        Ok(encoding.get_ids().iter().map(|id| *id as i32).collect())
    }

    fn checked(&self, id: i32) -> Outcome<u32> {
        match u32::try_from(id) {
            Ok(valid) if (valid as usize) < self.size => Ok(valid),
            _ => Err(bad_argument(format!("token id {id} is outside 0..{}", self.size))),
        }
    }

    fn decode(&self, ids: &[i32], skip_special: bool) -> Outcome<String> {
        let ids = ids.iter().map(|id| self.checked(*id)).collect::<Outcome<Vec<u32>>>()?;
        self.inner.decode(&ids, skip_special).map_err(bad_argument)
    }

    /// What id adds to a stream; none for ids without a token and for skipped ones.
    fn part(&self, id: i32, skip_special: bool) -> Outcome<Option<Part>> {
        let id = self.checked(id)?;
        match self.inner.id_to_token(id) {
            Some(token) if !(skip_special && self.inner.get_added_vocabulary().is_special_token(&token)) => {
                self.family.part(self.inner.get_decoder(), &token).map(Some).map_err(bad_argument)
            }
            _ => Ok(None),
        }
    }

    /// The bytes a token stands for when it follows other text.
    pub fn token_bytes(&self, id: i32) -> Outcome<Vec<u8>> {
        match self.part(id, false)? {
            None => Ok(Vec::new()),
            Some(Part::Bytes(bytes)) => Ok(bytes),
            Some(Part::Byte(byte)) => Ok(vec![byte]),
            Some(Part::Text(text)) if self.family != Family::Other => Ok(text.into_bytes()),
            Some(Part::Text(_)) => {
                let alone = self.decode(&[id], false)?;
                let twice = self.decode(&[id, id], false)?;
                Ok(twice.strip_prefix(&alone).unwrap_or(&alone).as_bytes().to_vec())
            }
        }
    }

    pub fn is_special(&self, id: i32) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        u32::try_from(id).ok().and_then(|id| added.get(&id)).is_some_and(|token| token.special)
    }

    pub fn id_of(&self, piece: &str) -> Option<i32> {
        self.inner.token_to_id(piece).map(|id| id as i32)
    }

    pub fn size(&self) -> usize {
        self.size
    }
}

/// # Safety
/// See the header: `json` readable, `out` writable, `error` null or writable.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_new(
    json: *const u8,
    size: usize,
    out: *mut *mut Handle,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let handle = Handle::load(unsafe { bytes(json, size) })?;
        unsafe { out.write(Box::into_raw(Box::new(handle))) };
        Ok(())
    })
}

/// # Safety
/// `handle` is null or came from `outrider_tokenizer_new`, and no other call uses it now or later.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_free(handle: *mut Handle) {
    unsafe { drop_handle(handle) }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_encode(
    handle: *const Handle,
    data: *const u8,
    size: usize,
    add_special: i32,
    parse_special: i32,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let text = unsafe { text(data, size, "text to tokenize") }?;
        let ids = unsafe { &*handle }.encode(text, add_special != 0, parse_special != 0)?;
        unsafe { out.write(Ids::from_vec(ids)) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_decode(
    handle: *const Handle,
    ids: *const i32,
    count: usize,
    skip_special: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let ids = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ids, count) } };
        let text = unsafe { &*handle }.decode(ids, skip_special != 0)?;
        unsafe { out.write(Bytes::from_vec(text.into_bytes())) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_part(
    handle: *const Handle,
    id: i32,
    skip_special: i32,
    kind: *mut i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let (number, content) = match unsafe { &*handle }.part(id, skip_special != 0)? {
            None => (0, Vec::new()),
            Some(Part::Text(text)) => (1, text.into_bytes()),
            Some(Part::Bytes(bytes)) => (2, bytes),
            Some(Part::Byte(byte)) => (3, vec![byte]),
        };
        unsafe { kind.write(number) };
        unsafe { out.write(Bytes::from_vec(content)) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_token_bytes(
    handle: *const Handle,
    id: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let content = unsafe { &*handle }.token_bytes(id)?;
        unsafe { out.write(Bytes::from_vec(content)) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_piece(
    handle: *const Handle,
    id: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let handle = unsafe { &*handle };
        let id = handle.checked(id)?;
        let added = handle.inner.get_added_vocabulary().get_added_tokens_decoder();
        let piece = match added.get(&id) {
            Some(token) => Some(token.content.clone()),
            None => handle.inner.id_to_token(id),
        };
        unsafe { out.write(Bytes::from_vec(piece.unwrap_or_default().into_bytes())) };
        Ok(())
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_id_of(handle: *const Handle, data: *const u8, size: usize) -> i32 {
    let mut id = -1;
    fence(ptr::null_mut(), || {
        let piece = unsafe { text(data, size, "piece") }?;
        id = unsafe { &*handle }.id_of(piece).unwrap_or(-1);
        Ok(())
    });
    id
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_is_special(handle: *const Handle, id: i32) -> i32 {
    i32::from(unsafe { &*handle }.is_special(id))
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_tokenizer_info(handle: *const Handle) -> Info {
    let handle = unsafe { &*handle };
    let (family, strip_char, strip) = match handle.family {
        Family::Other => (0, ' ', 0),
        Family::ByteLevel => (1, ' ', 0),
        Family::ByteFallback { strip_char, strip } => (2, strip_char, strip),
    };
    Info {
        size: handle.size as i32,
        decoder_family: family,
        strip_char: strip_char as u32,
        strip_count: strip,
        heap_bytes: handle.heap_bytes,
    }
}

/// `outrider_tokenizer_info` of the header.
#[repr(C)]
pub struct Info {
    size: i32,
    decoder_family: i32,
    strip_char: u32,
    strip_count: usize,
    heap_bytes: usize,
}
