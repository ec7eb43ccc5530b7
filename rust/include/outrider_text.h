// C ABI of the Rust library `outrider_text`: tokenizers, chat templates, grammars.
//
// Rules for every function
//  - Returns OUTRIDER_TEXT_OK (0) or a code; on a code, and only then, *error (if not null) holds a UTF-8 message that
//    the caller returns to outrider_bytes_free. Out parameters are written on OK only. No panic crosses this boundary.
//  - Input pointers are borrowed for the call. `size` is in bytes; with size 0 the pointer may be null. No input needs a
//    terminating NUL; text may contain NUL.
//  - Handles are owned by the caller and returned to their _free function, which accepts null. Calls that take a const
//    handle may run at the same time on several threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum outrider_text_code {
  OUTRIDER_TEXT_OK = 0,
  OUTRIDER_TEXT_BAD_DATA = 1,      // a file of the model is malformed or unsupported
  OUTRIDER_TEXT_BAD_ARGUMENT = 2,  // this call's text, ids, context or grammar
  OUTRIDER_TEXT_LIMIT = 3,         // instruction budget, depth or output limit
  OUTRIDER_TEXT_PANIC = 4,         // a fault in the library; the handle stays usable
};

// Owned by the caller: exactly one call of outrider_bytes_free / outrider_ids_free, both fields unchanged.
typedef struct outrider_bytes {
  uint8_t* data;
  size_t size;
} outrider_bytes;
typedef struct outrider_ids {
  int32_t* data;
  size_t size;
} outrider_ids;
void outrider_bytes_free(outrider_bytes bytes);
void outrider_ids_free(outrider_ids ids);

// Bytes the whole library holds on the heap now.
size_t outrider_text_live_bytes(void);
// Panics behind the boundary and returns OUTRIDER_TEXT_PANIC: for tests of the callers.
int32_t outrider_text_test_panic(outrider_bytes* error);

// ---- Tokenizers (tokenizer.json of the crate `tokenizers`); immutable once made.
typedef struct outrider_tokenizer outrider_tokenizer;
typedef struct outrider_tokenizer_facts {
  int32_t size;            // largest id + 1
  int32_t decoder_family;  // 0 other, 1 byte level, 2 byte fallback (how parts make text: src/text/text_stream.cpp)
  uint32_t strip_char;     // byte fallback: code point dropped at the start of the whole text ...
  size_t strip_count;      // ... at most this often
  size_t heap_bytes;       // what loading left on the heap
} outrider_tokenizer_facts;

int32_t outrider_tokenizer_new(const uint8_t* json, size_t size, outrider_tokenizer** out, outrider_bytes* error);
void outrider_tokenizer_free(outrider_tokenizer* tokenizer);
outrider_tokenizer_facts outrider_tokenizer_info(const outrider_tokenizer* tokenizer);

// add_special: run the post-processor's additions (BOS ...). parse_special: special tokens spelled out become their ids.
int32_t outrider_tokenizer_encode(const outrider_tokenizer* tokenizer, const uint8_t* text, size_t size,
                                  int32_t add_special, int32_t parse_special, outrider_ids* out,
                                  outrider_bytes* error);
// UTF-8. Ids outside 0..size are OUTRIDER_TEXT_BAD_ARGUMENT; ids without a token add nothing.
int32_t outrider_tokenizer_decode(const outrider_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                  int32_t skip_special, outrider_bytes* out, outrider_bytes* error);
// What one id adds to a stream: kind 0 nothing, 1 text, 2 raw bytes (byte level), 3 one byte of a byte-fallback run.
int32_t outrider_tokenizer_part(const outrider_tokenizer* tokenizer, int32_t id, int32_t skip_special, int32_t* kind,
                                outrider_bytes* out, outrider_bytes* error);
// The bytes an id stands for when it follows other text; its spelling in the vocabulary (empty if it has none).
int32_t outrider_tokenizer_token_bytes(const outrider_tokenizer* tokenizer, int32_t id, outrider_bytes* out,
                                       outrider_bytes* error);
int32_t outrider_tokenizer_piece(const outrider_tokenizer* tokenizer, int32_t id, outrider_bytes* out,
                                 outrider_bytes* error);
// -1 if the spelling is unknown or not UTF-8.
int32_t outrider_tokenizer_id_of(const outrider_tokenizer* tokenizer, const uint8_t* piece, size_t size);
// 1 or 0; 0 for ids out of range.
int32_t outrider_tokenizer_is_special(const outrider_tokenizer* tokenizer, int32_t id);

// ---- Chat templates (Jinja by the crate `minijinja`); immutable once compiled.
typedef struct outrider_template outrider_template;
int32_t outrider_template_new(const uint8_t* source, size_t size, outrider_template** out, outrider_bytes* error);
void outrider_template_free(outrider_template* chat_template);
// `context`: a JSON object; its keys are the template's variables, in the order sent.
int32_t outrider_template_render(const outrider_template* chat_template, const uint8_t* context, size_t size,
                                 outrider_bytes* out, outrider_bytes* error);

// ---- Grammars (the crate `llguidance`). An environment holds the tokenizer's bytes; it does not borrow the tokenizer.
typedef struct outrider_grammar_env outrider_grammar_env;
enum outrider_grammar_kind {
  OUTRIDER_GRAMMAR_JSON_SCHEMA = 0,
  OUTRIDER_GRAMMAR_LARK = 1,
  OUTRIDER_GRAMMAR_REGEX = 2,
};
int32_t outrider_grammar_env_new(const outrider_tokenizer* tokenizer, int32_t end_id, outrider_grammar_env** out,
                                 outrider_bytes* error);
void outrider_grammar_env_free(outrider_grammar_env* environment);
// Compiles the grammar and computes its first mask: OK, or why it cannot be used.
int32_t outrider_grammar_check(const outrider_grammar_env* environment, int32_t kind, const uint8_t* source,
                               size_t size, outrider_bytes* error);

#ifdef __cplusplus
}
#endif
