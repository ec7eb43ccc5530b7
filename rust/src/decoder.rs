//! What a tokenizer's decoder does to one token, so that output can be streamed token by token with the exact text that
//! decoding all of them gives.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

/// The families of decoders whose text can be made from independent parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Tokens are bytes; the text is their concatenation with invalid sequences replaced.
    ByteLevel,
    /// Tokens are text or `<0xNN>`; a run of the latter is one UTF-8 string, or one U+FFFD per byte if it is not.
    /// Up to `strip` leading `strip_char`s of the whole text are dropped.
    ByteFallback { strip_char: char, strip: usize },
    /// Anything else: a token's text may depend on its neighbours.
    Other,
}

pub enum Part {
    Text(String),
    Bytes(Vec<u8>),
    Byte(u8),
}

impl Family {
    pub fn of(decoder: Option<&DecoderWrapper>) -> Family {
        match decoder {
            Some(DecoderWrapper::ByteLevel(_)) => Family::ByteLevel,
            Some(DecoderWrapper::Sequence(sequence)) => Family::of_sequence(sequence.get_decoders()),
            _ => Family::Other,
        }
    }

    fn of_sequence(steps: &[DecoderWrapper]) -> Family {
        let rest = match steps {
            [DecoderWrapper::ByteLevel(_)] => return Family::ByteLevel,
            [DecoderWrapper::Replace(_), DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_), rest @ ..] => rest,
            _ => return Family::Other,
        };
        match rest {
            [] => Family::ByteFallback { strip_char: ' ', strip: 0 },
            [DecoderWrapper::Strip(step)] if step.stop == 0 => {
                Family::ByteFallback { strip_char: step.content, strip: step.start }
            }
            _ => Family::Other,
        }
    }

    /// What `token` adds to the text. `decoder` is the one this family was made of.
    pub fn part(self, decoder: Option<&DecoderWrapper>, token: &str) -> tokenizers::Result<Part> {
        match (self, decoder) {
            (Family::ByteLevel, _) => Ok(Part::Bytes(byte_level_bytes(token))),
            (Family::ByteFallback { .. }, Some(DecoderWrapper::Sequence(sequence))) => {
                let replaced = sequence.get_decoders()[0].decode_chain(vec![token.to_string()])?.concat();
                Ok(fallback_byte(&replaced).map_or(Part::Text(replaced), Part::Byte))
            }
            _ => Ok(Part::Text(token.to_string())),
        }
    }
}

/// The byte of `<0xNN>`. As lax as the decoder step itself, which takes any two characters the parser of
/// hexadecimal numbers takes.
pub fn fallback_byte(token: &str) -> Option<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        u8::from_str_radix(token.get(3..5)?, 16).ok()
    } else {
        None
    }
}

/// The byte a character stands for in byte-level vocabularies: printable Latin-1 for itself, the 68 other bytes in
/// ascending order from U+0100.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match character as u32 {
        code @ 0..=0xff => printable(code).then_some(code as u8),
        code @ 0x100..=0x143 => {
            (0..=0xffu32).filter(|byte| !printable(*byte)).nth(code as usize - 0x100).map(|b| b as u8)
        }
        _ => None,
    }
}

/// A byte-level token's bytes; a token with any character outside the alphabet (an added token) stands for itself.
fn byte_level_bytes(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}
