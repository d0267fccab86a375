//! The attributes of `heddle-rt`: [`macro@main`] makes `main` the first coroutine, and [`macro@call`] makes the forms
//! of a system call from one description, as the third paper's macros do.

mod call;
mod entry;

use proc_macro::TokenStream;

/// Makes an `async fn main` the program's first coroutine: `#[heddle_rt::main]`, or with any of
/// `threads = 2, priority = 20, strict`.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    entry::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes the forms of a system call from a function that puts its parameters into registers. For `heddle-rt` itself.
#[proc_macro_attribute]
pub fn call(arguments: TokenStream, item: TokenStream) -> TokenStream {
    call::expand(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
