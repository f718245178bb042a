//! The function that the panic handler calls, for programs that may panic: the
//! proof that daskwire does not is elsewhere.

#[unsafe(no_mangle)]
extern "C" fn daskwire_panics() -> ! {
    loop {}
}
