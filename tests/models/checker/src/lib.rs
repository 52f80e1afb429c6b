//! Runs a model in C in every order that the memory model allows.
//!
//! The C compiler, with -fsanitize=thread, puts a call before each access to memory and in the
//! place of each atomic operation. The functions that it calls are here, and hand the accesses to
//! loom, which explores all orders of the threads, and all stores that a load may find.
//!
//! A plain access is checked for data races, and then happens in memory. Memory also has the newest
//! value of each atomic variable, for plain reads by the only thread that writes it.
//!
//! loom counts sequentially consistent accesses as acquire and release. So a fence comes between
//! two of them in one thread, unless the thread has stored something else in between, which the
//! fence would order as well. That is never stronger than C is.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread::{self, JoinHandle, ThreadId};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{exit, Command};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

// The end of a run: a fault of the model was found, or the checker cannot say.
const FOUND: c_int = 1;
const FAILED: c_int = 2;
// Each thread of a model needs less.
const STACK_WORDS: usize = 0x8000;
// Atomic operations of one execution; more are a loop without end.
const BRANCHES_MAX: usize = 5_000;
// The number of __ATOMIC_SEQ_CST.
const SEQ_CST: c_int = 5;
// The addresses of all atomic variables, for the next process (see `atomic`).
const KNOWN: &str = "CHECKER_ATOMICS";

extern "C" {
    fn model_reset();
    fn model_begin();
    fn model_end();
    static __data_start: u8;
    static _end: u8;
}

/// What one execution has. It is gone when the next one begins.
#[derive(Default)]
struct Memory {
    atomics: HashMap<usize, &'static AtomicU64>,
    cells: HashMap<usize, &'static UnsafeCell<()>>,
    locks: HashMap<usize, &'static Mutex<()>>,
    locked: HashMap<usize, MutexGuard<'static, ()>>,
    conditions: HashMap<usize, &'static Condvar>,
    threads: Vec<JoinHandle<()>>,
    // Threads whose newest store was sequentially consistent, or that have only loaded so.
    ordered: HashSet<ThreadId>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
    static ATOMICS: RefCell<BTreeSet<usize>> = RefCell::default();
    static CELLS: RefCell<BTreeSet<usize>> = RefCell::default();
}

static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);

/// Uses the memory for a moment. No function of loom may be called meanwhile: it may switch threads.
fn memory<R>(use_it: impl FnOnce(&mut Memory) -> R) -> R {
    MEMORY.with(|memory| use_it(&mut memory.borrow_mut()))
}

/// Values of one execution. loom has them by number and needs no end of theirs; they are few bytes.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn is_shared(address: usize) -> bool {
    // Only what is static is shared: the memory of a model's threads is an array.
    (&raw const __data_start as usize..&raw const _end as usize).contains(&address)
}

// ── the run ────────────────────────────────────────────────────────────────────────────────────

fn execute() {
    EXECUTIONS.fetch_add(1, Relaxed);
    memory(|memory| *memory = Memory::default());
    unsafe { model_reset() };
    // Made by the first thread, before there are others: all accesses happen after that.
    for address in ATOMICS.with(|known| known.borrow().clone()) {
        let atomic = kept(AtomicU64::new(0));
        memory(|memory| memory.atomics.insert(address, atomic));
    }
    for address in CELLS.with(|known| known.borrow().clone()) {
        let cell = kept(UnsafeCell::new(()));
        memory(|memory| memory.cells.insert(address, cell));
    }
    unsafe { model_begin() };
    while let Some(thread) = memory(|memory| memory.threads.pop()) {
        thread.join().expect("a thread ends");
    }
    unsafe { model_end() };
    memory(|memory| *memory = Memory::default());
}

fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        // loom ends its threads by panics that have no text.
        let Some(text) = panic.payload_as_str() else { return };
        let is_found = ["Causality violation", "deadlock", "model:"]
            .iter()
            .any(|start| text.trim_start().starts_with(start));
        let what = text.trim().lines().next().unwrap_or("?").to_owned();
        println!("{} {what}", EXECUTIONS.load(Relaxed));
        let _ = std::io::stdout().flush();
        unsafe { libc_exit(if is_found { FOUND } else { FAILED }) }
    }));
}

extern "C" {
    #[link_name = "_exit"]
    fn libc_exit(status: c_int) -> !;
}

