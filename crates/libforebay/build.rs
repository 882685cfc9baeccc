//! Gives libforebay.so its SONAME. The number is that of the interface in include/forebay.h: it changes when
//! a program that was linked before would not run right any more. scripts/install-files reads it from the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
