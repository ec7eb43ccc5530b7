//! A global allocator that counts: live bytes of the library, and net bytes per thread, so that loading a tokenizer
//! can say what it holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Constant and without a destructor: reading it never allocates, which an allocator must not do.
    static NET: Cell<isize> = const { Cell::new(0) };
}

pub struct Counting;

fn grew(bytes: usize) {
    LIVE.fetch_add(bytes, Ordering::Relaxed);
    let _ = NET.try_with(|net| net.set(net.get().wrapping_add(bytes as isize)));
}

fn shrank(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
    let _ = NET.try_with(|net| net.set(net.get().wrapping_sub(bytes as isize)));
}

// SAFETY: every call is forwarded to the system allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let pointer = System.alloc(layout);
        if !pointer.is_null() {
            grew(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let pointer = System.alloc_zeroed(layout);
        if !pointer.is_null() {
            grew(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        System.dealloc(pointer, layout);
        shrank(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let moved = System.realloc(pointer, layout, new_size);
        if !moved.is_null() {
            shrank(layout.size());
            grew(new_size);
        }
        moved
    }
}

/// Bytes this library holds now, in all.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// What `work` returns, and by how many bytes this thread's allocations outlive its frees during it.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NET.with(Cell::get);
    let result = work();
    let net = NET.with(Cell::get).wrapping_sub(before);
    (result, net.max(0) as usize)
}