/// Explores all executions, and prints their number.
#[no_mangle]
pub extern "C" fn checker_run() -> c_int {
    report_panics();
    let known = std::env::var(KNOWN).unwrap_or_default();
    let addresses = known.split_whitespace().map(|one| one.parse::<usize>().expect("a number"));
    ATOMICS.with(|atomics| atomics.borrow_mut().extend(addresses));
    loop {
        let before = CELLS.with(|cells| cells.borrow().len());
        EXECUTIONS.store(0, Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.max_branches = BRANCHES_MAX;
        builder.check(execute);
        // The first access to each variable was not checked.
        if CELLS.with(|cells| cells.borrow().len()) == before {
            break;
        }
    }
    println!("{}", EXECUTIONS.load(Relaxed));
    0
}

// ── plain accesses ─────────────────────────────────────────────────────────────────────────────

fn access(address: usize, writes: bool) {
    if !is_shared(address) {
        return;
    }
    if let Some(atomic) = memory(|memory| memory.atomics.get(&address).copied()) {
        assert!(!writes, "a plain write to the atomic variable {address:x}");
        // Loom checks that no other thread may be writing.
        unsafe { atomic.unsync_load() };
        return;
    }
    match memory(|memory| memory.cells.get(&address).copied()) {
        Some(cell) if writes => cell.with_mut(|_| ()),
        Some(cell) => cell.with(|_| ()),
        None => CELLS.with(|cells| {
            cells.borrow_mut().insert(address);
        }),
    }
}

macro_rules! plain {
    ($($name:ident $writes:literal)*) => {$(
        #[no_mangle]
        pub extern "C" fn $name(address: *const c_void) {
            access(address as usize, $writes);
        }
    )*};
}

plain! {
    __tsan_read1 false __tsan_read2 false __tsan_read4 false __tsan_read8 false __tsan_read16 false
    __tsan_write1 true __tsan_write2 true __tsan_write4 true __tsan_write8 true __tsan_write16 true
    __tsan_unaligned_read2 false __tsan_unaligned_read4 false __tsan_unaligned_read8 false
    __tsan_unaligned_write2 true __tsan_unaligned_write4 true __tsan_unaligned_write8 true
}

fn access_range(address: usize, size: usize, writes: bool) {
    let known = CELLS.with(|cells| {
        let cells = cells.borrow();
        cells.range(address..address + size).copied().collect::<Vec<_>>()
    });
    for one in known {
        access(one, writes);
    }
}

#[no_mangle]
pub extern "C" fn __tsan_read_range(address: *const c_void, size: usize) {
    access_range(address as usize, size, false);
}

#[no_mangle]
pub extern "C" fn __tsan_write_range(address: *const c_void, size: usize) {
    access_range(address as usize, size, true);
}

#[no_mangle]
pub extern "C" fn __tsan_init() {}
#[no_mangle]
pub extern "C" fn __tsan_func_entry(_caller: *const c_void) {}
#[no_mangle]
pub extern "C" fn __tsan_func_exit() {}

// ── atomic operations ──────────────────────────────────────────────────────────────────────────

/// Returns the variable at an address. loom wants each variable made before the threads, so that
/// an unknown one is noted and the program begins again. Addresses are the same then: it is linked
/// at a fixed one, and its memory is static.
fn atomic(address: usize) -> &'static AtomicU64 {
    if let Some(found) = memory(|memory| memory.atomics.get(&address).copied()) {
        return found;
    }
    assert!(is_shared(address), "an atomic variable on a stack");
    let known = std::env::var(KNOWN).unwrap_or_default();
    let again = std::env::current_exe().expect("a program");
    let error = Command::new(again).env(KNOWN, format!("{known} {address}")).exec();
    panic!("{error}");
}

/// Translates an ordering of C, of an access that stores or only loads.
fn ordering(number: c_int, stores: bool) -> Ordering {
    let me = thread::current().id();
    if number == SEQ_CST {
        if !memory(|memory| memory.ordered.insert(me)) {
            fence(Ordering::SeqCst);
        }
    } else if stores {
        memory(|memory| memory.ordered.remove(&me));
    }
    match number {
        0 => Ordering::Relaxed,
        1 | 2 => Ordering::Acquire,
        3 => Ordering::Release,
        _ => Ordering::AcqRel,
    }
}

fn for_load(number: c_int) -> Ordering {
    match ordering(number, false) {
        Ordering::AcqRel => Ordering::Acquire,
        other => other,
    }
}

fn for_store(number: c_int) -> Ordering {
    match ordering(number, true) {
        Ordering::AcqRel => Ordering::Release,
        other => other,
    }
}

fn for_both(number: c_int) -> Ordering {
    ordering(number, true)
}

macro_rules! atomics {
    ($($type:ty: $load:ident $store:ident $exchange:ident $add:ident $or:ident $and:ident
       $replace:ident)*) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $load(place: *const $type, order: c_int) -> $type {
            atomic(place as usize).load(for_load(order)) as $type
        }

        #[no_mangle]
        pub unsafe extern "C" fn $store(place: *mut $type, value: $type, order: c_int) {
            atomic(place as usize).store(value as u64, for_store(order));
            *place = value;
        }

        #[no_mangle]
        pub unsafe extern "C" fn $exchange(place: *mut $type, value: $type, order: c_int) -> $type {
            let before = atomic(place as usize).swap(value as u64, for_both(order));
            *place = value;
            before as $type
        }

        #[no_mangle]
        pub unsafe extern "C" fn $add(place: *mut $type, more: $type, order: c_int) -> $type {
            let before = atomic(place as usize).fetch_add(more as u64, for_both(order)) as $type;
            *place = before.wrapping_add(more);
            before
        }

        #[no_mangle]
        pub unsafe extern "C" fn $or(place: *mut $type, bits: $type, order: c_int) -> $type {
            let before = atomic(place as usize).fetch_or(bits as u64, for_both(order)) as $type;
            *place = before | bits;
            before
        }

        #[no_mangle]
        pub unsafe extern "C" fn $and(place: *mut $type, bits: $type, order: c_int) -> $type {
            let before = atomic(place as usize).fetch_and(bits as u64, for_both(order)) as $type;
            *place = before & bits;
            before
        }

        #[no_mangle]
        pub unsafe extern "C" fn $replace(
            place: *mut $type, expected: *mut $type, value: $type, order: c_int, failure: c_int,
        ) -> c_int {
            let success = for_both(order);
            let failure = if failure == 0 { Ordering::Relaxed } else { Ordering::Acquire };
            let wanted = *expected as u64;
            match atomic(place as usize).compare_exchange(wanted, value as u64, success, failure) {
                Ok(_) => {
                    *place = value;
                    1
                }
                Err(found) => {
                    *expected = found as $type;
                    0
                }
            }
        }
    )*};
}

