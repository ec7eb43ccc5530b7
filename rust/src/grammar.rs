//! Grammars: compiled against a tokenizer by `llguidance`. For now a check; constrained sampling builds on the same
//! environment.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::ParserFactory;

use crate::abi::{bad_argument, bad_data, drop_handle, fence, text, Bytes, Outcome};
use crate::tokenizer::Handle as Tokenizer;

/// A tokenizer as the grammar engine sees it: the bytes of every token in a trie.
pub struct Environment {
    factory: ParserFactory,
}

impl Environment {
    fn new(tokenizer: &Tokenizer, end_id: i32) -> Outcome<Environment> {
        let size = tokenizer.size();
        if end_id < 0 || end_id as usize >= size {
            return Err(bad_argument(format!("end token {end_id} is outside 0..{size}")));
        }
        let words = (0..size as i32)
            .map(|id| {
                let mut word = tokenizer.token_bytes(id)?;
                if tokenizer.is_special(id) {
                    // The trie's mark for tokens that no grammar text may produce.
                    word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
                }
                Ok(word)
            })
            .collect::<Outcome<Vec<_>>>()?;
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, end_id as u32), &words);
        let mut factory =
            ParserFactory::new_simple(&(Arc::new(ApproximateTokEnv::new(trie)) as _)).map_err(bad_data)?;
        factory.quiet();
        Ok(Environment { factory })
    }

    fn check(&self, kind: i32, source: &str) -> Outcome<()> {
        let grammar = match kind {
            0 => TopLevelGrammar::from_json_schema(
                serde_json::from_str(source).map_err(|fault| bad_argument(format!("schema is not JSON: {fault}")))?,
            ),
            1 => TopLevelGrammar::from_lark(source.to_string()),
            2 => TopLevelGrammar::from_regex(source),
            _ => return Err(bad_argument(format!("grammar kind {kind} is not one of 0, 1, 2"))),
        };
        let mut parser = self.factory.create_parser(grammar).map_err(|fault| bad_argument(format!("{fault:#}")))?;
        parser.start_without_prompt();
        // The first mask proves that some token can begin.
        parser.compute_mask().map(|_| ()).map_err(|fault| bad_argument(format!("{fault:#}")))
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_grammar_env_new(
    tokenizer: *const Tokenizer,
    end_id: i32,
    out: *mut *mut Environment,
    error: *mut Bytes,
) -> i32 {
    fence(error, || {
        let environment = Environment::new(unsafe { &*tokenizer }, end_id)?;
        unsafe { out.write(Box::into_raw(Box::new(environment))) };
        Ok(())
    })
}

/// # Safety
/// `environment` is null or came from `outrider_grammar_env_new`, and no other call uses it now or later.
#[no_mangle]
pub unsafe extern "C" fn outrider_grammar_env_free(environment: *mut Environment) {
    unsafe { drop_handle(environment) }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn outrider_grammar_check(
    environment: *const Environment,
    kind: i32,
    data: *const u8,
    size: usize,
    error: *mut Bytes,
) -> i32 {
    fence(error, || unsafe { &*environment }.check(kind, unsafe { text(data, size, "grammar") }?))
}
