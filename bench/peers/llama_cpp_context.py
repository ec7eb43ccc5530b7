"""One sequence of a model in llama.cpp, by its C interface: what llama_cpp_mtp.py and check_gguf.py run on.

MTP needs functions of a staging interface that the library exports under C++ names: llama-cpp-python 0.3.36 has them. Also
needs numpy."""
import ctypes
import sys

import llama_cpp as L
import numpy as np

CONTEXT, BATCH = 1024, 512


@L.llama_log_callback
def only_errors(level, text, _):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


def staged(name, mangled, restype, *argtypes):
    function = getattr(L.llama_cpp._lib, mangled, None)
    if function is None:
        sys.exit(f"this libllama has no {name}: MTP needs the one of llama-cpp-python 0.3.36")
    function.restype, function.argtypes = restype, argtypes
    return function


set_nextn = staged("llama_set_embeddings_nextn", "_Z26llama_set_embeddings_nextnP13llama_contextbb", None,
                   ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
nextn_ith = staged("llama_get_embeddings_nextn_ith", "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
                   ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int)


def load_model(path):
    """With the blocks of its MTP head."""
    L.llama_backend_init()
    L.llama_log_set(only_errors, ctypes.c_void_p(0))
    params = L.llama_model_default_params()
    params.load_mtp = True
    model = L.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"cannot load {path}")
    return model


class Sequence:
    """`slots`: recurrent states kept for cut(), one a token of a window. `hiddens`: keep those of every token, for a head.
    `target`: the sequence whose head this one is."""
    def __init__(self, model, threads, slots=0, hiddens=False, target=None):
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT, BATCH, BATCH, 1
        params.n_threads = params.n_threads_batch = threads
        params.n_rs_seq = slots
        if target:
            params.ctx_type, params.ctx_other = L.LLAMA_CONTEXT_TYPE_MTP, target.pointer
        self.pointer = L.llama_init_from_model(model, params)
        if not self.pointer:
            sys.exit("llama.cpp refuses the context")
        self.memory, self.length = L.llama_get_memory(self.pointer), 0
        self.width = L.llama_model_n_embd_out(model)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        if hiddens or target:
            set_nextn(self.pointer, True, target is not None)  # a head's own: of tokens with logits alone

    def decode(self, tokens, hiddens=None, every=True):
        """Appends tokens; logits of every one or of the last. A head takes the hiddens beside them."""
        count = len(tokens)
        batch = L.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        rows = None
        if hiddens is not None:
            rows = np.ascontiguousarray(np.stack(hiddens), dtype=np.float32)
            batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        for i, each in enumerate(tokens):
            batch.token[i], batch.pos[i] = int(each), self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == count - 1
        code = L.llama_decode(self.pointer, batch)
        L.llama_synchronize(self.pointer)
        batch.embd = None  # rows' memory, which llama_batch_free would free
        L.llama_batch_free(batch)
        if code != 0:
            sys.exit(f"llama_decode returned {code}")
        self.length += count

    def logits(self, i):
        """Of token i of the last decode, valid until the next one."""
        return np.ctypeslib.as_array(L.llama_get_logits_ith(self.pointer, i), (self.vocab,))

    def argmax(self, i):
        return int(self.logits(i).argmax())

    def hidden(self, i):
        return np.ctypeslib.as_array(nextn_ith(self.pointer, i), (self.width,)).copy()

    def cut(self, length):
        if not L.llama_memory_seq_rm(self.memory, 0, length, -1):
            sys.exit("llama.cpp cannot roll this model back")
        self.length = length
