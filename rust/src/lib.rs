//! Tokenizer, chat templates and grammars behind one C ABI (include/outrider_text.h).
//!
//! Every function of the ABI catches panics, returns a code and, on failure, a message the caller frees.

mod abi;
mod decoder;
mod generation_tags;
mod grammar;
mod heap;
mod python;
mod python_json;
mod python_text;
mod template;
mod tokenizer;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;