atomics! {
    u8: __tsan_atomic8_load __tsan_atomic8_store __tsan_atomic8_exchange __tsan_atomic8_fetch_add
        __tsan_atomic8_fetch_or __tsan_atomic8_fetch_and __tsan_atomic8_compare_exchange_strong
    u16: __tsan_atomic16_load __tsan_atomic16_store __tsan_atomic16_exchange
        __tsan_atomic16_fetch_add __tsan_atomic16_fetch_or __tsan_atomic16_fetch_and
        __tsan_atomic16_compare_exchange_strong
    u32: __tsan_atomic32_load __tsan_atomic32_store __tsan_atomic32_exchange
        __tsan_atomic32_fetch_add __tsan_atomic32_fetch_or __tsan_atomic32_fetch_and
        __tsan_atomic32_compare_exchange_strong
    u64: __tsan_atomic64_load __tsan_atomic64_store __tsan_atomic64_exchange
        __tsan_atomic64_fetch_add __tsan_atomic64_fetch_or __tsan_atomic64_fetch_and
        __tsan_atomic64_compare_exchange_strong
}

#[no_mangle]
pub extern "C" fn __tsan_atomic_thread_fence(order: c_int) {
    fence(match order {
        1 | 2 => Ordering::Acquire,
        3 => Ordering::Release,
        4 => Ordering::AcqRel,
        _ => Ordering::SeqCst,
    });
}

// ── what a model calls (checker.h) ─────────────────────────────────────────────────────────────

#[no_mangle]
pub extern "C" fn checker_fail(what: *const c_char) -> ! {
    panic!("model: {}", unsafe { CStr::from_ptr(what) }.to_string_lossy());
}

#[no_mangle]
pub extern "C" fn checker_start(run: extern "C" fn(*mut c_void) -> *mut c_void, with: *mut c_void) {
    let with = with as usize;
    let started = thread::Builder::new()
        .stack_size(STACK_WORDS)
        .spawn(move || {
            run(with as *mut c_void);
        })
        .expect("a thread");
    memory(|memory| memory.threads.push(started));
}

#[no_mangle]
pub extern "C" fn checker_yield() {
    thread::yield_now();
}

fn lock_at(address: usize) -> &'static Mutex<()> {
    if let Some(found) = memory(|memory| memory.locks.get(&address).copied()) {
        return found;
    }
    let made = kept(Mutex::new(()));
    memory(|memory| memory.locks.insert(address, made));
    made
}

fn condition_at(address: usize) -> &'static Condvar {
    if let Some(found) = memory(|memory| memory.conditions.get(&address).copied()) {
        return found;
    }
    let made = kept(Condvar::new());
    memory(|memory| memory.conditions.insert(address, made));
    made
}

#[no_mangle]
pub extern "C" fn checker_lock(lock: *const c_void) {
    let guard = lock_at(lock as usize).lock().expect("no thread has panicked");
    memory(|memory| memory.locked.insert(lock as usize, guard));
}

#[no_mangle]
pub extern "C" fn checker_unlock(lock: *const c_void) {
    let guard = memory(|memory| memory.locked.remove(&(lock as usize)));
    drop(guard.expect("a lock that is held"));
}

#[no_mangle]
pub extern "C" fn checker_wait(condition: *const c_void, lock: *const c_void) {
    let guard = memory(|memory| memory.locked.remove(&(lock as usize)));
    let guard = guard.expect("a lock that is held");
    let guard = condition_at(condition as usize).wait(guard).expect("no thread has panicked");
    memory(|memory| memory.locked.insert(lock as usize, guard));
}

#[no_mangle]
pub extern "C" fn checker_wake(condition: *const c_void) {
    condition_at(condition as usize).notify_all();
}

/// Ends the program without a result, for C code that reaches what a model does not have.
#[no_mangle]
pub extern "C" fn checker_lacks(what: *const c_char) -> ! {
    println!("0 {}", unsafe { CStr::from_ptr(what) }.to_string_lossy());
    exit(FAILED);
}
