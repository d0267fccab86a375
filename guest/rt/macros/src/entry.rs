//! `#[heddle_rt::main]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Error, ItemFn, MetaNameValue, Result, Token};

/// The function `main` that runs the given one as the first coroutine.
pub fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(item)?;
    let signature = &function.sig;
    if signature.asyncness.is_none() || !signature.inputs.is_empty() {
        return Err(Error::new_spanned(signature, "the first coroutine is an `async fn` without parameters"));
    }
    let settings = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(arguments)?;
    let mut builder = quote!(::heddle_rt::Builder::new());
    for setting in &settings {
        if !setting.path.is_ident("threads") && !setting.path.is_ident("priority") {
            return Err(Error::new_spanned(setting, "it knows `threads` and `priority`"));
        }
        let (name, value) = (&setting.path, &setting.value);
        builder = quote!(#builder.#name(#value));
    }
    let (attributes, visibility, name, output, block) =
        (&function.attrs, &function.vis, &signature.ident, &signature.output, &function.block);
    Ok(quote! {
        #(#attributes)*
        #visibility fn #name() #output {
            #builder.run(async move #block)
        }
    })
}
